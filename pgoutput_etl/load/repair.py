"""Repairs a mirror: turns a snapshot's rows into the changes that make the target equal to them.

The snapshot's rows are events at its LSN, as in an initial load. Rows that the target already has are left out. Rows
that only the target has are deleted, within ranges of keys or if the events have a DELETE for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.changes.events import DELETED, UPDATED
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.ingest.committed_rows import CommittedBlocks
from pgoutput_etl.load.change_source import ChangeBlocks
from pgoutput_etl.load.commit import TargetRows, WriteResult, written
from pgoutput_etl.load.driver_merge import write_on_driver
from pgoutput_etl.load.net_effect import (
    all_of,
    any_of,
    delete_events,
    event_content,
    event_key_parts,
    has_key,
    keyed_columns,
    stored_keys,
    target_content,
    target_key_parts,
)
from pgoutput_etl.load.shared_table import tagged_target
from pgoutput_etl.load.table_writer import DeltaTransaction, committing
from pgoutput_etl.load.targets import DeltaChanges, SpanWrite, with_memory
from pgoutput_etl.places import Place
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.delta import delta_table
from pgoutput_etl.spark.retries import again
from pgoutput_etl.targets.modes import UNREPRESENTABLE_COLUMN
from pgoutput_etl.targets.plan import BEFORE_FILES, KeyRanges, SchemaSpan, TableTask
from pgoutput_etl.targets.write_method import has_few


@dataclass(frozen=True, slots=True)
class RepairChanges:
    """targets.Changes for tables under repair. source: a snapshot's rows. ranges: the key ranges that it covers, by
    OID. A table without a key is overwritten."""

    spark: SparkSession
    source: ChangeBlocks
    ranges: Mapping[int, KeyRanges]

    @classmethod
    def of(
        cls, spark: SparkSession, rows: CommittedBlocks, tasks: Iterable[TableTask], ranges: Mapping[int, KeyRanges]
    ) -> RepairChanges:
        source = ChangeBlocks(rows, rows.windows)
        source.prepare(task for task in tasks if ranges[task.oid] == ())
        return cls(spark, source, ranges)

    def prepared(self, task: TableTask, span: SchemaSpan) -> SpanWrite:
        ranges = self.ranges[task.oid]
        if span.shape.is_bag:
            applied = DeltaChanges(self.spark, self.source).prepared(task, span)
            return applied if ranges == () else lambda _, commit, __: applied(TargetRows.NOTHING, commit, None)
        # The driver's merge would empty columns that only the target has.
        if not self.source.is_on_driver(task) or any(column.retired for column in span.shape.columns):
            return self._prepared_by_spark(task, span)
        limited = with_memory(self.spark, span)
        events = self.source.events(task, limited)

        def write(before: TargetRows, commit: DeltaTransaction, rows: int | None) -> WriteResult:
            with committing(self.spark, task.path, commit) as table:
                done = again(write_on_driver, table, limited.shape, events, before, has_few(rows), True)
            if done is not None:
                return replace(done, mismatches=None)
            return self._prepared_by_spark(task, span)(before, commit, rows)

        return write

    def _prepared_by_spark(self, task: TableTask, span: SchemaSpan) -> SpanWrite:
        ranges = self.ranges[task.oid]
        repairing = partial(_repairing, self.spark, task.path, ranges)
        changes = DeltaChanges(self.spark, self.source, repairing)
        events = self.source.typed_events(task, span)
        ambiguous = _ambiguous_keys(self.spark, task.path, ranges, events, span.shape).localCheckpoint()
        if ambiguous.isEmpty():
            return changes.prepared(task, span)

        def write(before: TargetRows, commit: DeltaTransaction, rows: int | None) -> WriteResult:
            deleted = again(_delete, self.spark, task.path, ambiguous, span.shape, commit)
            return deleted.plus(changes.prepared(task, span)(before, commit, deleted.rows_after(rows)))

        return write

    def compared(self, task: TableTask, span: SchemaSpan, before: TargetRows, version: int | None = None) -> None:
        """Does nothing: the events were made from the table's rows, so they can't contradict them."""


def _ambiguous_keys(
    spark: SparkSession, path: Place, ranges: KeyRanges, events: DataFrame, shape: TableShape
) -> DataFrame:
    """Keys that occur more than once in the target, or contain a NULL: a MERGE can't turn these into one row. Their
    rows are deleted and then inserted like any missing row."""
    keys = keyed_columns(target_key_parts(shape))
    target = _within(tagged_target(spark, path, shape.columns), ranges, events, shape)
    counted = target.select(*keys, _has_null(shape).alias("has_null")).groupBy(*(f"k{n}" for n in range(len(keys))))
    found = counted.agg(F.count("*").alias("copies"), F.bool_or("has_null").alias("has_null"))
    return found.where((F.col("copies") > 1) | F.col("has_null")).drop("copies", "has_null")


def _has_null(shape: TableShape) -> Column:
    """True for a row whose key has a NULL that does not stand for an unrepresentable value."""
    return any_of(
        F.col(quoted(shape.columns[i].name)).isNull() & F.col(UNREPRESENTABLE_COLUMN)[shape.columns[i].name].isNull()
        for i in shape.key
    )


def _delete(
    spark: SparkSession, path: Place, keys: DataFrame, shape: TableShape, commit: DeltaTransaction
) -> WriteResult:
    with committing(spark, path, replace(commit, step=f"{commit.step}:ambiguous")) as table:
        merge = delta_table(table.spark, path).alias("t").merge(keys.alias("s"), _same_key(shape))
        merge.whenMatchedDelete().execute()
        return written(table)


def _same_key(shape: TableShape) -> Column:
    """Joins target rows `t` with keys `s` in k0… ."""
    return all_of(part.eqNullSafe(F.col(f"s.k{n}")) for n, part in enumerate(target_key_parts(shape, "t.")))


def _repairing(spark: SparkSession, path: Place, ranges: KeyRanges, events: DataFrame, shape: TableShape) -> DataFrame:
    events = events.localCheckpoint()
    target = _within(tagged_target(spark, path, shape.columns), ranges, events, shape)
    keys = keyed_columns(target_key_parts(shape))
    stored = target.select(*keys, target_content(shape).alias("content"), F.lit(True).alias("exists"))
    joined = events.join(stored, has_key(shape), "left")
    exists, is_delete = F.col("exists").isNotNull(), F.col("_op") == DELETED
    differs = F.when(is_delete, exists).otherwise(~exists | ~event_content(shape).eqNullSafe(F.col("content")))
    # An update keeps the values in columns that only the target has.
    retired = {f"u{i}": exists & ~is_delete for i in shape.toast if shape.columns[i].retired}
    operation = F.when(exists & ~is_delete, F.lit(UPDATED)).otherwise(F.col("_op"))
    changed = joined.where(differs).withColumns({**retired, "_op": operation}).select(*events.columns)
    return changed.unionByName(_deletes(target, events, shape))


def _within(target: DataFrame, ranges: KeyRanges, events: DataFrame, shape: TableShape) -> DataFrame:
    """The rows under repair: those within the ranges or, without ranges, those with an event."""
    if ranges is None:
        return target
    if ranges == ():
        keys = events.select(*keyed_columns(event_key_parts(shape))).distinct().alias("s")
        return target.alias("t").join(keys, _same_key(shape), "left_semi")
    column = F.col(quoted(shape.columns[shape.key[0]].name))
    within = any_of(column.between(*limits) for limits in ranges)
    return target.where(within | column.isNull())  # on the server, this column has no NULLs


def _deletes(target: DataFrame, events: DataFrame, shape: TableShape) -> DataFrame:
    """DELETEs of the target's rows that have no event."""
    found = events.select(*keyed_columns(event_key_parts(shape)))
    gone = stored_keys(target, shape).join(found, has_key(shape), "left_anti")
    at = {"_lsn": F.lit(0), "_file": F.lit(BEFORE_FILES), "_ordinal": F.lit(-1)}
    return delete_events(gone, at, events.schema, shape)
