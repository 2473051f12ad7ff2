"""The backfill job's summary, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from pgoutput_etl.answers.command_line import seen_from_here
from pgoutput_etl.answers.next_commands import NextCommand, next_lines
from pgoutput_etl.console import counted, grid, print_parts, summary_json
from pgoutput_etl.exit_codes import quarantine_code
from pgoutput_etl.load.summary import ChangedTables, TableSummary, unchanged_lines
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.targets.condition import TableCondition, condition_lines


@dataclass(frozen=True, slots=True)
class BackfilledTable:
    """how: whole or in part, and why. files, bytes: the part of the archive that has changes of this table."""

    table: TableSummary
    how: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BackfillSummary:
    """batch: 0 if the ledger doesn't record the backfill. last_commit_lsn: the last commit that the tables include.
    files: number of files in the archive. not_built: one line per table that can't be built from the archive as of this
    commit. next: commands for tables that are still held or have another condition. conditions: of these tables; empty
    for copies."""

    source: str
    batch: int
    last_commit_lsn: int
    files: int
    files_read: tuple[str, ...] = ()
    bytes_read: int = 0
    tables: tuple[BackfilledTable, ...] = ()
    skipped: tuple[str, ...] = ()
    next: tuple[NextCommand, ...] = ()
    not_built: tuple[str, ...] = ()
    conditions: tuple[TableCondition, ...] = ()

    @property
    def changed(self) -> ChangedTables:
        return ChangedTables(tuple(part.table for part in self.tables), self.conditions)

    @property
    def exit_code(self) -> int:
        return quarantine_code(self.not_built, self.conditions, *(t.table.held for t in self.tables))

    def to_json(self) -> str:
        return summary_json(self, lsn=format_lsn(self.last_commit_lsn))


def print_backfill(summary: BackfillSummary, console: Console | None = None) -> None:
    """Prints the tables that a backfill changed."""
    rows = [
        (t.table.name, (t.table.rows, t.files, t.bytes, t.table.version), (t.how, seen_from_here(t.table.path)))
        for t in summary.tables
        if t.table.held is None
    ]
    table = grid("table", ("rows", "files", "bytes", "version"), ("done", "at"), rows)
    heading = [] if summary.tables else ["Nothing to do: the archive has no changes of these tables."]
    unchanged = unchanged_lines((t.table for t in summary.tables), summary.skipped)
    unchanged += [*condition_lines(summary.conditions), *(f"Not built: {line}" for line in summary.not_built)]
    read = f"{len(summary.files_read):,} of {counted(summary.files, 'file')}, {counted(summary.bytes_read, 'byte')}"
    last = f"Read: {read}. As of LSN {format_lsn(summary.last_commit_lsn)}."
    print_parts([*heading, table, *unchanged, last], console)
    print_parts(next_lines(summary.next), console, soft_wrap=True)
