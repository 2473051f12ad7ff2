"""The sides that Delta is compared with: their columns and, for a server's CSV files or another Delta table, their
rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StringType

from pgoutput_etl.answers.verify.row_text import csv_header, csv_texts, delta_texts
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.load.target_columns import delta_type
from pgoutput_etl.places import Place
from pgoutput_etl.spark.delta import is_delta_table, read_table
from pgoutput_etl.types.canonical_text import ComparedColumn


@dataclass(frozen=True, slots=True)
class OtherColumns:
    """The other side's columns. why_absent: the reason why a column that is not among them can't be compared. types: of
    the columns of a Delta table; None for other sides, which have PostgreSQL's texts."""

    names: Collection[str]
    why_absent: str
    types: Mapping[str, DataType] | None = None

    def why_not(self, column: ComparedColumn) -> str | None:
        """The reason why a column can't be compared, or None. A string column is read as PostgreSQL's text."""
        if column.name not in self.names:
            return self.why_absent
        expected = delta_type(column.type)
        actual = expected if self.types is None else self.types[column.name]
        if actual == expected or isinstance(actual, StringType):
            return None
        return (
            f"expected {expected.simpleString()}, or PostgreSQL's text as a string, in the other table; "
            f"found {actual.simpleString()}"
        )

    def unknown(self, known: Collection[str]) -> list[str]:
        """The columns that are not among these names, without a Delta table's metadata columns."""
        unknown = [name for name in self.names if name not in known]
        return unknown if self.types is None else [name for name in unknown if not name.startswith("_pg_")]


@dataclass(frozen=True, slots=True)
class OtherRows:
    """texts: returns t… of all rows, with `unknown` if the side has it."""

    columns: OtherColumns
    texts: Callable[[Sequence[ComparedColumn]], DataFrame]


def csv_rows(spark: SparkSession, path: str) -> OtherRows:
    names = csv_header(spark, path)
    columns = OtherColumns(names, "the CSV has no such column")
    return OtherRows(columns, lambda columns: csv_texts(spark, path, [names.index(column.name) for column in columns]))


def delta_rows(spark: SparkSession, path: str) -> OtherRows:
    """Raises ConfigError if there is no Delta table at the path."""
    place = Place.parse(path)
    if not is_delta_table(spark, place):
        raise ConfigError(f"--delta: {path} is not a Delta table")
    rows = read_table(spark, place)
    types = {field.name: field.dataType for field in rows.schema}
    columns = OtherColumns(types, "the other table has no such column", types)
    return OtherRows(columns, lambda columns: delta_texts(rows, columns).drop("lsn", "ts", "xid"))
