"""Commands on Delta tables, in any kind of session. A place is a path, a table's name in a catalog, or a tag's rows in
either.

`delta.tables.DeltaTable` needs a JVM in this process, or Delta's plugin in a Spark Connect server. For servers without
the plugin there are equivalents: DataFrame.mergeInto and a few SQL commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from typing import Any, cast

from delta.tables import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.identifiers import quoted
from pgoutput_etl.places import Place
from pgoutput_etl.spark.connect import is_connect
from pgoutput_etl.spark.java import java_class, scala_option
from pgoutput_etl.spark.object_folder import ObjectFolder
from pgoutput_etl.spark.platform import SuppressConditions, is_platform_session

_TABLE_IDENTIFIER = "org.apache.spark.sql.catalyst.TableIdentifier"

_OWN_CATALOG = "spark_catalog"

_NO_TABLE = {
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_PATH_DOES_NOT_EXIST",
    "DELTA_SCHEMA_NOT_SET",
    "PATH_NOT_FOUND",
    "TABLE_OR_VIEW_NOT_FOUND",
    "SCHEMA_NOT_FOUND",
}


def is_delta_table(spark: SparkSession, place: Place) -> bool:
    """For a place with a tag: True if the shared table exists."""
    if place.is_in_catalog:
        return is_in_catalog(spark, place) and _format(spark, place) == "delta"
    if not is_connect(spark):
        return DeltaTable.isDeltaTable(spark, place.name)
    with SuppressConditions(_NO_TABLE):
        _ = spark.read.format("delta").load(place.name).schema
        return True
    return False


def is_in_catalog(spark: SparkSession, place: Place) -> bool:
    """True if a catalog has a table or view of this name, of any format."""
    with SuppressConditions(_NO_TABLE):
        return spark.catalog.tableExists(place.name)
    return False


def _format(spark: SparkSession, place: Place) -> str | None:
    """The table's format; None for a view."""
    known = catalog_table(spark, place)
    if known is not None:
        return str(known.provider().get()) if known.provider().isDefined() else None
    try:
        return str(spark.sql(f"DESCRIBE DETAIL {place.name}").select("format").collect()[0][0])
    except AnalysisException:
        return None


def catalog_table(spark: SparkSession, place: Place) -> Any | None:
    """Spark's CatalogTable for a table or view in Spark's own catalog. None otherwise, and where Spark can't tell."""
    catalog, schema, name = place.catalog_names
    if catalog != _OWN_CATALOG or is_connect(spark) or is_platform_session():
        return None
    try:
        identifier = java_class(spark, _TABLE_IDENTIFIER)(name, scala_option(spark, schema))
        return cast(Any, spark)._jsparkSession.sessionState().catalog().getTableMetadata(identifier)
    except (Py4JError, AnalysisException, TypeError):  # TypeError: there is no such class
        return None


def read_table(spark: SparkSession, place: Place, version: int | None = None) -> DataFrame:
    """The table's rows at a Delta version; the newest by default. A tag's rows come without the tag's columns."""
    rows, tag = _read(spark, place, version), place.tag
    return _tagged(rows, tag) if tag else rows


def _tagged(rows: DataFrame, tag: Mapping[str, str]) -> DataFrame:
    return rows.where(has_tag(tag)).drop(*tag)


def has_tag(tag: Mapping[str, str], alias: str = "") -> Column:
    """A condition: the row has the tag's values. alias: of the row, with a dot."""
    return reduce(and_, (F.col(alias + quoted(name)) == F.lit(value) for name, value in tag.items()))


def _read(spark: SparkSession, place: Place, version: int | None) -> DataFrame:
    if not place.is_in_catalog:
        reader = spark.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(place.name)
    if version is None:
        return spark.read.table(place.name)
    return spark.sql(f"SELECT * FROM {place.name} VERSION AS OF {version:d}")


def files_left(table: DataFrame, rows: DataFrame) -> int | None:
    """The number of a Delta table's files that may contain `rows`, a subset of its rows, judging by file statistics.
    Reads no file. None if Spark can't tell: the table is cached, or isn't read by Delta."""
    if is_connect(table.sparkSession):
        left = len(rows.inputFiles())
        return left if left or table.inputFiles() else None
    java = cast(Any, rows)._jdf
    leaves = java.queryExecution().optimizedPlan().collectLeaves()
    if leaves.size() != 1 or leaves.apply(0).nodeName() != "LogicalRelation":
        return None
    return len(java.inputFiles())  # DataFrame.inputFiles would fetch each name separately


def save(writer: Any, place: Place) -> None:
    """writer: a DataFrameWriter of whole rows. The schema of a new table in a catalog must exist."""
    (writer.saveAsTable if place.is_in_catalog else writer.save)(place.name)


def make_schema(spark: SparkSession, place: Place) -> None:
    """Creates the schema of a catalog's table unless it exists; a user may lack the right to create existing
    schemas."""
    schema = place.catalog_schema
    if not spark.catalog.databaseExists(schema):
        spark.sql(f"CREATE SCHEMA IF NOT EXISTS {schema}")


def folder_of(spark: SparkSession, place: Place) -> str:
    """The folder that contains the table's files."""
    if not place.is_in_catalog:
        return place.name
    return str(delta_table(spark, place).detail().select("location").collect()[0][0])


