"""What a verification tells: whether rows are the same, and what of those that are not."""

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
    """A transaction that touched keys last whose rows differ, and how many."""

    xid: int | None
    commit_lsn: int
    commit_ts: str | None
    rows: int


@dataclass(frozen=True, slots=True)
class Difference:
    """One row. kind: only_delta, only_other or differs; columns: those that differ. xmin: of the row on a server.

    delta, other: the texts of all compared columns, if values were asked for; else None.
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
    """rows, other_rows: on both sides. columns: which differ, in how many rows. written_since: differing rows that a
    transaction wrote whose xid is newer than any that was applied. unknown: values that the archive never sent, which
    are not compared. by_value: columns compared by value, not by spelling. not_compared: columns, and why.

    why_not: the table as a whole was not compared. is_held: it stands at an earlier commit, or is gone.
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
    """against: what Delta was compared with. last_commit_lsn: at which Delta was read. server_lsns: where the server's
    WAL ended before and after."""

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
        for line in _of_table(table):
            console.print(printable(line), markup=False)
    differing = [table.name for table in compared if table.differing]
    held = [table.name for table in summary.tables if table.is_held]
    if differing:
        console.print(f"Not the same: {', '.join(differing)}.", markup=False)
    elif not held:
        console.print(f"The same rows on both sides: {len(compared):,} tables.", markup=False)


def _heading(summary: VerifySummary) -> list[str]:
    lines = [f"Delta as of LSN {format_lsn(summary.last_commit_lsn)}, against {summary.against}."]
    if summary.server_lsns is not None:
        before, after = summary.server_lsns
        lines.append(
            f"The server's WAL ended at {before} before, and at {after} after. Rows written behind "
            f"{format_lsn(summary.last_commit_lsn)} may show as differences."
        )
    return [*lines, *summary.remarks]


def _table(tables: Iterable[VerifiedTable]) -> Table:
    rows = grid("table", ("rows", "there", "ranges", "differing", "only Delta", "only there", "other values"))
    for t in tables:
        counts = (t.rows, t.other_rows, t.ranges, t.ranges_differing, t.only_delta, t.only_other, t.differs)
        rows.add_row(Text(t.name), *(f"{n:,}" for n in counts))
    return rows


def _of_table(table: VerifiedTable) -> list[str]:
    if table.why_not is not None:
        return [f"Not compared: {table.name}: {table.why_not}"]
    lines = [f"{table.name}, column {name}: not compared: {why}" for name, why in table.not_compared.items()]
    if table.by_value:
        lines.append(f"{table.name}: by value, whatever its spelling: {', '.join(table.by_value)}")
    if table.unknown:
        lines.append(f"{table.name}: values that the archive never sent, and so not compared: {table.unknown:,}")
    if table.columns:
        lines.append(f"{table.name}: differing: {', '.join(f'{c} ({n:,} rows)' for c, n in table.columns.items())}")
    if table.written_since:
        lines.append(
            f"{table.name}: {table.written_since:,} of these rows were written there by transactions newer than any "
            "that was applied: the next night may bring them"
        )
    lines += [
        f"{table.name}: {touched.rows:,} rows last touched by transaction {touched.xid}, committed at "
        f"{format_lsn(touched.commit_lsn)}, {touched.commit_ts}"
        for touched in table.transactions
    ]
    return lines + [f"{table.name}: {_said(difference)}" for difference in table.differences]


def _said(row: Difference) -> str:
    parts = [_KINDS[row.kind] if row.rows == 1 else f"{_KINDS[row.kind]}, {row.rows:,} times"]
    if row.columns:
        parts.append(f"in {', '.join(row.columns)}")
    if row.commit_lsn is not None:
        parts.append(f"touched last by transaction {row.xid} at {format_lsn(row.commit_lsn)}, {row.commit_ts}")
    if row.xmin is not None:
        parts.append(f"written there by transaction {row.xmin}")
    for side, values in (("Delta", row.delta), ("there", row.other)):
        if values is not None:
            parts.append(f"{side}: " + ", ".join(f"{n}={'NULL' if v is None else repr(v)}" for n, v in values.items()))
    return "; ".join(parts)
