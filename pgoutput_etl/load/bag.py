"""Writes a bag: a table without a key, where a delete removes one of several equal rows."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from pgoutput_etl.changes.events import INSERTED
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.load.commit import TargetRows, WriteResult, append, initialize, write_result
from pgoutput_etl.load.net_effect import (
    TableEvents,
    event_content,
    net_of_bag,
    rows_with_content,
    target_content,
    with_sequence,
)
from pgoutput_etl.load.target_columns import net_values, quoted_names, selected
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.delta import delta_table, read_table
from pgoutput_etl.spark.session import temporarily
from pgoutput_etl.targets.write_method import WriteFacts, WriteMethod, write_method

_BROADCAST = "spark.sql.autoBroadcastJoinThreshold"

# Whole rows that a MERGE may broadcast: Spark doesn't know their size, and would broadcast any number.
_MOST_TO_BROADCAST = 1 << 18


def write(spark: SparkSession, path: str, shape: TableShape, events: TableEvents, before: TargetRows) -> WriteResult:
    """Makes one Delta commit. The session already carries the commit's settings."""
    net = events.frame
    if not events.only_inserts:
        net = net_of_bag(with_sequence(events.frame), shape).localCheckpoint()
    inserts, deletes = net.where(F.col("_op") == INSERTED), net.where(F.col("_op") != INSERTED)
    delete_count = 0 if events.only_inserts else deletes.count()
    is_empty = before is TargetRows.NOTHING
    match write_method(WriteFacts(has_key=False, is_empty=is_empty, only_inserts=not delete_count)):
        case WriteMethod.OVERWRITE:
            return replace(initialize(spark, path, selected(inserts, net_values(shape))), not_found=delete_count)
        case WriteMethod.APPEND:
            return append(spark, path, selected(inserts, net_values(shape)))
        case _:
            return _merge(spark, path, shape, inserts, deletes, delete_count)


def _merge(
    spark: SparkSession, path: str, shape: TableShape, inserts: DataFrame, deletes: DataFrame, delete_count: int
) -> WriteResult:
    """Takes all rows that equal a deleted one from the table, and returns those that are not deleted. A MERGE can't
    take one of several equal rows."""
    target = read_table(spark, path)
    new = selected(inserts, net_values(shape))
    has = set(new.columns)  # the target may have columns of the user's own
    row = F.struct(*(F.col(quoted(name)) if name in has else F.lit(None).alias(name) for name in target.columns))
    copies = deletes.groupBy(event_content(shape).alias("gone")).agg(F.count("*").alias("copies"))
    settings = {_BROADCAST: "-1"} if delete_count > _MOST_TO_BROADCAST else {}
    with temporarily(spark, settings):
        kept = _kept(target, copies, shape).localCheckpoint()
        taken = copies.select("gone", F.lit(None).alias("row"))
        added = kept.unionByName(new.select(row.alias("row"))).select(F.lit(None).alias("gone"), "row")
        source = added.unionByName(taken).localCheckpoint()
        same = target_content(shape, "t.") == F.col("s.gone")
        values = quoted_names({name: F.col(f"s.row.{quoted(name)}") for name in target.columns})
        merge = delta_table(spark, path).alias("t").merge(source.alias("s"), same).whenMatchedDelete()
        merge.whenNotMatchedInsert("s.gone IS NULL", values=values).execute()
    result, returned = write_result(spark, path), kept.count()
    deleted = result.deleted - returned
    return replace(result, inserted=result.inserted - returned, deleted=deleted, not_found=delete_count - deleted)


def _kept(target: DataFrame, copies: DataFrame, shape: TableShape) -> DataFrame:
    """The target's rows that equal a deleted row and stay: deletes take the newest."""
    newest_first = Window.partitionBy("content").orderBy(F.desc("row._pg_commit_lsn"))
    found = rows_with_content(target, shape).join(copies, F.col("content") == F.col("gone"))
    return found.withColumn("rank", F.row_number().over(newest_first)).where("rank > copies").select("row")
