"""The sides, other than a server, that Delta is compared with: a server's CSV files, or another Delta table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StringType

from pgoutput_etl.answers.verify.row_text import csv_header, csv_texts, delta_texts
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.load.target_columns import delta_type
from pgoutput_etl.places import Place
from pgoutput_etl.spark.delta import is_delta_table, read_table
from pgoutput_etl.types.canonical_text import ComparedColumn


class ComparedSide(Protocol):
    @property
    def names(self) -> list[str]:
        """The names of all columns."""

    def why_not(self, column: ComparedColumn) -> str | None:
        """The reason why a column can't be compared, or None."""


class OtherTable(ComparedSide, Protocol):
    def texts(self, columns: Sequence[ComparedColumn]) -> DataFrame:
        """t… of all rows, with `unknown` if the side has it."""


@dataclass(frozen=True)
class CsvRows:
    spark: SparkSession
    path: str

    @cached_property
    def names(self) -> list[str]:
        return csv_header(self.spark, self.path)

    def why_not(self, column: ComparedColumn) -> str | None:
        return None if column.name in self.names else "the CSV has no such column"

    def texts(self, columns: Sequence[ComparedColumn]) -> DataFrame:
        return csv_texts(self.spark, self.path, [self.names.index(column.name) for column in columns])


@dataclass(frozen=True)
class OtherDelta:
    """Raises ConfigError if there is no Delta table at the path."""

    spark: SparkSession
    path: str

    def __post_init__(self) -> None:
        if not is_delta_table(self.spark, Place.parse(self.path)):
            raise ConfigError(f"--delta: {self.path} is not a Delta table")

    @cached_property
    def frame(self) -> DataFrame:
        return read_table(self.spark, Place.parse(self.path))

    @property
    def names(self) -> list[str]:
        return [name for name in self.frame.columns if not name.startswith("_pg_")]

    def why_not(self, column: ComparedColumn) -> str | None:
        """The reason, as in the protocol; a string column is read as PostgreSQL's text."""
        if column.name not in self.frame.columns:
            return "the other table has no such column"
        actual, expected = self.frame.schema[column.name].dataType, delta_type(column.type)
        if actual == expected or isinstance(actual, StringType):
            return None
        return (
            f"expected {expected.simpleString()}, or PostgreSQL's text as a string, in the other table; "
            f"found {actual.simpleString()}"
        )

    def texts(self, columns: Sequence[ComparedColumn]) -> DataFrame:
        return delta_texts(self.frame, columns).drop("lsn", "ts", "xid")
