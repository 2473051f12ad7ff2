"""Gives a Delta table its configured layout, and preserves the rest of the layout when its rows are overwritten.

An overwrite keeps properties and the table's comment but drops the clustering and, if the schema may change, partitions
and column comments.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from py4j.protocol import Py4JJavaError
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkException,
    UnsupportedOperationException,
)
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    NumericType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from pgoutput_etl.errors import TableError
from pgoutput_etl.identifiers import quoted, text_literal, unquoted
from pgoutput_etl.places import Place
from pgoutput_etl.schema.layout import (
    CHANGE_FEED,
    COLUMN_MAPPING,
    INDEXED_NAMES,
    NOT_FOR_ALL,
    Layout,
    Readers,
    has_feed,
    indexed,
    needs_column_mapping,
    reserved_by_feed,
    with_feed,
    with_indexed,
)
from pgoutput_etl.spark.delta import delta_table, is_delta_table
from pgoutput_etl.spark.delta_log import folder_of_log, properties_of
from pgoutput_etl.spark.retries import CONFLICTS
from pgoutput_etl.spark.session import temporarily

_FEED_OFF = f"SET TBLPROPERTIES ('{CHANGE_FEED}' = 'false')"

_COMMENT = "comment"  # this property is the table's comment

# Raised if a statement or write is impossible. Other errors are about concurrent commits.
REFUSALS = (AnalysisException, IllegalArgumentException, UnsupportedOperationException)

_FEATURE = "clustering"

_TAG = "pgoutput_etl.tag"  # a key in a column's metadata

_DROP_FEATURE = "DROP FEATURE"

# Properties that Delta manages per table; a copy doesn't take them.
_OF_ONE_TABLE = (
    *("delta.columnMapping.", "delta.feature.", "delta.rowTracking.", "delta.inCommitTimestampEnablement"),
    "delta.requireCheckpointProtectionBeforeVersion",
)


@dataclass(frozen=True, slots=True)
class StoredLayout:
    """A table's current layout. place: an absolute one for SQL, which resolves relative paths differently than readers
    do. schema: of the whole table. comments: by column. was_clustered: has Delta's clustering feature, which can't be
    removed."""

    place: Place
    layout: Layout
    schema: StructType = field(default_factory=StructType)
    comments: Mapping[str, str] = field(default_factory=dict)
    was_clustered: bool = False

    @classmethod
    def of(cls, spark: SparkSession, place: Place) -> StoredLayout:
        table = delta_table(spark, place.table)
        detail = table.detail().collect()[0]
        clustering = tuple(map(unquoted, detail["clusteringColumns"]))
        features = detail["tableFeatures"] or ()
        properties = {**detail["properties"], **{f"delta.feature.{name}": "supported" for name in features}}
        readers = Readers.SPARK if _not_for_all(properties) else Readers.ALL
        layout = Layout(tuple(detail["partitionColumns"]), clustering, properties, detail["description"], readers)
        schema = table.toDF().schema
        comments = {f.name: f.metadata["comment"] for f in schema if f.metadata.get("comment")}
        absolute = place.table if place.is_in_catalog else Place(detail["location"])
        return cls(absolute, layout, schema, comments, _FEATURE in features)

    @property
    def maps_columns(self) -> bool:
        return self.layout.properties.get(COLUMN_MAPPING, "none") != "none"

    def after_overwrite(self, wanted: Layout) -> Layout:
        """The layout for an overwrite of all rows. Settings that are not configured stay as they are.

        A catalog can't partition a table that was ever clustered
        (DELTA_CLUSTERING_REPLACE_TABLE_WITH_PARTITIONED_TABLE).
        """
        if wanted.partition_by and not (self.place.is_in_catalog and self.was_clustered):
            return wanted
        if wanted.cluster_by:
            return wanted
        return replace(wanted, partition_by=self.layout.partition_by, cluster_by=self.layout.cluster_by)

    def to_copy(self, of_new_tables: Mapping[str, str]) -> Layout:
        """The layout for a copy in another place. of_new_tables: properties that the copy gets as a new table."""
        properties = {
            name: value
            for name, value in self.layout.properties.items()
            if not name.startswith(_OF_ONE_TABLE) and of_new_tables.get(name) != value
        }
        return replace(self.layout, properties=properties)


def possible(layout: Layout, schema: StructType, partitions: Iterable[str] = ()) -> Layout:
    """The layout without partitions, clustering, or statistics on columns that are missing or have an unsuitable type,
    and without a change feed if a column has a name that the feed reserves. partitions: the table's own, which it
    keeps."""
    types = {field.name: field.dataType for field in schema}
    fits_partitions = all(_may_partition(types.get(name)) for name in layout.partition_by)
    fits_clusters = all(_has_statistics(types.get(name)) for name in layout.cluster_by)
    partition_by = layout.partition_by if fits_partitions else ()
    if has_feed(layout.properties) and reserved_by_feed(types):
        layout = with_feed(layout, is_on=False)
    properties = with_indexed(layout.properties, _with_statistics(schema, {*partition_by, *partitions}))
    cluster_by = layout.cluster_by if fits_clusters else ()
    return replace(layout, partition_by=partition_by, cluster_by=cluster_by, properties=properties)


def _with_statistics(schema: StructType, partitions: Collection[str]) -> list[str]:
    """The columns that Delta can have statistics for."""
    return [field.name for field in schema if _has_statistics(field.dataType) and field.name not in partitions]


def _may_partition(data_type: DataType | None) -> bool:
    return _has_statistics(data_type) or isinstance(data_type, BooleanType)


def _has_statistics(data_type: DataType | None) -> bool:
    return isinstance(data_type, NumericType | DateType | TimestampType | TimestampNTZType | StringType)


def tag_column(name: str) -> StructField:
    """A column whose values mark the source of each row, in a table that several sources share."""
    return StructField(name, StringType(), metadata={_TAG: True})


def tag_columns(schema: StructType) -> tuple[str, ...]:
    """The tag's columns; empty unless several sources share the table. schema: of the whole table."""
    return tuple(field.name for field in schema if field.metadata.get(_TAG))


