"""A Delta table's commands, in whatever session there is.

`delta.tables.DeltaTable` needs Spark's own process, or Delta's plugin in a Spark Connect server. What a Connect server
has without the plugin says the same: DataFrame.mergeInto and a few commands of SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession

from pgoutput_etl.connecting import is_connect
from pgoutput_etl.naming import quoted

_NO_TABLE = {
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_PATH_DOES_NOT_EXIST",
    "DELTA_SCHEMA_NOT_SET",
    "PATH_NOT_FOUND",
}


def is_delta_table(spark: SparkSession, path: str) -> bool:
    if not is_connect(spark):
        return DeltaTable.isDeltaTable(spark, path)
    try:
        _ = spark.read.format("delta").load(path).schema
    except AnalysisException as error:
        if error.getCondition() in _NO_TABLE:
            return False
        raise
    return True


def delta_table(spark: SparkSession, path: str) -> DeltaTable:
    """Of a Connect session: what of DeltaTable this package uses."""
    if is_connect(spark):
        return cast(DeltaTable, _ConnectTable(spark, path))
    return DeltaTable.forPath(spark, path)


@dataclass(frozen=True, slots=True)
class _ConnectTable:
    """What is done takes the session's settings along, as DeltaTable does."""

    spark: SparkSession
    path: str
    name: str = "t"

    def alias(self, name: str) -> _ConnectTable:
        return replace(self, name=name)

    def toDF(self) -> DataFrame:  # noqa: N802  # DeltaTable's own name, and those below
        return self.spark.read.format("delta").load(self.path)

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
        return self.spark.sql(f"{verb} delta.{quoted(self.path)} {rest}")


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
