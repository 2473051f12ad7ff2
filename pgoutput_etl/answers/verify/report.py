"""The verify job's summary, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from pgoutput_etl.console import Row, counted, grid, print_parts, summary_json
from pgoutput_etl.exit_codes import EXIT_DIFFERENT, EXIT_DONE, EXIT_TRY_LATER
from pgoutput_etl.identifiers import printable
from pgoutput_etl.load.summary import NO_CHANGES, ChangedTables
from pgoutput_etl.lsn import format_lsn

_KINDS = {"only_delta": "only in Delta", "only_other": "only on the other side", "differs": "differs"}


@dataclass(frozen=True, slots=True)
class LastWriter:
    """The transaction that last changed `rows` of the differing rows."""

    xid: int | None
    commit_lsn: int
    commit_ts: str | None
    rows: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A differing row. kind: only_delta, only_other, or differs; columns: names of the differing columns.

    key: the texts of the key's columns, or None without --keys. delta, other: the texts of all compared columns, or
    None without --values.
    """

    kind: str
    rows: int
    columns: tuple[str, ...]
    xid: int | None
    commit_lsn: int | None
    commit_ts: str | None
    key: dict[str, str | None] | None = None
    delta: dict[str, str | None] | None = None
    other: dict[str, str | None] | None = None


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """rows, other_rows: row counts of both sides. columns: number of differing rows, by column. unknown: number of
    values that the archive never sent and that are therefore not compared. by_value: columns compared by value, not by
    spelling. not_compared: reasons, by column.

    why_not: the reason why the whole table was not compared. is_held: the table is held, is missing, or can't be read.
    is_undecided: the next run can compare it. rows_unread: number of rows in ranges that differ and whose rows were not
    kept. ranges_skipped: by --since; `rows` excludes their rows. repair: what happened to the differences; is_repaired:
    no differences remain.
    """

    schema: str
    table: str
    rows: int = 0
    other_rows: int = 0
    ranges: int = 0
    ranges_differing: int = 0
    ranges_skipped: int = 0
    only_delta: int = 0
    only_other: int = 0
    differs: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    unknown: int = 0
    by_value: tuple[str, ...] = ()
    not_compared: dict[str, str] = field(default_factory=dict)
    transactions: tuple[LastWriter, ...] = ()
    differences: tuple[Difference, ...] = ()
    why_not: str | None = None
    is_held: bool = False
    is_undecided: bool = False
    rows_unread: int = 0
    repair: str | None = None
    is_repaired: bool = False

    @property
    def differing(self) -> int:
        """The number of rows that differ. A range whose rows were not kept counts as one."""
        return self.only_delta + self.only_other + self.differs + (self.rows_unread > 0)

    @property
    def is_different(self) -> bool:
        """True if differences remain."""
        return self.differing > 0 and not self.is_repaired

    @property
    def is_equal(self) -> bool:
        return self.why_not is None and not self.differing

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def name(self) -> str:
        return printable(self.full_name)


@dataclass(frozen=True, slots=True)
class AskedMoment:
    """lsn: the server's snapshot had all transactions that committed before it. at: ISO 8601. tables: those in which
    Delta differed."""

    lsn: int
    at: str
    tables: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VerifySummary:
    """against: URL or path of the other side. last_commit_lsn: the commit as of which Delta was read. server_lsns: the
    end of the server's WAL before and after the comparison. next_command: repairs tables that differ. asked: what the
    next run will settle. is_decided: False if only that remains. changed: by --repair."""

    source: str
    against: str
    last_commit_lsn: int
    tables: tuple[VerifiedTable, ...] = ()
    server_lsns: tuple[str, str] | None = None
    remarks: tuple[str, ...] = ()
    next_command: str | None = None
    asked: AskedMoment | None = None
    is_decided: bool = True
    changed: ChangedTables = NO_CHANGES

    @property
    def exit_code(self) -> int:
        if not self.is_decided:
            return EXIT_TRY_LATER
        if any(table.is_different or table.is_held for table in self.tables):
            return EXIT_DIFFERENT
        is_open = self.asked is None and any(table.is_undecided for table in self.tables)
        return EXIT_TRY_LATER if is_open else EXIT_DONE

    def to_json(self) -> str:
        return summary_json(self, lsn=format_lsn(self.last_commit_lsn))


def print_verification(summary: VerifySummary, console: Console | None = None) -> None:
    """Prints the verdict, then the tables, then a sample of the rows that differ."""
    lines = [line for table in summary.tables for line in _table_lines(table)]
    print_parts([_verdict(summary), _grid(summary), *lines], console)
    print_parts([*_skipped_lines(summary), *_server_lines(summary), *_asked_lines(summary), *summary.remarks], console)
    if summary.next_command is not None:
        is_exact = summary.server_lsns is None
        advice = "Run this" if is_exact else "Unless later commits explain the differences, run this"
        print_parts([f"{advice}, and verify again:"], console)
        print_parts([f"  {summary.next_command}"], console, soft_wrap=True)


