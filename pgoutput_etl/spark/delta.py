"""A Delta table's commands, in whatever session there is.

`delta.tables.DeltaTable` needs Spark's own process, or Delta's plugin in a Spark Connect server. What a Connect server
has without the plugin says the same: DataFrame.mergeInto and a few commands of SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession

from pgoutput_etl.identifiers import identifier, is_catalog_place
from pgoutput_etl.spark.connect import is_connect

_NO_TABLE = {
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_PATH_DOES_NOT_EXIST",
    "DELTA_SCHEMA_NOT_SET",
    "PATH_NOT_FOUND",
    "TABLE_OR_VIEW_NOT_FOUND",
    "SCHEMA_NOT_FOUND",
}


def is_delta_table(spark: SparkSession, place: str) -> bool:
    if is_catalog_place(place):
        return is_in_catalog(spark, place) and _format(spark, place) == "delta"
    if not is_connect(spark):
        return DeltaTable.isDeltaTable(spark, place)
    try:
        _ = spark.read.format("delta").load(place).schema
    except AnalysisException as error:
        if error.getCondition() in _NO_TABLE:
            return False
        raise
    return True


def is_in_catalog(spark: SparkSession, place: str) -> bool:
    """Whether a catalog has something under this name, be it no Delta table."""
    try:
        return spark.catalog.tableExists(place)
    except AnalysisException as error:
        if error.getCondition() in _NO_TABLE:
            return False
        raise


def _format(spark: SparkSession, place: str) -> str | None:
    """None for a view, which has none."""
    try:
        found = spark.sql(f"DESCRIBE DETAIL {place}").select("format").collect()
    except AnalysisException:
        return None
    return str(found[0][0])


def read_table(spark: SparkSession, place: str, version: int | None = None) -> DataFrame:
    """Its rows, as of a Delta version or the newest."""
    if not is_catalog_place(place):
        reader = spark.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(place)
    if version is None:
        return spark.read.table(place)
    return spark.sql(f"SELECT * FROM {place} VERSION AS OF {version:d}")


def files_left(table: DataFrame, rows: DataFrame) -> int | None:
    """How many files of a Delta table `rows` may be in, some of the table's rows, by the statistics of its files. No
    file is read. None where Spark doesn't say: of a table that somebody cached, or of another reader's.
    """
    if is_connect(table.sparkSession):
        left = len(rows.inputFiles())
        return left if left or table.inputFiles() else None
    java = cast(Any, rows)._jdf
    leaves = java.queryExecution().optimizedPlan().collectLeaves()
    if leaves.size() != 1 or leaves.apply(0).nodeName() != "LogicalRelation":
        return None
    return len(java.inputFiles())  # each name would be fetched by itself


def save(writer: Any, place: str) -> None:
    """`writer`: a DataFrameWriter. A table that is to be made in a catalog needs its schema there."""
    if is_catalog_place(place):
        writer.saveAsTable(place)
    else:
        writer.save(place)


def make_schema(spark: SparkSession, place: str) -> None:
    """The one that a catalog's table is in; asked for first, as somebody may write tables and make no schemas."""
    schema = place.rpartition(".")[0]
    if not spark.catalog.databaseExists(schema):
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")


def folder_of(spark: SparkSession, place: str) -> str:
    """Where its files are."""
    if not is_catalog_place(place):
        return place
    return str(delta_table(spark, place).detail().select("location").collect()[0][0])


def delta_table(spark: SparkSession, place: str) -> DeltaTable:
    """Of a Connect session: what of DeltaTable this package uses."""
    if is_connect(spark):
        return cast(DeltaTable, _ConnectTable(spark, place))
    return DeltaTable.forName(spark, place) if is_catalog_place(place) else DeltaTable.forPath(spark, place)


@dataclass(frozen=True, slots=True)
class _ConnectTable:
    """What is done takes the session's settings along, as DeltaTable does."""

    spark: SparkSession
    place: str
    name: str = "t"

    def alias(self, name: str) -> _ConnectTable:
        return replace(self, name=name)

    def toDF(self) -> DataFrame:  # noqa: N802  # DeltaTable's own name, and those below
        return read_table(self.spark, self.place)

    def history(self, limit: int | None = None) -> DataFrame:
        return self._command("DESCRIBE HISTORY", "" if limit is None else f"LIMIT {limit}")

    def detail(self) -> DataFrame:
        return self._command("DESCRIBE DETAIL")

    def delete(self) -> None:
        self._command("DELETE FROM")

    def restoreToVersion(self, version: int) -> None:  # noqa: N802
        self._command("RESTORE TABLE", f"TO VERSION AS OF {version}")

    def update(self, condition: Column, values: Mapping[str, Column]) -> None:
        """By a MERGE with one row: UPDATE takes no Column."""
        self.merge(self.spark.range(1).toDF("_one"), condition).whenMatchedUpdate(values).execute()

    def merge(self, source: DataFrame, condition: Column) -> _ConnectMerge:
        return _ConnectMerge(self, source, condition)

    def _command(self, verb: str, rest: str = "") -> DataFrame:
        return self.spark.sql(f"{verb} {identifier(self.place)} {rest}")


@dataclass(frozen=True, slots=True)
class _ConnectMerge:
    table: _ConnectTable
    source: DataFrame
    condition: Column
    clauses: list[tuple[str, Column | None, Mapping[str, Column]]] = field(default_factory=list)

    def whenMatchedDelete(self, condition: Column | None = None) -> _ConnectMerge:  # noqa: N802
        return self._with("delete", condition, {})

    def whenMatchedUpdate(self, set: Mapping[str, Column]) -> _ConnectMerge:  # noqa: A002, N802
        return self._with("update", None, set)

    def whenNotMatchedInsert(self, condition: Column | None, values: Mapping[str, Column]) -> _ConnectMerge:  # noqa: N802
        return self._with("insert", condition, values)

    def _with(self, what: str, condition: Column | None, values: Mapping[str, Column]) -> _ConnectMerge:
        return replace(self, clauses=[*self.clauses, (what, condition, values)])

    def execute(self) -> None:
        """mergeInto names its target; a view gives it the name that the columns are qualified with."""
        name = self.table.name
        self.table.toDF().createOrReplaceTempView(name)
        try:
            writer = self.source.mergeInto(name, self.condition)
            for what, condition, values in self.clauses:
                if what == "insert":
                    writer = writer.whenNotMatched(condition).insert(dict(values))
                elif what == "update":
                    writer = writer.whenMatched(condition).update(dict(values))
                else:
                    writer = writer.whenMatched(condition).delete()
            writer.merge()
        finally:
            self.table.spark.catalog.dropTempView(name)