def is_for_all_readers(spark: SparkSession, place: Place) -> bool:
    return not _not_for_all(_properties(spark, place))


def has_column_mapping(spark: SparkSession, place: Place) -> bool:
    return property_of(spark, place, COLUMN_MAPPING) not in ("", "none")


def property_of(spark: SparkSession, place: Place, name: str) -> str:
    """The property's value, or "" if it is not set."""
    return _properties(spark, place).get(name, "")


def _properties(spark: SparkSession, place: Place) -> Mapping[str, str]:
    properties = properties_of(spark, place)
    return StoredLayout.of(spark, place).layout.properties if properties is None else properties


def _not_for_all(properties: Mapping[str, str]) -> list[str]:
    """The table's features that some readers don't support."""
    return [name for name in NOT_FOR_ALL if f"delta.feature.{name}" in properties]


def allow_names(spark: SparkSession, place: Place, names: Iterable[str]) -> None:
    """Enables column mapping if Delta would reject one of the names otherwise, and disables the change feed if it
    reserves one of them."""
    names = list(names)
    if any(map(needs_column_mapping, names)) and not has_column_mapping(spark, place):
        _alter_beside(spark, place, f"SET TBLPROPERTIES ('{COLUMN_MAPPING}' = 'name')")
    if reserved_by_feed(names) and has_change_feed(spark, place):
        _alter_beside(spark, place, _FEED_OFF)


def allow_overwrite(
    spark: SparkSession, place: Place, stored: StoredLayout, wanted: Layout, schema: StructType
) -> bool:
    """Removes what keeps Delta from replacing the table's rows and columns: statistics on columns that the new rows
    lack, and the change feed if columns are removed. stored: read before `allow_names`. Returns True if the feed must
    be enabled again."""
    listed = with_indexed(stored.layout.properties, _with_statistics(schema, wanted.partition_by))
    if listed != stored.layout.properties:
        left = ",".join((indexed(listed) or {}).values())
        values = f"SET TBLPROPERTIES ('{INDEXED_NAMES}' = {text_literal(left)})"
        _alter_beside(spark, place, values if left else f"UNSET TBLPROPERTIES ('{INDEXED_NAMES}')")
    left_over = _typed_names(stored.schema) - _typed_names(schema)
    if not left_over or not has_change_feed(spark, place) or not has_column_mapping(spark, place):
        return False
    # Delta refuses a commit that changes both: DELTA_BLOCK_COLUMN_MAPPING_AND_CDC_OPERATION.
    _alter_beside(spark, place, _FEED_OFF)
    return True


def _typed_names(schema: StructType) -> set[tuple[str, str]]:
    """Names with types: to Delta, a column whose type changed is another column."""
    return {(field.name, field.dataType.simpleString()) for field in schema}


def _alter_beside(spark: SparkSession, place: Place, clause: str) -> None:
    """Commits without user metadata: with the metadata of the write that follows, this commit would make a run that
    finishes the batch conclude that the write was done."""
    with temporarily(spark, {"spark.databricks.delta.commitInfo.userMetadata": ""}):
        alter(spark, sql_place(spark, place), clause)


def sql_place(spark: SparkSession, place: Place) -> Place:
    """StoredLayout.place, without reading the layout where possible."""
    if place.is_in_catalog:
        return place.table
    folder = folder_of_log(spark, place)
    return StoredLayout.of(spark, place).place if folder is None else Place(folder)


def has_change_feed(spark: SparkSession, place: Place) -> bool:
    return has_feed(_properties(spark, place))


