"""What a backfill tells: a summary for people, the same for programs."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.naming import printable
from pgoutput_etl.report import EXIT_DONE, EXIT_QUARANTINE, TableSummary


@dataclass(frozen=True, slots=True)
class BackfilledTable:
    """how: whole or in part, and why. files, bytes: of the archive, that have changes of this table."""

    table: TableSummary
    how: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class BackfillSummary:
    """batch: 0 if the ledger has none of it. last_commit_lsn: what the tables are as of; files: of the archive."""

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
        return EXIT_QUARANTINE if any(t.table.held for t in self.tables) else EXIT_DONE

    def to_json(self) -> str:
        named: dict[str, Any] = {"lsn": format_lsn(self.last_commit_lsn), "exit_code": self.exit_code}
        return json.dumps({**asdict(self), **named}, indent=2)


def print_backfill(summary: BackfillSummary, console: Console | None = None) -> None:
    console = console or Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    if not summary.tables:
        console.print("Nothing to do: no changes of these tables there.", markup=False)
    done = [t for t in summary.tables if t.table.held is None]
    if done:
        console.print(_table(done))
    for t in summary.tables:
        if t.table.held is not None:
            name = printable(f"{t.table.schema}.{t.table.table}")
            console.print(f"Left as it was: {name}: {printable(t.table.held)}", markup=False)
    if summary.skipped:
        console.print(f"Skipped, as configured: {printable(', '.join(summary.skipped))}", markup=False)
    read = f"{len(summary.files_read):,} of {summary.files:,} files, {summary.bytes_read:,} bytes"
    console.print(f"Read: {read}. As of LSN {format_lsn(summary.last_commit_lsn)}.", markup=False)


def _table(tables: list[BackfilledTable]) -> Table:
    grid = Table()
    grid.add_column("table", overflow="fold")
    for name in ("rows", "files", "bytes", "version"):
        grid.add_column(name, justify="right")
    for name in ("done", "at"):
        grid.add_column(name, overflow="fold")
    for t in tables:
        counts = (f"{n:,}" for n in (t.table.rows, t.files, t.bytes, t.table.version))
        table = Text(printable(f"{t.table.schema}.{t.table.table}"))
        grid.add_row(table, *counts, Text(printable(t.how)), Text(printable(t.table.path)))
    return grid
