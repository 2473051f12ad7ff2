"""What a run would do: a summary for people, the same for programs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgoutput_etl.console import EXIT_DONE, EXIT_QUARANTINE, grid, own_console, summary_json
from pgoutput_etl.identifiers import printable
from pgoutput_etl.lsn import format_lsn

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """what: new, grown (read on from `offset`), duplicate, moved, same or refused. size: bytes, as landed."""

    path: str
    what: str
    size: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class PlannedTransaction:
    """One that would wait. kind: ordinary, streamed or prepared."""

    xid: int | None
    kind: str
    gid: str | None


@dataclass(frozen=True, slots=True)
class PlannedType:
    """A column whose values the target has as something else. why: `text` (PostgreSQL's, in a STRING) or
    `unrepresentable` (some values have no place in it); found: how many of the batch's changes have such a value."""

    column: str
    type: str
    delta_type: str
    why: str
    found: int = 0


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """rows_in: committed changes by kind. inserted, updated, deleted: the net effect on rows, as apply would report it.

    is_exact: that depends on nothing but the archive; otherwise it takes for granted that the table has the rows that
    updates and deletes are about, and none that inserts bring. held: why it would be left where it stands.
    """

    schema: str
    table: str
    path: str
    rows_in: dict[str, int]
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    is_exact: bool = False
    is_new: bool = False
    has_key: bool = True
    schema_changes: tuple[str, ...] = ()
    types: tuple[PlannedType, ...] = ()
    held: str | None = None


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """What apply would do. batch: the number that it would have; 0 if there is nothing to do. resumes: an earlier run
    began it and died. later_files: what further batches of the same run would read; later_batches: how many of them,
    None where that takes a look into the files."""

    source: str
    batch: int
    last_commit_lsn: int
    resumes: bool = False
    files: tuple[PlannedFile, ...] = ()
    bytes: int = 0
    messages: dict[str, int] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    unknown_prepared: int = 0
    tables: tuple[PlannedTable, ...] = ()
    waiting: tuple[PlannedTransaction, ...] = ()
    skipped: tuple[str, ...] = ()
    vacated: tuple[str, ...] = ()
    content_bytes: int = 0
    accounts: dict[str, int] = field(default_factory=dict)
    damages: tuple[str, ...] = ()
    refused_files: tuple[str, ...] = ()
    files_not_read: tuple[str, ...] = ()
    later_files: tuple[str, ...] = ()
    later_batches: int | None = 0
    remarks: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        is_whole = not self.damages and not self.refused_files and not any(table.held for table in self.tables)
        return EXIT_DONE if is_whole else EXIT_QUARANTINE

    def to_json(self) -> str:
        return summary_json(self, lsn=format_lsn(self.last_commit_lsn))


def print_plan(plan: PlanSummary, console: Console | None = None) -> None:
    """Prints what the next batch would do."""
    console = console or own_console()
    for line in _heading(plan):
        console.print(printable(line), markup=False)
    if plan.files:
        console.print(_files(plan.files))
    done = [table for table in plan.tables if table.held is None]
    if done:
        console.print(_tables(done))
    for line in _remarks(plan):
        console.print(printable(line), markup=False)
    console.print("Nothing was written.", markup=False)


def _heading(plan: PlanSummary) -> list[str]:
    if not plan.files:
        return [f"Nothing new in the landing folder of {plan.source}."]
    read = [file for file in plan.files if file.what in ("new", "grown")]
    counts = f"{len(read):,} files, {plan.bytes:,} bytes, {sum(plan.messages.values()):,} messages"
    lines = [f"Batch {plan.batch} of {plan.source} would read {counts}."]
    if plan.resumes:
        lines.append("An earlier run began it and died: it would be finished first, with the files that it had.")
    ended = ", ".join(f"{count:,} {status}" for status, count in plan.transactions.items() if count)
    return [*lines, f"Transactions: {ended or 'none'}."]


def _files(files: tuple[PlannedFile, ...]) -> Table:
    rows = grid("file", ["bytes"], ["is"])
    for file in files[:_SHOWN]:
        what = f"{file.what}, from offset {file.offset:,} on" if file.what == "grown" else file.what
        rows.add_row(Text(printable(file.path)), f"{file.size:,}", what)
    if len(files) > _SHOWN:
        rows.add_row(f"… and {len(files) - _SHOWN:,} more")
    return rows


def _tables(tables: Iterable[PlannedTable]) -> Table:
    rows = grid("table", ("I", "U", "D", "T", "inserted", "updated", "deleted"), ["notes"])
    for table in tables:
        counts = (f"{table.rows_in[tag]:,}" for tag in "IUDT")
        sign = "" if table.is_exact else "≈"
        net = (f"{sign}{n:,}" for n in (table.inserted, table.updated, table.deleted))
        rows.add_row(
            Text(printable(f"{table.schema}.{table.table}")), *counts, *net, Text(printable("; ".join(_notes(table))))
        )
    return rows


def _notes(table: PlannedTable) -> list[str]:
    notes = ["new"] if table.is_new else []
    notes += table.schema_changes
    return notes if table.has_key else [*notes, "no key: rows are told by all of their columns"]


def _remarks(plan: PlanSummary) -> list[str]:
    lines = []
    if any(not table.is_exact and table.held is None for table in plan.tables):
        lines.append("≈: if the table has the rows that are updated and deleted, and none that are inserted.")
    for table in plan.tables:
        lines += _of_table(table)
    lines += _in_quarantine(plan)
    lines += [*plan.files_not_read[:_SHOWN], *plan.remarks]
    if plan.skipped:
        lines.append(f"Skipped, as configured: {', '.join(plan.skipped)}")
    lines += [f"Would be emptied, as its table has another place: {path}" for path in plan.vacated]
    lines += _waiting(plan.waiting)
    if plan.later_files:
        several = "batches" if plan.later_batches is None else f"{plan.later_batches:,} batches"
        which = "a batch" if plan.later_batches == 1 else several
        lines.append(f"After it, in {which} of their own: {len(plan.later_files):,} files. Plan again then.")
    if plan.accounts:
        parts = ", ".join(f"{size:,} {name}" for name, size in plan.accounts.items() if size or name == "applied")
        lines.append(f"Of {plan.content_bytes:,} bytes of content: {parts}.")
    if plan.last_commit_lsn:
        lines.append(f"Tables would be consistent through LSN {format_lsn(plan.last_commit_lsn)}.")
    return lines


def _of_table(table: PlannedTable) -> list[str]:
    name = f"{table.schema}.{table.table}"
    lines = [] if table.held is None else [f"Would be left where it stands: {name}: {table.held}"]
    as_text = [f"{each.column} {each.type}" for each in table.types if each.why == "text"]
    if as_text:
        lines.append(f"As PostgreSQL's text, in {name}: {', '.join(as_text)}.")
    odd = [_odd(each) for each in table.types if each.why == "unrepresentable"]
    return [*lines, f"Not every value has its place, in {name}: {', '.join(odd)}."] if odd else lines


def _in_quarantine(plan: PlanSummary) -> list[str]:
    """Without files nothing would be set aside: earlier runs did that."""
    where, how = ("Would be in", "Would not be") if plan.files else ("In", "Not")
    lines = [f"{where} quarantine: {line}" for line in plan.damages]
    if plan.transactions.get("quarantined"):
        lines.append(f"{where} quarantine, in part unreadable: {plan.transactions['quarantined']:,} transactions.")
    return [*lines, *(f"{how} applied: {line}" for line in plan.refused_files)]


def _waiting(waiting: Sequence[PlannedTransaction]) -> list[str]:
    lines = []
    for each in waiting[:_SHOWN]:
        gid = "" if each.gid is None else f" ({each.gid})"
        xid = "an unknown transaction" if each.xid is None else f"transaction {each.xid}"
        lines.append(f"Would wait for its end: {xid}{gid}, {each.kind}.")
    more = len(waiting) - _SHOWN
    return lines if more <= 0 else [*lines, f"… and {more:,} more that would wait"]


def _odd(each: PlannedType) -> str:
    found = f", {each.found:,} in this batch" if each.found else ""
    return f"{each.column} {each.type} as {each.delta_type}{found}"
