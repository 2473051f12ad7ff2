"""Maintenance's summary, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgoutput_etl.console import EXIT_DONE, grid, own_console, summary_json
from pgoutput_etl.identifiers import printable
from pgoutput_etl.jobs.maintain.retention import FileCounts


@dataclass(frozen=True, slots=True)
class MaintainedTable:
    """name: schema.table, or "ledger: table". after: None in a dry run. steps: planned or finished steps. left: reasons
    for skipped steps. rows: ledger rows to delete, or deleted."""

    name: str
    path: str
    before: FileCounts
    after: FileCounts | None = None
    steps: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    rows: int = 0


@dataclass(frozen=True, slots=True)
class MaintainSummary:
    """batch: the number of the batch that records the tables' new versions; 0 if no version changed."""

    source: str
    executed: bool
    batch: int
    tables: tuple[MaintainedTable, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return EXIT_DONE

    def to_json(self) -> str:
        return summary_json(self)


def print_maintenance(summary: MaintainSummary, console: Console | None = None) -> None:
    console = console or own_console()
    if summary.tables:
        console.print(_table(summary.tables))
    for line in _lines(summary):
        console.print(printable(line), markup=False)


def _table(tables: Iterable[MaintainedTable]) -> Table:
    rows = grid("table", ("files", "small", "bytes", "stored files", "stored bytes"), ["steps"])
    for table in tables:
        before, after = table.before, table.after
        counts = [
            _change(before.files, None if after is None else after.files),
            _change(before.small, None if after is None else after.small),
            _change(before.bytes, None if after is None else after.bytes),
            _change(before.stored_files, None if after is None else after.stored_files),
            _change(before.stored_bytes, None if after is None else after.stored_bytes),
        ]
        rows.add_row(Text(printable(table.name)), *counts, Text(", ".join(table.steps) or "nothing"))
    return rows


def _change(before: int | None, after: int | None) -> str:
    if before is None:
        return "?"
    return f"{before:,}" if after in (None, before) else f"{before:,} → {after:,}"


def _lines(summary: MaintainSummary) -> list[str]:
    lines = list(summary.remarks)
    lines += [f"{table.name}: {why}" for table in summary.tables for why in table.left]
    rows = sum(table.rows for table in summary.tables)
    if rows:
        lines.append(f"Obsolete ledger rows{' deleted' * summary.executed}: {rows:,}.")
    listed = [table for table in summary.tables if table.before.stored_bytes is not None]
    unlisted = len(summary.tables) - len(listed)
    scope = f", without {unlisted:,} tables whose files can't be listed" if unlisted else ""
    before = sum(table.before.stored_bytes or 0 for table in listed)
    if not summary.executed:
        return [*lines, f"Bytes on storage: {before:,}{scope}. Dry run: nothing was changed; use --execute."]
    after = sum((table.after or table.before).stored_bytes or 0 for table in listed)
    lines.append(f"Bytes on storage: {before:,} before, {after:,} now{scope}.")
    if summary.batch:
        lines.append(f"Batch {summary.batch} of the ledger records the tables' new versions.")
    return lines
