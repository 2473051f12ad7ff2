"""The plan of a run, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from pgoutput_etl.answers.command_line import seen_from_here
from pgoutput_etl.answers.next_commands import NextCommand, next_lines
from pgoutput_etl.console import Row, content_line, counted, grid, print_parts, shortened, summary_json
from pgoutput_etl.exit_codes import quarantine_code
from pgoutput_etl.load.summary import unchanged_lines
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.targets.condition import TableCondition, condition_lines, consistency_line, excepted_tables

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """what: new, grown (read from `offset`), duplicate, moved, same or refused. size: bytes, as landed."""

    path: str
    what: str
    size: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class PlannedTransaction:
    """A transaction whose end would still be missing. kind: ordinary, streamed, or prepared."""

    xid: int | None
    kind: str
    gid: str | None


@dataclass(frozen=True, slots=True)
class PlannedType:
    """A column that the target stores with another type. why: `text` (PostgreSQL's text, in a STRING) or
    `unrepresentable` (the Delta type can't hold some values). found: number of the batch's changes with such a
    value."""

    column: str
    type: str
    delta_type: str
    why: str
    found: int = 0


@dataclass(frozen=True, slots=True)
class StoredSize:
    """A table's rows (None if unknown), files, and bytes before the batch: the most that a MERGE could read."""

    rows: int | None
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """rows_in: committed changes by message type. inserted, updated, deleted: the net effect on rows. stored: None for
    a new table.

    is_exact: the net effect depends only on the archive. Otherwise it assumes that the table has all rows that are
    updated or deleted, and none that are inserted. held: why the table would not be changed.
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
    layout: tuple[str, ...] = ()
    types: tuple[PlannedType, ...] = ()
    held: str | None = None
    stored: StoredSize | None = None

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"


@dataclass(frozen=True, slots=True)
class PlannedCommand:
    """A command that changed a table's definition, known from a catalog Message."""

    commit_lsn: str
    command: str
    schema: str
    table: str
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """The next batch. batch: its number, or the last batch's if nothing is new. resumes: an earlier run began it and
    died. conditions: of all tables after the batch, except tables that it would hold. vacated: paths that would be
    emptied. later_files: files of further batches of the same run. later_batches: their number; None if only scanning
    the files would tell. next: the commands to run now. commands: in commit order."""

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
    conditions: tuple[TableCondition, ...] = ()
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
    next: tuple[NextCommand, ...] = ()
    commands: tuple[PlannedCommand, ...] = ()

    @property
    def exit_code(self) -> int:
        held = (table.held for table in self.tables)
        return quarantine_code(self.damages, self.refused_files, self.conditions, *held)

    @property
    def excepted(self) -> dict[str, str]:
        """The tables that would not be consistent with the others, by name, each with a one-word reason."""
        held = {table.name: "held" for table in self.tables if table.held is not None}
        return {**excepted_tables(self.conditions), **held}

    def to_json(self) -> str:
        return summary_json(self, lsn=format_lsn(self.last_commit_lsn))


def print_plan(plan: PlanSummary, console: Console | None = None) -> None:
    """Prints what the next batch would do."""
    tables = [_files(plan.files), _tables(table for table in plan.tables if table.held is None)]
    tables.append(_commands(plan.commands))
    print_parts([*_heading(plan), *tables, *_remarks(plan), "Nothing was written."], console)
    print_parts(next_lines(plan.next), console, soft_wrap=True)


def _heading(plan: PlanSummary) -> list[str]:
    if not plan.files:
        return [f"Nothing new in the landing folder of {plan.source}."]
    files = sum(file.what in ("new", "grown") for file in plan.files)
    messages = counted(sum(plan.messages.values()), "message")
    counts = f"{counted(files, 'file')}, {counted(plan.bytes, 'byte')}, {messages}"
    resumed = ["An earlier run began this batch and died: apply would finish it first, with the same files."]
    statuses = ", ".join(f"{count:,} {status}" for status, count in plan.transactions.items() if count)
    return [
        f"Batch {plan.batch} of {plan.source} would read {counts}.",
        *(resumed if plan.resumes else []),
        f"Transactions: {statuses or 'none'}.",
    ]


def _files(files: Iterable[PlannedFile]) -> Table:
    rows: list[Row] = []
    for file in files:
        status = f"{file.what}, from offset {file.offset:,}" if file.what == "grown" else file.what
        rows.append((seen_from_here(file.path), [file.size], [status]))
    return grid("file", ["bytes"], ["status"], rows, _SHOWN)


def _tables(tables: Iterable[PlannedTable]) -> Table:
    rows: list[Row] = []
    for table in tables:
        sign = "" if table.is_exact else "≈"
        effects = (f"{sign}{count:,}" for count in (table.inserted, table.updated, table.deleted))
        notes = ["new"] if table.is_new else []
        notes += [*table.schema_changes, *table.layout]
        notes += [] if table.has_key else ["no key: all columns identify a row"]
        rows.append((table.name, [*(table.rows_in[tag] for tag in "IUDT"), *effects], [_size(table), "; ".join(notes)]))
    numbers = ("I", "U", "D", "T", "inserted", "updated", "deleted")
    return grid("table", numbers, ["now in the target", "notes"], rows, rare="T")


def _size(table: PlannedTable) -> str:
    stored = table.stored
    return "" if stored is None else f"{counted(stored.bytes, 'byte')} in {counted(stored.files, 'file')}"


def _commands(commands: Iterable[PlannedCommand]) -> Table:
    rows: list[Row] = [(c.commit_lsn, (), (c.command, f"{c.schema}.{c.table}", "; ".join(c.changes))) for c in commands]
    return grid("schema change at", (), ("command", "table", "changes"), rows, _SHOWN)


def _remarks(plan: PlanSummary) -> list[str]:
    lines = []
    if any(not table.is_exact and table.held is None for table in plan.tables):
        lines.append("≈: if the table has the rows that are updated and deleted, and none that are inserted.")
    for table in plan.tables:
        lines += _table_lines(table)
    lines += condition_lines(plan.conditions)
    lines += _quarantine_lines(plan)
    lines += [*shortened(plan.files_not_read, _SHOWN, "files"), *plan.remarks]
    lines += unchanged_lines((), plan.skipped)
    lines += [f"Would be emptied, because its table moves: {path}" for path in plan.vacated]
    lines += shortened([_waiting_line(transaction) for transaction in plan.waiting], _SHOWN, "that would wait")
    if plan.later_files:
        several = "later batches" if plan.later_batches is None else f"{plan.later_batches:,} later batches"
        batches = "a later batch" if plan.later_batches == 1 else several
        lines.append(f"In {batches}: {counted(len(plan.later_files), 'file')}. Plan again after this batch.")
    if plan.accounts:
        lines.append(content_line(plan.content_bytes, plan.accounts))
    if plan.last_commit_lsn:
        lines.append(consistency_line(plan.last_commit_lsn, plan.excepted, "would be"))
    return lines


def _table_lines(table: PlannedTable) -> list[str]:
    """The lines of one table. Columns that lose nothing in this batch are only in the JSON."""
    lines = [] if table.held is None else [f"Would not be changed: {table.name}: {table.held}"]
    affected = [_unrepresentable(column) for column in table.types if column.found]
    return [*lines, f"Kept as text beside the column, in {table.name}: {', '.join(affected)}."] if affected else lines


def _unrepresentable(column: PlannedType) -> str:
    return f"{counted(column.found, 'value')} of {column.column} that {column.delta_type} can't hold ({column.type})"


def _quarantine_lines(plan: PlanSummary) -> list[str]:
    """Lines about quarantined data of this batch or, if it has no files, of earlier runs."""
    quarantine, applied = ("Would be in", "Would not be") if plan.files else ("In", "Not")
    lines = [f"{quarantine} quarantine: {line}" for line in plan.damages]
    if plan.transactions.get("quarantined"):
        count = plan.transactions["quarantined"]
        lines.append(f"{quarantine} quarantine, because partly unreadable: {counted(count, 'transaction')}.")
    return [*lines, *(f"{applied} applied: {line}" for line in plan.refused_files)]


def _waiting_line(transaction: PlannedTransaction) -> str:
    gid = "" if transaction.gid is None else f" ({transaction.gid})"
    xid = "an unknown transaction" if transaction.xid is None else f"transaction {transaction.xid}"
    return f"Would wait for its end: {xid}{gid}, {transaction.kind}."
