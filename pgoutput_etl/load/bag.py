"""Writes a bag: a table without a key, where a delete removes one of several equal rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pgoutput_etl.changes.events import INSERTED
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.load.bag_deletes import may_be_stale, ranked, settled, survivors
from pgoutput_etl.load.commit import TargetRows, WriteResult, append, initialize, overwrite, written
from pgoutput_etl.load.layout import has_change_feed
from pgoutput_etl.load.mismatches import missing_among, missing_in_bag
from pgoutput_etl.load.net_effect import (
    TableEvents,
    net_of_bag,
    rows_with_content,
    target_content,
    with_sequence,
)
from pgoutput_etl.load.shared_table import tagged_target
from pgoutput_etl.load.table_writer import TableCommit
from pgoutput_etl.load.target_columns import net_values, selected
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.delta import delta_table
from pgoutput_etl.targets.write_method import WriteFacts, WriteMethod, write_method


def write(table: TableCommit, shape: TableShape, events: TableEvents, before: TargetRows) -> WriteResult:
    """Makes one Delta commit."""
    net = events.frame
    if not events.only_inserts:
        net = net_of_bag(with_sequence(events.frame), shape).localCheckpoint()
    rows, deletes = _inserts_and_deletes(net, shape)
    delete_count = 0 if events.only_inserts else deletes.count()
    is_empty = before is TargetRows.NOTHING
    match write_method(WriteFacts(has_key=False, is_empty=is_empty, only_inserts=not delete_count)):
        case WriteMethod.OVERWRITE:
            missing = missing_in_bag(deletes, shape, None) if delete_count else None
            return replace(initialize(table, rows, shape.layout), not_found=delete_count, mismatches=missing)
        case WriteMethod.APPEND:
            return append(table, rows)
        case _:
            deletes = settled(ranked(deletes, shape), tagged_target(table.spark, table.place, shape.columns), shape)
            result = _rewrite(table, shape, rows, deletes, delete_count)
            if not result.not_found and not may_be_stale(shape):
                return result
            stored = tagged_target(table.spark, table.place, shape.columns, result.version - 1)
            return replace(result, mismatches=missing_among(deletes, shape, stored))


def _inserts_and_deletes(net: DataFrame, shape: TableShape) -> tuple[DataFrame, DataFrame]:
    is_insert = F.col("_op") == INSERTED
    return selected(net.where(is_insert), net_values(shape)), net.where(~is_insert)


def rows_after(stored: DataFrame | None, shape: TableShape, events: DataFrame) -> DataFrame:
    """See mirror.rows_after."""
    rows, deletes = _inserts_and_deletes(net_of_bag(with_sequence(events), shape), shape)
    if stored is None:
        return rows
    return _with_changes(stored, rows, settled(ranked(deletes, shape), stored, shape), shape)


def _rewrite(
    table: TableCommit, shape: TableShape, rows: DataFrame, deletes: DataFrame, delete_count: int
) -> WriteResult:
    """rows: the inserted rows. deletes: the `delete_count` settled DELETEs of rows in the target."""
    target = tagged_target(table.spark, table.place, shape.columns)
    before, inserted = target.count(), rows.count()
    gone = None
    if has_change_feed(table.spark, table.place):  # an overwrite would put all rows into the feed
        gone = deletes.select("gone").distinct().localCheckpoint()
        target = with_content_among(target, gone, shape)
    after = _with_changes(target, rows, deletes, shape)
    if gone is None:
        result = overwrite(table, after)
        total = result.inserted  # Delta counts every row of the overwritten table as inserted
    else:
        result = replace_equal_rows(table, shape, gone, after)
        total = before + result.inserted - result.deleted
    deleted = before + inserted - total
    return replace(result, inserted=inserted, deleted=deleted, not_found=delete_count - deleted, rows=total)


def with_content_among(target: DataFrame, gone: DataFrame, shape: TableShape) -> DataFrame:
    """The target's rows whose content is in `gone`."""
    equal = rows_with_content(target, shape).join(gone, F.col("content") == F.col("gone"), "left_semi")
    return equal.select("row.*")


def replace_equal_rows(
    table: TableCommit, shape: TableShape, gone: DataFrame, rows: DataFrame, where: Column | None = None
) -> WriteResult:
    """In one MERGE, deletes every row whose content is in `gone` and inserts `rows`. The change feed gets no other
    rows. where: an additional condition on the rows `t` to delete."""
    marks = gone.select(F.lit(None).cast(StructType(rows.schema.fields)).alias("row"), "gone")
    new = rows.select(F.struct(*map(quoted, rows.columns)).alias("row"))
    source = new.withColumn("gone", F.lit(None).cast(gone.schema["gone"].dataType)).union(marks).localCheckpoint()
    same = target_content(shape, "t.") == F.col("s.gone")
    merge = (
        delta_table(table.spark, table.place)
        .alias("t")
        .merge(source.alias("s"), same if where is None else same & where)
    )
    values: dict[str, Any] = {quoted(name): F.col(f"s.row.{quoted(name)}") for name in rows.columns}
    merge.whenMatchedDelete().whenNotMatchedInsert(F.col("s.gone").isNull(), values=values).execute()
    return written(table)


def _with_changes(target: DataFrame, rows: DataFrame, deletes: DataFrame, shape: TableShape) -> DataFrame:
    # The target may have columns that users added.
    return survivors(target, deletes, shape).select("row.*").unionByName(rows, allowMissingColumns=True)
