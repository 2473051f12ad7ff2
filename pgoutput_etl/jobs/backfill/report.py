"""The backfill job's summary, as text and as JSON."""

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
class BackfilledTable:
    """how: whole or in part, and why. files, bytes: the part of the archive that has this table's changes."""

    table: TableSummary
    how: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BackfillSummary:
    """batch: 0 if the ledger doesn't record the backfill. last_commit_lsn: of the tables. files: in the archive."""

    source: str
    batch: int
    last_commit_lsn: int
    files: int
    files_read: tuple[str, ...] = ()
    bytes_read: int = 0
    tables: tuple[BackfilledTable, ...] = ()
    skipped: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return exit_code_of_tables(t.table for t in self.tables)

    def to_json(self) -> str:
        return summary_json(self, lsn=format_lsn(self.last_commit_lsn))


def print_backfill(summary: BackfillSummary, console: Console | None = None) -> None:
    """Prints the tables that a backfill changed."""
    console = console or own_console()
    if not summary.tables:
        console.print("Nothing to do: the archive has no changes of these tables.", markup=False)
    done = [t for t in summary.tables if t.table.held is None]
    if done:
        console.print(_table(done))
    print_unchanged(console, [t.table for t in summary.tables], summary.skipped)
    read = f"{len(summary.files_read):,} of {summary.files:,} files, {summary.bytes_read:,} bytes"
    console.print(f"Read: {read}. As of LSN {format_lsn(summary.last_commit_lsn)}.", markup=False)


def _table(tables: list[BackfilledTable]) -> Table:
    table = grid("table", ("rows", "files", "bytes", "version"), ("done", "at"))
    for t in tables:
        counts = (f"{n:,}" for n in (t.table.rows, t.files, t.bytes, t.table.version))
        name = Text(printable(f"{t.table.schema}.{t.table.table}"))
        table.add_row(name, *counts, Text(printable(t.how)), Text(printable(t.table.path)))
    return table
