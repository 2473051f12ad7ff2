"""The maintenance job's summary, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console

from pgoutput_etl.console import counted, grid, print_parts, summary_json
from pgoutput_etl.exit_codes import quarantine_code
from pgoutput_etl.work.upkeep.retention import FileCounts


@dataclass(frozen=True, slots=True)
class MaintainedTable:
    """name: schema.table, or "ledger: table". after: None in a dry run. steps: planned or finished steps. left: reasons
    for skipped steps. rows: number of ledger rows to delete, or deleted. failed: an error ended the work on this table;
    `left` contains it."""

    name: str
    path: str
    before: FileCounts
    after: FileCounts | None = None
    steps: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    rows: int = 0
    failed: bool = False


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
        return quarantine_code(*(table.failed for table in self.tables))

    def to_json(self) -> str:
        return summary_json(self)


def print_maintenance(summary: MaintainSummary, console: Console | None = None) -> None:
    """Prints what was done, or in a rehearsal what would be."""
    fields = ("files", "small", "bytes", "stored_files", "stored_bytes")
    rows = []
    for table in summary.tables:
        before, after = table.before, table.after or table.before
        counts = [_change(getattr(before, field), getattr(after, field)) for field in fields]
        rows.append((table.name, counts, [", ".join(table.steps) or "nothing"]))
    columns = [field.replace("_", " ") for field in fields]
    print_parts([grid("table", columns, ["steps"], rows), *_lines(summary)], console)


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
    scope = f", without {counted(unlisted, 'table')} whose files can't be listed" if unlisted else ""
    before = sum(table.before.stored_bytes or 0 for table in listed)
    if not summary.executed:
        return [*lines, f"Bytes on storage: {before:,}{scope}. Dry run: nothing was changed; use --execute."]
    after = sum((table.after or table.before).stored_bytes or 0 for table in listed)
    lines.append(f"Bytes on storage: {before:,} before, {after:,} now{scope}.")
    if summary.batch:
        lines.append(f"Batch {summary.batch} of the ledger records the tables' new versions.")
    return lines
