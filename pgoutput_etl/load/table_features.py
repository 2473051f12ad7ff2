"""Delta features that a table with `readers: auto` gets when it needs them. Each takes one commit, without a
transaction.

A run that repeats the batch finds the feature enabled, and reads the reason from the table's history.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pyspark.sql import SparkSession

from pgoutput_etl.config.rules import Mode
from pgoutput_etl.console import counted
from pgoutput_etl.identifiers import text_literal
from pgoutput_etl.load.commit import TargetRows
from pgoutput_etl.load.evolve import has_entries, may_need_log_only, removed_names
from pgoutput_etl.load.layout import alter, property_of, sql_place
from pgoutput_etl.load.shared_table import ColumnUnion, planned_unions
from pgoutput_etl.load.table_writer import DeltaTransaction, committing
from pgoutput_etl.places import Place
from pgoutput_etl.schema.layout import COLUMN_MAPPING, Readers
from pgoutput_etl.schema.migration import SchemaMigration, ValueChange
from pgoutput_etl.spark.delta import is_delta_table
from pgoutput_etl.targets.layout import why_column_mapping
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.plan import SchemaSpan, TableTask

ENABLED = "enabled: "  # prefix of a commit's step; the rest is the need

# From this many rows times columns, a MERGE marks rows deleted instead of rewriting their files (docs/layout.md).
LARGE_VALUES = 8_000_000


class TableFeature(Enum):
    """Delta features that `readers: auto` enables on first use. Values are their names in messages."""

    COLUMN_MAPPING = "column mapping"
    DELETION_VECTORS = "deletion vectors"
    TYPE_WIDENING = "type widening"


# The property that turns a feature on, and its value
_SETTINGS = {
    TableFeature.COLUMN_MAPPING: (COLUMN_MAPPING, "name"),
    TableFeature.DELETION_VECTORS: ("delta.enableDeletionVectors", "true"),
    TableFeature.TYPE_WIDENING: ("delta.enableTypeWidening", "true"),
}


@dataclass(frozen=True, slots=True)
class FeatureNeed:
    feature: TableFeature
    why: str

    def __str__(self) -> str:
        return f"{self.feature.value} on: {self.why}"


def lacking_features(
    spark: SparkSession, place: Place, task: TableTask, number: int, before: TargetRows
) -> list[FeatureNeed]:
    """The features that the task's span needs and the table at the place lacks. before: the rows in the table before
    the span. Raises TableError."""
    layout = task.spans[number].shape.layout
    if layout.readers is not Readers.AUTO:
        return []
    configured = {name.lower() for name in layout.properties}
    found: dict[TableFeature, FeatureNeed] = {}
    for need in _needs(spark, place, task, task.spans[number], before):
        if _SETTINGS[need.feature][0].lower() not in configured:
            found.setdefault(need.feature, need)
    return [need for need in found.values() if not _is_on(spark, place, need.feature)]


def _needs(
    spark: SparkSession, place: Place, task: TableTask, span: SchemaSpan, before: TargetRows
) -> Iterator[FeatureNeed]:
    """The features that the span newly needs; the table already has the features that its old columns need."""
    shape, migration = span.shape, span.migration
    if migration is not None or before is TargetRows.NOTHING:
        if place.tag:
            yield from _of_unions(planned_unions(spark, place, shape, task.mode))
        elif migration is not None:
            yield from _of_migration(spark, place, migration, task.mode)
        if task.state is not None:
            yield from _of_names(column.name for column in shape.columns)
    rows = _rows_to_merge_into(task, before)
    if rows * len(shape.columns) >= LARGE_VALUES:
        why = f"a MERGE into {counted(rows, 'row')} of {counted(len(shape.columns), 'column')}"
        yield FeatureNeed(TableFeature.DELETION_VECTORS, why)


def _rows_to_merge_into(task: TableTask, before: TargetRows) -> int:
    """The table's row count if a MERGE may change some of them; 0 if the count is unknown."""
    is_changed = task.changes.updates or task.changes.deletes
    if task.state is None or before is TargetRows.NOTHING or not is_changed or task.shape.is_bag:
        return 0
    return (task.state.rows or 0) if table_mode(task.mode).has_rows else 0


def features_of_new(task: TableTask) -> list[FeatureNeed]:
    """Features that a new table has from the start."""
    is_new = task.state is None and not task.replaces and not task.path.tag
    if not is_new or task.shape.layout.readers is not Readers.AUTO:
        return []
    return list(_of_names(column.name for column in task.shape.columns))[:1]


def _of_names(names: Iterable[str]) -> Iterator[FeatureNeed]:
    yield from (FeatureNeed(TableFeature.COLUMN_MAPPING, why) for why in map(why_column_mapping, names) if why)


def _of_unions(unions: Iterable[ColumnUnion]) -> Iterator[FeatureNeed]:
    for union in unions:
        if union.is_new:
            yield from _of_names([union.name])
        else:
            yield FeatureNeed(TableFeature.TYPE_WIDENING, f"column {union.name!r} is widened")


def _of_migration(spark: SparkSession, place: Place, migration: SchemaMigration, mode: Mode) -> Iterator[FeatureNeed]:
    """The features that the migration needs; none if it rewrites the rows anyway."""
    removed = removed_names(migration)
    if not may_need_log_only(migration) or (is_delta_table(spark, place) and has_entries(spark, place, removed, mode)):
        return
    origins = {migration.before[origin].name for origin in migration.origins if origin is not None}
    for name in removed:
        why = f"column {name!r} is {'renamed' if name in origins else 'dropped'}"
        yield FeatureNeed(TableFeature.COLUMN_MAPPING, why)
    for column, change in zip(migration.after, migration.value_changes, strict=True):
        if change is ValueChange.WIDENED:
            yield FeatureNeed(TableFeature.TYPE_WIDENING, f"column {column.name!r} is widened")


def _is_on(spark: SparkSession, place: Place, feature: TableFeature) -> bool:
    name, _ = _SETTINGS[feature]
    return is_delta_table(spark, place) and property_of(spark, place, name).lower() not in ("", "none", "false")


def enable(spark: SparkSession, place: Place, need: FeatureNeed, commit: DeltaTransaction) -> None:
    """Turns the feature on, in its own Delta commit. commit: identifies the batch."""
    step = replace(commit, step=f"{ENABLED}{need}")
    name, value = _SETTINGS[need.feature]
    with committing(spark, place, step, is_once=False) as table:
        clause = f"SET TBLPROPERTIES ({text_literal(name)} = {text_literal(value)})"
        alter(table.spark, sql_place(table.spark, place), clause)


def planned_features(spark: SparkSession, place: Place, task: TableTask, before: Sequence[TargetRows]) -> list[str]:
    """The features that a batch would enable, in words. before: the rows before each span."""
    found = {need.feature: need for need in features_of_new(task)}
    for number, rows in enumerate(before):
        for need in lacking_features(spark, place, task, number, rows):
            found.setdefault(need.feature, need)
    return list(map(str, found.values()))
