"""Compares each table with the server's: equal, reported by the job, or other, which is a wrong row without a word."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.identifiers import name_of
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.types.canonical_text import ComparedColumn, canonical_texts

Text = str | None


@dataclass(frozen=True, slots=True)
class ServerTable:
    """A published table on the server. types: the OIDs of its columns' types. rows: PostgreSQL's texts."""

    oid: int
    schema: str
    name: str
    columns: tuple[str, ...]
    types: tuple[int, ...]
    rows: tuple[tuple[Text, ...], ...]

    @property
    def full_name(self) -> str:
        return name_of(f"{self.schema}.{self.name}".encode("utf-8", "surrogateescape"))


@dataclass(frozen=True, slots=True)
class AppliedTable:
    """A table as a reader finds it under its name. columns: without those that PostgreSQL has dropped. rows:
    PostgreSQL's texts of the columns. masked: other columns, which have the configuration's values."""

    relation: Relation
    columns: tuple[ComparedColumn, ...]
    rows: tuple[tuple[Text, ...], ...]
    masked: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class AppliedNight:
    """A night's result. reported: the tables that its summary names with a state other than consistent. tables: by
    schema.table. error: the error that stopped the run."""

    exit_code: int
    reported: frozenset[str]
    tables: Mapping[str, AppliedTable]
    error: str = ""

    @property
    def is_finished(self) -> bool:
        return self.exit_code in (EXIT_DONE, EXIT_QUARANTINE)


class Verdict(Enum):
    EQUAL = "equal"
    REPORTED = "said"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Judgment:
    """rows: of the server. difference: from the server's table; empty if there is none. is_reported: the job names the
    table, even without a difference. limit: the documented one that explains the difference."""

    verdict: Verdict
    rows: int
    difference: str
    is_reported: bool
    limit: str = ""


def is_unknown(night: AppliedNight, table: ServerTable) -> bool:
    """True for a table that no reader finds and no change in the archive belongs to."""
    known = {applied.relation.oid for applied in night.tables.values()}
    return night.is_finished and table.oid not in known and table.full_name not in night.tables


def judge(night: AppliedNight, tables: Iterable[ServerTable]) -> dict[str, Judgment]:
    """By schema.table. A run that fails reports nothing: it leaves all tables behind, and the next run fails again."""
    return {table.full_name: _judged(night, table) for table in tables}


def _judged(night: AppliedNight, table: ServerTable) -> Judgment:
    difference = difference_of(table, night.tables.get(table.full_name))
    is_reported, rows = table.full_name in night.reported, len(table.rows)
    if not night.is_finished:
        return Judgment(Verdict.OTHER, rows, f"exit code {night.exit_code}: {night.error}; {difference}", False)
    if not difference:
        return Judgment(Verdict.EQUAL, rows, "", is_reported)
    return Judgment(Verdict.REPORTED if is_reported else Verdict.OTHER, rows, difference, is_reported)


def difference_of(server: ServerTable, table: AppliedTable | None) -> str:
    """Empty if both have the same columns and rows, in any order; a table without rows need not exist."""
    if table is None:
        return f"{len(server.rows)} rows missing, as the table does not exist" if server.rows else ""
    names = [column.name for column in table.columns]
    expected = set(server.columns) - table.masked
    if set(names) != expected:
        return f"the server has the columns {server.columns}, found {tuple(names)}"
    return difference_in(server, table, names)


def difference_in(server: ServerTable, table: AppliedTable, names: Sequence[str]) -> str:
    """Compares the rows by these columns, which both have."""
    by_name = {column.name: column for column in table.columns}
    columns = [by_name[name] for name in names]
    theirs = [server.columns.index(name) for name in names]
    ours = [table.columns.index(column) for column in columns]
    expected, found = _counted(server.rows, theirs, columns), _counted(table.rows, ours, columns)
    missing, surplus = expected - found, found - expected
    if missing == surplus:
        return ""
    examples = f"e.g. {next(iter(missing), None)} on the server, {next(iter(surplus), None)} found"
    return f"{missing.total()} rows missing, {surplus.total()} too many, {examples}"[:500]


def _counted(
    rows: Sequence[tuple[Text, ...]], positions: Sequence[int], columns: Sequence[ComparedColumn]
) -> Counter[tuple[Text, ...]]:
    """Counts rows in one spelling for each value."""
    if not columns:
        return Counter({(): len(rows)})
    texts = [
        canonical_texts(column.type, [row[position] for row in rows])
        for position, column in zip(positions, columns, strict=True)
    ]
    return Counter(zip(*texts, strict=True))
