"""The snapshot job's summary, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console

from pgoutput_etl.answers.command_line import seen_from_here
from pgoutput_etl.answers.next_commands import NextCommand, next_lines
from pgoutput_etl.console import grid, print_parts, summary_json
from pgoutput_etl.exit_codes import quarantine_code
from pgoutput_etl.load.summary import ChangedTables, TableSummary, unchanged_lines
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.targets.condition import TableCondition, condition_lines

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """loaded: rows from the snapshot. changes: the archive's later changes, applied on top."""

    table: TableSummary
    loaded: int
    changes: int


@dataclass(frozen=True, slots=True)
class SnapshotSummary:
    """snapshot_lsn: the LSN of the loaded rows. last_commit_lsn: the commit through which all other tables are
    consistent. waits: the archive hasn't reached snapshot_lsn, so the loaded tables are ahead of it. remarks: about the
    server. repaired: only rows that differed were loaded. conditions: of the loaded tables. next: commands for tables
    that are held or have a condition."""

    source: str
    batch: int
    snapshot_lsn: int
    last_commit_lsn: int
    waits: bool
    tables: tuple[LoadedTable, ...] = ()
    skipped: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    repaired: bool = False
    conditions: tuple[TableCondition, ...] = ()
    next: tuple[NextCommand, ...] = ()

    @property
    def changed(self) -> ChangedTables:
        return ChangedTables(tuple(loaded.table for loaded in self.tables), self.conditions)

    @property
    def exit_code(self) -> int:
        return quarantine_code(self.conditions, *(t.table.held for t in self.tables))

    def to_json(self) -> str:
        return summary_json(self, lsn=format_lsn(self.snapshot_lsn))


def print_snapshot(summary: SnapshotSummary, console: Console | None = None) -> None:
    """Prints the loaded or repaired tables."""
    table = _repaired(summary.tables) if summary.repaired else _loaded(summary.tables)
    unchanged = unchanged_lines((t.table for t in summary.tables), summary.skipped)
    done = "Repaired the tables' differences from" if summary.repaired else "Loaded"
    text = f"{done} rows as of LSN {format_lsn(summary.snapshot_lsn)}"
    if summary.waits:
        text = f"{text}. The archive ends before it; its earlier changes will be skipped."
    else:
        text = f"{text}, and applied the archive's later changes."
    print_parts([table, *unchanged, *condition_lines(summary.conditions), *summary.remarks, text], console)
    print_parts(next_lines(summary.next), console, soft_wrap=True)


def _loaded(tables: Iterable[LoadedTable]) -> Table:
    done = [t for t in tables if t.table.held is None]
    rows = [
        (t.table.name, (t.table.rows, t.loaded, t.changes, t.table.version), [seen_from_here(t.table.path)])
        for t in done
    ]
    return grid("table", ("rows", "loaded", "changes since", "version"), ["at"], rows)


def _repaired(tables: Iterable[LoadedTable]) -> Table:
    done = [(t.table, t.loaded) for t in tables if t.table.held is None]
    rows = [
        (t.name, (t.rows, read, t.inserted, t.updated, t.deleted, t.version), ["; ".join(t.notes)]) for t, read in done
    ]
    return grid("table", ("rows", "read", "inserted", "updated", "deleted", "version"), ["notes"], rows)
