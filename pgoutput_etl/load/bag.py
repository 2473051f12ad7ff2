"""Writes a table without a key: a multiset of rows, from which a delete takes one occurrence."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from pgoutput_etl.changes.events import INSERTED
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.load.commit import (
    TargetRows,
    WriteResult,
    append,
    initialize,
    overwrite,
    write_result,
)
from pgoutput_etl.load.delta_types import to_event
from pgoutput_etl.load.net_effect import (
    TableEvents,
    bag_content,
    entries_of_target,
    event_content,
    net_of_bag,
    with_sequence,
)
from pgoutput_etl.load.target_columns import (
    _net_rows_as_target,
)
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.delta import read_table
from pgoutput_etl.targets.write_method import WriteFacts, WriteMethod, write_method


def _write_bag(
    spark: SparkSession, path: str, shape: TableShape, events: TableEvents, before: TargetRows
) -> WriteResult:
    net = events.frame
    if not events.only_inserts:
        net = net_of_bag(with_sequence(events.frame), shape).localCheckpoint()
    rows = _net_rows_as_target(net.where(F.col("_op") == INSERTED), shape)
    taken = net.where(F.col("_op") != INSERTED)
    named = 0 if events.only_inserts else taken.count()
    match write_method(WriteFacts(has_key=False, is_empty=before is TargetRows.NOTHING, only_inserts=not named)):
        case WriteMethod.OVERWRITE:
            return replace(initialize(spark, path, rows), not_found=named)
        case WriteMethod.APPEND:
            append(spark, path, rows)
            return write_result(spark, path)
        case _:
            return _rewrite_bag(spark, path, shape, rows, taken, named)


def _rewrite_bag(
    spark: SparkSession, path: str, shape: TableShape, rows: DataFrame, taken: DataFrame, named: int
) -> WriteResult:
    """`taken`: the DELETEs of the target's rows, so many as are `named`."""
    target = read_table(spark, path)
    there, inserted = target.count(), rows.count()
    overwrite(spark, path, _survivors(target, taken, shape).unionByName(rows))
    after = write_result(spark, path)
    deleted = there + inserted - after.inserted  # what Delta counted is all rows that there are now
    return replace(after, inserted=inserted, deleted=deleted, not_found=named - deleted, rows=after.inserted)


def _survivors(target: DataFrame, taken: DataFrame, shape: TableShape) -> DataFrame:
    """The target's rows without as many of each distinct one as are taken, the newest first.

    A row goes through as one struct, so that its columns' names meet none of those used here.
    """
    own = bag_content(shape, (to_event(F.col(quoted(c.name)), c.type) for c in shape.columns), entries_of_target())
    stored = target.select(F.struct(*(quoted(name) for name in target.columns)).alias("row"), own.alias("content"))
    deletes = taken.groupBy(event_content(shape).alias("gone")).agg(F.count("*").alias("copies"))
    newest_first = Window.partitionBy("content").orderBy(F.desc("row._pg_commit_lsn"))
    ranked = stored.join(deletes, F.col("content") == F.col("gone"), "left")
    ranked = ranked.withColumn("rank", F.row_number().over(newest_first))
    return ranked.where(F.col("copies").isNull() | (F.col("rank") > F.col("copies"))).select("row.*")