def _verdict(summary: VerifySummary) -> str:
    compared = [table for table in summary.tables if table.why_not is None]
    differing = [table.name for table in compared if table.differing]
    held = [table.name for table in summary.tables if table.is_held]
    tables = counted(len(compared), "table")
    place = f"as of LSN {format_lsn(summary.last_commit_lsn)}, compared with {summary.against}"
    if differing:
        verb = "differs" if len(differing) == 1 else "differ"
        verdict = f"{len(differing):,} of {tables} {verb}, {place}: {', '.join(differing)}."
    elif compared:
        rows = counted(sum(table.rows for table in compared), "row")
        verdict = f"Equal: {tables}, {rows}, {place}."
    else:
        verdict = f"Nothing was compared, {place}."
    return f"{verdict} Held, missing, or unreadable: {', '.join(held)}." if held else verdict


def _grid(summary: VerifySummary) -> Table:
    """The table to print, without columns that are empty for every table."""
    compared = [table for table in summary.tables if table.why_not is None]
    has_other = any(table.other_rows != table.rows for table in compared)
    has_ranges = any(table.ranges_differing for table in compared)
    rows: list[Row] = []
    for t in compared:
        sizes = (t.rows, t.other_rows if has_other else "", t.ranges if has_ranges else "")
        rows.append((t.name, (*sizes, t.ranges_differing, t.only_delta, t.only_other, t.differs), ()))
    rare = ("differing", "only Delta", "only other", "different values")
    return grid("table", ("rows", "other rows", "ranges", *rare), (), rows, rare=rare)


def _skipped_lines(summary: VerifySummary) -> list[str]:
    skipped = sum(table.ranges_skipped for table in summary.tables)
    ranges = counted(sum(table.ranges for table in summary.tables), "range")
    line = f"Not compared: {skipped:,} of {ranges}, in which no row was written since they were last found equal."
    return [f"{line} Damage there stays unseen."] if skipped else []


def _server_lines(summary: VerifySummary) -> list[str]:
    if summary.server_lsns is None:
        return []
    before, after = summary.server_lsns
    lsn = format_lsn(summary.last_commit_lsn)
    ends = f"The server's WAL ended at {before} before the comparison and at {after} after it."
    return [f"{ends} Rows written after {lsn} may appear as differences."]


def _asked_lines(summary: VerifySummary) -> list[str]:
    asked = summary.asked
    if asked is None:
        return []
    lsn, count = format_lsn(asked.lsn), counted(len(asked.tables), "table")
    if not asked.tables:
        return [f"Asked the server at {asked.at}, as of LSN {lsn}: it equals Delta already."]
    behind = f"{count} that Delta may only lag behind in: {', '.join(asked.tables)}"
    asking = f"Asked the server at {asked.at}, as of LSN {lsn}, which no apply has passed yet: {behind}."
    return [f"{asking} Once one has, verify --finish compares them as of that LSN."]


def _table_lines(table: VerifiedTable) -> list[str]:
    if table.why_not is not None:
        return [f"Not compared: {table.name}: {table.why_not}"]
    lines = [f"{table.name}, column {name}: not compared: {why}" for name, why in table.not_compared.items()]
    if table.by_value:
        lines.append(f"{table.name}: compared by value, not by spelling: {', '.join(table.by_value)}")
    if table.unknown:
        lines.append(f"{table.name}: values never sent to the archive, not compared: {table.unknown:,}")
    if table.columns:
        columns = ", ".join(f"{name} ({counted(rows, 'row')})" for name, rows in table.columns.items())
        lines.append(f"{table.name}: differing: {columns}")
    if table.rows_unread:
        lines.append(
            f"{table.name}: {counted(table.rows_unread, 'row')} in ranges that differ, too many to be kept: verify "
            "again, which finds the rows"
        )
    lines += [
        f"{table.name}: {counted(writer.rows, 'row')} last touched by transaction {writer.xid}, committed at "
        f"{format_lsn(writer.commit_lsn)}, {writer.commit_ts}"
        for writer in table.transactions
    ]
    lines += [f"{table.name}: {_difference_line(difference)}" for difference in table.differences]
    if table.repair is not None:
        lines.append(f"{table.name}: {table.repair}")
    more = table.differing - sum(difference.rows for difference in table.differences)
    if table.differences and more > 0:
        lines.append(f"{table.name}: … and {counted(more, 'more differing row')}; --limit lists more")
    return lines


def _difference_line(row: Difference) -> str:
    parts = [_KINDS[row.kind] if row.rows == 1 else f"{_KINDS[row.kind]}, {row.rows:,} times"]
    if row.columns:
        parts.append(f"in {', '.join(row.columns)}")
    if row.commit_lsn is not None:
        parts.append(f"last touched by transaction {row.xid} at {format_lsn(row.commit_lsn)}, {row.commit_ts}")
    for side, values in (("key", row.key), ("Delta", row.delta), ("other side", row.other)):
        if values is not None:
            parts.append(f"{side}: " + ", ".join(f"{n}={'NULL' if v is None else repr(v)}" for n, v in values.items()))
    return "; ".join(parts)
