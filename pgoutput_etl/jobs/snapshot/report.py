"""The snapshot job's summary, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgoutput_etl.console import grid, own_console, summary_json
from pgoutput_etl.identifiers import printable
from pgoutput_etl.load.summary import TableSummary, exit_code_of_tables, print_unchanged
from pgoutput_etl.lsn import format_lsn


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """loaded: rows from the snapshot. changes: the archive's later changes, applied on top."""

    table: TableSummary
    loaded: int
    changes: int


@dataclass(frozen=True, slots=True)
class SnapshotSummary:
    """snapshot_lsn: the LSN of the loaded rows. last_commit_lsn: the commit through which all other tables are
    consistent. waits: the archive has not reached snapshot_lsn; the loaded tables are ahead of it."""

    source: str
    batch: int
    snapshot_lsn: int
    last_commit_lsn: int
    waits: bool
    tables: tuple[LoadedTable, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return exit_code_of_tables(t.table for t in self.tables)

    def to_json(self) -> str:
        return summary_json(self, lsn=format_lsn(self.snapshot_lsn))


def print_snapshot(summary: SnapshotSummary, console: Console | None = None) -> None:
    console = console or own_console()
    loaded = [t for t in summary.tables if t.table.held is None]
    if loaded:
        console.print(_table(loaded))
    print_unchanged(console, [t.table for t in summary.tables], summary.skipped)
    lsn = format_lsn(summary.snapshot_lsn)
    if summary.waits:
        text = f"Loaded rows as of LSN {lsn}. The archive ends before it; its earlier changes will be skipped."
    else:
        text = f"Loaded rows as of LSN {lsn}, and applied the archive's later changes."
    console.print(text, markup=False)


def _table(tables: list[LoadedTable]) -> Table:
    table = grid("table", ("rows", "loaded", "changes since", "version"), ["at"])
    for t in tables:
        counts = (f"{n:,}" for n in (t.table.rows, t.loaded, t.changes, t.table.version))
        table.add_row(Text(printable(f"{t.table.schema}.{t.table.table}")), *counts, Text(printable(t.table.path)))
    return table