@dataclass(frozen=True, slots=True)
class LayoutChanges:
    """statements: clauses of ALTER TABLE. changes: the same in words. remarks: changes that only a rebuild can make."""

    statements: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def layout_changes(stored: StoredLayout, wanted: Layout) -> LayoutChanges:
    statements, changes, remarks = [], [], []
    has = stored.layout
    # Delta changes the case of property names.
    stored_values = {name.lower(): value for name, value in {CHANGE_FEED: "false", **has.properties}.items()}
    properties = {name: value for name, value in wanted.properties.items() if stored_values.get(name.lower()) != value}
    if wanted.comment is not None and wanted.comment != (has.comment or ""):
        properties[_COMMENT] = wanted.comment
    if properties:
        pairs = ", ".join(f"{text_literal(name)} = {text_literal(value)}" for name, value in properties.items())
        statements.append(f"SET TBLPROPERTIES ({pairs})")
        changes += [name if name == _COMMENT else f"property {name}" for name in properties]
    comments = {name: text for name, text in wanted.column_comments.items() if name in stored.schema.names}
    comments = {name: text for name, text in comments.items() if text != stored.comments.get(name, "")}
    if comments:
        statements += [f"ALTER COLUMN {quoted(name)} COMMENT {text_literal(text)}" for name, text in comments.items()]
        changes.append(f"{_COMMENT} of {_listed(tuple(comments))}")
    left = _not_for_all(has.properties) if wanted.readers is Readers.ALL else []
    if "columnMapping" in left and (odd := [name for name in stored.schema.names if needs_column_mapping(name)]):
        left.remove("columnMapping")  # a source that shares the table adds such a column
        remarks.append(
            f"not for all readers: the name of column {odd[0]!r} has a character that only column mapping allows"
        )
    if left:
        for name in left:
            drop = f"{_DROP_FEATURE} {name}"
            if name == "columnMapping" and has.cluster_by:
                # Delta would keep clustering by the columns' old names, and every later write would fail.
                statements += ["CLUSTER BY NONE", drop, _cluster_by(has.cluster_by)]
            else:
                statements.append(drop)
        changes.append(f"for all readers: without {', '.join(left)}")
    until = "as long as sources share it" if tag_columns(stored.schema) else "until it is rebuilt from the archive"
    if wanted.partition_by and wanted.partition_by != has.partition_by:
        remarks.append(f"partitioned by {_listed(has.partition_by)} {until}")
    if wanted.cluster_by and {*wanted.cluster_by} != {*has.cluster_by}:
        if has.partition_by:
            remarks.append(f"partitioned by {_listed(has.partition_by)}, not clustered, {until}")
        else:
            statements.append(_cluster_by(wanted.cluster_by))
            changes.append(f"clustered by {_listed(wanted.cluster_by)}")
    return LayoutChanges(tuple(statements), tuple(changes), tuple(remarks))


def _cluster_by(columns: tuple[str, ...]) -> str:
    return f"CLUSTER BY ({', '.join(map(quoted, columns))})"


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"


def lay_out(spark: SparkSession, place: Place, wanted: Layout) -> LayoutChanges:
    """Makes one commit per statement that is needed. Raises TableError if Delta refuses one.

    A table that was moved out of a shared table doesn't have the tag's columns.
    """
    stored = StoredLayout.of(spark, place)
    changes = layout_changes(stored, possible(wanted, stored.schema, stored.layout.partition_by))
    for statement in changes.statements:
        alter(spark, stored.place, statement)
    return changes


def planned_layout(spark: SparkSession, place: Place, wanted: Layout) -> tuple[str, ...]:
    """The changes that a batch would make, in words, and those that only a rebuild can make."""
    if is_delta_table(spark, place):
        changes = layout_changes(StoredLayout.of(spark, place), wanted)
        return (*changes.changes, *changes.remarks)
    partitioned = (f"partitioned by {_listed(wanted.partition_by)}",) if wanted.partition_by else ()
    return (*layout_changes(StoredLayout(place, Layout()), replace(wanted, partition_by=())).changes, *partitioned)


def alter(spark: SparkSession, place: Place, clause: str) -> None:
    """clause: SQL with quoted names and literals, because DeltaTable's API has no ALTER TABLE."""
    try:
        spark.sql(f"ALTER TABLE {place.identifier} {clause}")
    except CONFLICTS:
        raise
    except REFUSALS as error:
        raise refused(place, error) from None
    except Py4JJavaError as error:  # from DROP FEATURE
        if not clause.startswith(_DROP_FEATURE):
            raise
        raise TableError(
            f"Delta can't make {place} readable for all ({clause}: {_condition(error)}): set target.readers to "
            "spark, or build the table anew, in another place"
        ) from None


def _condition(error: Py4JJavaError) -> str:
    """Delta's error condition; the error's text may contain values."""
    found = re.search(r"\[([A-Z_.]+)\]", str(error.java_exception))
    return found.group(1) if found else type(error).__name__


def refused(place: Place, error: PySparkException) -> TableError:
    return TableError(
        f"Delta refuses the layout of {place} ({error.getCondition()}): correct cluster_by, partition_by or properties "
        "in the configuration"
    )


def keeping_comments(rows: DataFrame, comments: Mapping[str, str]) -> DataFrame:
    """The rows, with these comments in their schema, by column."""
    if not comments:
        return rows

    def columns() -> Iterator[Column]:
        for name in rows.columns:
            column = F.col(quoted(name))
            yield column.alias(name, metadata={"comment": comments[name]}) if name in comments else column

    return rows.select(*columns())
