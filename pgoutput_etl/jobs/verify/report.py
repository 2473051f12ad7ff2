"""A verification's summary, as JSON and as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgoutput_etl.console import grid, own_console, summary_json
from pgoutput_etl.identifiers import printable
from pgoutput_etl.lsn import format_lsn

EXIT_SAME, EXIT_DIFFERENT = 0, 3

_KINDS = {"only_delta": "only in Delta", "only_other": "only on the other side", "differs": "differs"}


@dataclass(frozen=True, slots=True)
class LastWriter:
    """The transaction that last touched `rows` of the differing rows."""

    xid: int | None
    commit_lsn: int
    commit_ts: str | None
    rows: int


@dataclass(frozen=True, slots=True)
class Difference:
    """One differing row. kind: only_delta, only_other or differs; columns: names of the differing columns; xmin: the
    server row's xmin.

    delta, other: the texts of all compared columns, or None without --values.
    """

    kind: str
    rows: int
    columns: tuple[str, ...]
    xid: int | None
    commit_lsn: int | None
    commit_ts: str | None
    xmin: int | None = None
    delta: dict[str, str | None] | None = None
    other: dict[str, str | None] | None = None


@dataclass(frozen=True, slots=True)
class VerifiedTable:
    """rows, other_rows: row counts of both sides. columns: number of differing rows by column. written_since: differing
    rows whose xmin is newer than every applied xid. unknown: values that the archive never sent and that are therefore
    not compared. by_value: columns compared by value, not by spelling. not_compared: the reason by column.

    why_not: the reason why the whole table was not compared. is_held: the table is held, or is missing.
    """

    schema: str
    table: str
    rows: int = 0
    other_rows: int = 0
    ranges: int = 0
    ranges_differing: int = 0
    only_delta: int = 0
    only_other: int = 0
    differs: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    written_since: int = 0
    unknown: int = 0
    by_value: tuple[str, ...] = ()
    not_compared: dict[str, str] = field(default_factory=dict)
    transactions: tuple[LastWriter, ...] = ()
    differences: tuple[Difference, ...] = ()
    why_not: str | None = None
    is_held: bool = False

    @property
    def differing(self) -> int:
        return self.only_delta + self.only_other + self.differs

    @property
    def name(self) -> str:
        return printable(f"{self.schema}.{self.table}")


@dataclass(frozen=True, slots=True)
class VerifySummary:
    """against: URL or path of the other side. last_commit_lsn: the commit as of which Delta was read. server_lsns: the
    end of the server's WAL before and after the comparison."""

    source: str
    against: str
    last_commit_lsn: int
    tables: tuple[VerifiedTable, ...] = ()
    server_lsns: tuple[str, str] | None = None
    remarks: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        return EXIT_DIFFERENT if any(table.differing or table.is_held for table in self.tables) else EXIT_SAME

    def to_json(self) -> str:
        return summary_json(self, lsn=format_lsn(self.last_commit_lsn))


def print_verification(summary: VerifySummary, console: Console | None = None) -> None:
    """Prints the verdict, and the rows that differ."""
    console = console or own_console()
    for line in _heading(summary):
        console.print(printable(line), markup=False)
    compared = [table for table in summary.tables if table.why_not is None]
    if compared:
        console.print(_table(compared))
    for table in summary.tables:
        for line in _table_lines(table):
            console.print(printable(line), markup=False)
    differing = [table.name for table in compared if table.differing]
    held = [table.name for table in summary.tables if table.is_held]
    if differing:
        console.print(f"Tables that differ: {', '.join(differing)}.", markup=False)
    elif not held:
        console.print(f"Tables with the same rows on both sides: {len(compared):,}.", markup=False)


def _heading(summary: VerifySummary) -> list[str]:
    lsn = format_lsn(summary.last_commit_lsn)
    lines = [f"Delta as of LSN {lsn}, compared with {summary.against}."]
    if summary.server_lsns is not None:
        before, after = summary.server_lsns
        lines.append(
            f"The server's WAL ended at {before} before the comparison and at {after} after it. Rows written after "
            f"{lsn} may appear as differences."
        )
    return [*lines, *summary.remarks]


def _table(tables: Iterable[VerifiedTable]) -> Table:
    rows = grid("table", ("rows", "other rows", "ranges", "differing", "only Delta", "only other", "different values"))
    for t in tables:
        counts = (t.rows, t.other_rows, t.ranges, t.ranges_differing, t.only_delta, t.only_other, t.differs)
        rows.add_row(Text(t.name), *(f"{n:,}" for n in counts))
    return rows


def _table_lines(table: VerifiedTable) -> list[str]:
    if table.why_not is not None:
        return [f"Not compared: {table.name}: {table.why_not}"]
    lines = [f"{table.name}, column {name}: not compared: {why}" for name, why in table.not_compared.items()]
    if table.by_value:
        lines.append(f"{table.name}: compared by value, not by spelling: {', '.join(table.by_value)}")
    if table.unknown:
        lines.append(f"{table.name}: values never sent to the archive, not compared: {table.unknown:,}")
    if table.columns:
        lines.append(f"{table.name}: differing: {', '.join(f'{c} ({n:,} rows)' for c, n in table.columns.items())}")
    if table.written_since:
        lines.append(
            f"{table.name}: {table.written_since:,} of these rows were written on the server by transactions newer "
            "than all applied ones: the next night may bring them"
        )
    lines += [
        f"{table.name}: {writer.rows:,} rows last touched by transaction {writer.xid}, committed at "
        f"{format_lsn(writer.commit_lsn)}, {writer.commit_ts}"
        for writer in table.transactions
    ]
    return lines + [f"{table.name}: {_difference_line(difference)}" for difference in table.differences]


def _difference_line(row: Difference) -> str:
    parts = [_KINDS[row.kind] if row.rows == 1 else f"{_KINDS[row.kind]}, {row.rows:,} times"]
    if row.columns:
        parts.append(f"in {', '.join(row.columns)}")
    if row.commit_lsn is not None:
        parts.append(f"last touched by transaction {row.xid} at {format_lsn(row.commit_lsn)}, {row.commit_ts}")
    if row.xmin is not None:
        parts.append(f"written on the server by transaction {row.xmin}")
    for side, values in (("Delta", row.delta), ("other side", row.other)):
        if values is not None:
            parts.append(f"{side}: " + ", ".join(f"{n}={'NULL' if v is None else repr(v)}" for n, v in values.items()))
    return "; ".join(parts)