def remove_table(spark: SparkSession, path: Place) -> bool:
    """Deletes the folder of a table that is not in a catalog. Returns False if Hadoop's file system can't be called."""
    if is_connect(spark) or is_platform_session():
        return False
    ObjectFolder(spark, path.name).delete_all()
    return True


def delta_table(spark: SparkSession, place: Place) -> DeltaTable:
    """The DeltaTable; in a Connect session, and for a tag's rows, a substitute with the methods used here."""
    if is_connect(spark):
        table = cast(DeltaTable, _ConnectTable(spark, place.table))
    else:
        table = (DeltaTable.forName if place.is_in_catalog else DeltaTable.forPath)(spark, place.name)
    return cast(DeltaTable, _TaggedRows(table, place.tag)) if place.tag else table


@dataclass(frozen=True, slots=True)
class _TaggedRows:
    """A tag's rows as a separate table. Its history and details are those of the whole table."""

    table: DeltaTable
    tag: Mapping[str, str]
    name: str = "t"

    def alias(self, name: str) -> _TaggedRows:
        return replace(self, name=name)

    def toDF(self) -> DataFrame:  # noqa: N802  # names of DeltaTable, also below
        return _tagged(self.table.toDF(), self.tag)

    def history(self, limit: int | None = None) -> DataFrame:
        return self.table.history(limit)

    def detail(self) -> DataFrame:
        return self.table.detail()

    def delete(self, condition: Column | None = None) -> None:
        self.table.delete(has_tag(self.tag) if condition is None else has_tag(self.tag) & condition)

    def update(self, condition: Column, values: Mapping[str, Column]) -> None:
        self.table.update(has_tag(self.tag) & condition, dict(values))

    def merge(self, source: DataFrame, condition: Column) -> _TaggedMerge:
        merge = self.table.alias(self.name).merge(source, has_tag(self.tag, f"{self.name}.") & condition)
        return _TaggedMerge(merge, self.tag)


@dataclass(frozen=True, slots=True)
class _TaggedMerge:
    """builder: the whole table's; its condition includes the tag's values."""

    builder: Any
    tag: Mapping[str, str]

    def whenMatchedDelete(self, condition: Column | None = None) -> _TaggedMerge:  # noqa: N802
        return replace(self, builder=self.builder.whenMatchedDelete(condition))

    def whenMatchedUpdate(self, set: Mapping[str, Column]) -> _TaggedMerge:  # noqa: A002, N802
        return replace(self, builder=self.builder.whenMatchedUpdate(set=dict(set)))

    def whenNotMatchedInsert(self, condition: Column | None, values: Mapping[str, Column]) -> _TaggedMerge:  # noqa: N802
        tag = {quoted(name): F.lit(value) for name, value in self.tag.items()}
        return replace(self, builder=self.builder.whenNotMatchedInsert(condition, values={**values, **tag}))

    def execute(self) -> None:
        self.builder.execute()


@dataclass(frozen=True, slots=True)
class _ConnectTable:
    """Commands use the session's settings, as DeltaTable's do."""

    spark: SparkSession
    place: Place
    name: str = "t"

    def alias(self, name: str) -> _ConnectTable:
        return replace(self, name=name)

    def toDF(self) -> DataFrame:  # noqa: N802
        return read_table(self.spark, self.place)

    def history(self, limit: int | None = None) -> DataFrame:
        return self._command("DESCRIBE HISTORY", "" if limit is None else f"LIMIT {limit}")

    def detail(self) -> DataFrame:
        return self._command("DESCRIBE DETAIL")

    def delete(self, condition: Column | None = None) -> None:
        if condition is None:
            self._command("DELETE FROM")
        else:  # SQL's DELETE doesn't accept a Column
            self.merge(self.spark.range(1).toDF("_one"), condition).whenMatchedDelete().execute()

    def restoreToVersion(self, version: int) -> None:  # noqa: N802
        self._command("RESTORE TABLE", f"TO VERSION AS OF {version}")

    def update(self, condition: Column, values: Mapping[str, Column]) -> None:
        """A one-row MERGE, because SQL's UPDATE doesn't accept a Column."""
        self.merge(self.spark.range(1).toDF("_one"), condition).whenMatchedUpdate(values).execute()

    def merge(self, source: DataFrame, condition: Column) -> _ConnectMerge:
        return _ConnectMerge(self, source, condition)

    def _command(self, verb: str, rest: str = "") -> DataFrame:
        return self.spark.sql(f"{verb} {self.place.identifier} {rest}")


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

    def _with(self, action: str, condition: Column | None, values: Mapping[str, Column]) -> _ConnectMerge:
        return replace(self, clauses=[*self.clauses, (action, condition, values)])

    def execute(self) -> None:
        """mergeInto takes its target by name: a view whose alias qualifies the columns."""
        name = self.table.name
        self.table.toDF().createOrReplaceTempView(name)
        try:
            writer = self.source.mergeInto(name, self.condition)
            for action, condition, values in self.clauses:
                if action == "insert":
                    writer = writer.whenNotMatched(condition).insert(dict(values))
                elif action == "update":
                    writer = writer.whenMatched(condition).update(dict(values))
                else:
                    writer = writer.whenMatched(condition).delete()
            writer.merge()
        finally:
            self.table.spark.catalog.dropTempView(name)
