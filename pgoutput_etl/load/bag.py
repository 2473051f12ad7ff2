"""Writes a bag: a table without a key, where a delete removes one of several equal rows."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from pgoutput_etl.changes.events import INSERTED
from pgoutput_etl.load.commit import TargetRows, WriteResult, append, initialize, overwrite
from pgoutput_etl.load.net_effect import TableEvents, event_content, net_of_bag, rows_with_content, with_sequence
from pgoutput_etl.load.target_columns import net_values, selected
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.delta import read_table
from pgoutput_etl.targets.write_method import WriteFacts, WriteMethod, write_method


def write(spark: SparkSession, path: str, shape: TableShape, events: TableEvents, before: TargetRows) -> WriteResult:
    """Makes one Delta commit. The session already carries the commit's settings."""
    net = events.frame
    if not events.only_inserts:
        net = net_of_bag(with_sequence(events.frame), shape).localCheckpoint()
    rows = selected(net.where(F.col("_op") == INSERTED), net_values(shape))
    deletes = net.where(F.col("_op") != INSERTED)
    delete_count = 0 if events.only_inserts else deletes.count()
    is_empty = before is TargetRows.NOTHING
    match write_method(WriteFacts(has_key=False, is_empty=is_empty, only_inserts=not delete_count)):
        case WriteMethod.OVERWRITE:
            return replace(initialize(spark, path, rows, shape.layout), not_found=delete_count)
        case WriteMethod.APPEND:
            return append(spark, path, rows)
        case _:
            return _rewrite(spark, path, shape, rows, deletes, delete_count)


def _rewrite(
    spark: SparkSession, path: str, shape: TableShape, rows: DataFrame, deletes: DataFrame, delete_count: int
) -> WriteResult:
    """rows: the inserted rows. deletes: `delete_count` DELETEs, of rows in the target."""
    target = read_table(spark, path)
    before, inserted = target.count(), rows.count()
    # The target may have columns of the user's own.
    result = overwrite(spark, path, _survivors(target, deletes, shape).unionByName(rows, allowMissingColumns=True))
    deleted = before + inserted - result.inserted  # Delta reports every row of the overwritten table as inserted
    not_found = delete_count - deleted
    return replace(result, inserted=inserted, deleted=deleted, not_found=not_found, rows=result.inserted)


def _survivors(target: DataFrame, deletes: DataFrame, shape: TableShape) -> DataFrame:
    """The target's rows minus one of the newest equal rows per delete."""
    copies = deletes.groupBy(event_content(shape).alias("gone")).agg(F.count("*").alias("copies"))
    newest_first = Window.partitionBy("content").orderBy(F.desc("row._pg_commit_lsn"))
    ranked = rows_with_content(target, shape).join(copies, F.col("content") == F.col("gone"), "left")
    ranked = ranked.withColumn("rank", F.row_number().over(newest_first))
    return ranked.where(F.col("copies").isNull() | (F.col("rank") > F.col("copies"))).select("row.*")
