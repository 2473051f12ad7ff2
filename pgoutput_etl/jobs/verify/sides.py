"""What Delta is compared with: a PostgreSQL server, rows that one wrote as CSV, or another Delta table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.jobs.verify.canonical_text import ComparedColumn
from pgoutput_etl.jobs.verify.key_ranges import Digest, Ranges, collected
from pgoutput_etl.jobs.verify.row_text import csv_header, csv_texts, delta_texts, digests_of, rows_within
from pgoutput_etl.jobs.verify.server_digest import ServerTable
from pgoutput_etl.load.delta_types import delta_type
from pgoutput_etl.postgres.jdbc import Server
from pgoutput_etl.spark.delta import is_delta_table, read_table


class OtherTable(Protocol):
    """One table, on the other side."""

    @property
    def names(self) -> list[str]:
        """Of all its columns."""

    def why_not(self, column: ComparedColumn) -> str | None:
        """Why a column can't be compared."""

    def digests(self, columns: Sequence[ComparedColumn], ranges: Ranges) -> dict[int, Digest]: ...

    def rows(self, columns: Sequence[ComparedColumn], ranges: Ranges, which: Sequence[int]) -> DataFrame:
        """t… of some ranges, values spelled in one way; `unknown` and `xmin` where there is such."""


@dataclass(frozen=True)
class CsvRows:
    spark: SparkSession
    path: str

    @cached_property
    def names(self) -> list[str]:
        return csv_header(self.spark, self.path)

    def why_not(self, column: ComparedColumn) -> str | None:
        return None if column.name in self.names else "the CSV has no such column"

    def _texts(self, columns: Sequence[ComparedColumn]) -> DataFrame:
        return csv_texts(self.spark, self.path, [self.names.index(column.name) for column in columns])

    def digests(self, columns: Sequence[ComparedColumn], ranges: Ranges) -> dict[int, Digest]:
        return digests_of(self._texts(columns), len(columns), ranges)

    def rows(self, columns: Sequence[ComparedColumn], ranges: Ranges, which: Sequence[int]) -> DataFrame:
        return rows_within(self._texts(columns), columns, ranges, which)


@dataclass(frozen=True)
class OtherDelta:
    """Raises ConfigError if there is none."""

    spark: SparkSession
    path: str

    def __post_init__(self) -> None:
        if not is_delta_table(self.spark, self.path):
            raise ConfigError(f"--delta: there is no Delta table at {self.path}")

    @cached_property
    def frame(self) -> DataFrame:
        return read_table(self.spark, self.path)

    @property
    def names(self) -> list[str]:
        return [name for name in self.frame.columns if not name.startswith("_pg_")]

    def why_not(self, column: ComparedColumn) -> str | None:
        """A string is taken for PostgreSQL's text of the value."""
        if column.name not in self.frame.columns:
            return "the other table has no such column"
        there = self.frame.schema[column.name].dataType
        if there == delta_type(column.type) or isinstance(there, StringType):
            return None
        wanted = delta_type(column.type).simpleString()
        return f"it is {there.simpleString()} there: expected {wanted}, or PostgreSQL's text as a string"

    def digests(self, columns: Sequence[ComparedColumn], ranges: Ranges) -> dict[int, Digest]:
        return digests_of(delta_texts(self.frame, columns), len(columns), ranges)

    def rows(self, columns: Sequence[ComparedColumn], ranges: Ranges, which: Sequence[int]) -> DataFrame:
        return rows_within(delta_texts(self.frame, columns).drop("lsn", "ts", "xid"), columns, ranges, which)


@dataclass(frozen=True, slots=True)
class ServerRows:
    server: Server
    schema: str
    table: str
    not_null: Mapping[str, bool]

    @property
    def names(self) -> list[str]:
        return list(self.not_null)

    def why_not(self, column: ComparedColumn) -> str | None:
        return None if column.name in self.not_null else "the server's table has no such column"

    def digests(self, columns: Sequence[ComparedColumn], ranges: Ranges) -> dict[int, Digest]:
        query = self._table(columns, ranges).digests(ranges)
        return collected(self.server.ask(query, self._shares(range(ranges.count), ranges)).toArrow().to_pylist())

    def rows(self, columns: Sequence[ComparedColumn], ranges: Ranges, which: Sequence[int]) -> DataFrame:
        query = self._table(columns, ranges).rows(ranges, which)
        rows = self.server.ask(query, self._shares(which, ranges)).drop("range")
        return rows_within(rows, columns, ranges, which)

    def _table(self, columns: Sequence[ComparedColumn], ranges: Ranges) -> ServerTable:
        names = tuple(column.name for column in columns)
        is_never_null = all(self.not_null[names[i]] for i in ranges.columns)
        return ServerTable(self.schema, self.table, names, not is_never_null)

    def _shares(self, which: Sequence[int], ranges: Ranges) -> list[str]:
        """Buckets are found by reading all: one connection does that once."""
        if ranges.starts is None:
            return ["true"]
        connections = min(self.server.connections, len(which))
        shares = [which[i::connections] for i in range(connections)]
        return [f"range IN ({', '.join(str(number) for number in share)})" for share in shares]


def server_table(server: Server, schema: str, table: str) -> OtherTable | None:
    """None if the server has no such table."""
    not_null = server.columns.get((schema, table))
    return None if not_null is None else ServerRows(server, schema, table, not_null)
