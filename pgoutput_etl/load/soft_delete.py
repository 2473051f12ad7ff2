"""Mode soft_delete: a row that was deleted stays, marked, with the values that it had last.

Of each key there is one row: as the last commit left it, or, if that took it away, as the one before had left it. A row
that no commit ever showed (it came and went within a transaction) leaves no mark, nor does one whose values nobody has
seen, as it was deleted before the archive told of it.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from pgoutput_etl.identifiers import quoted
from pgoutput_etl.load import commit, target_columns
from pgoutput_etl.load.commit import TargetRows, WriteResult
from pgoutput_etl.load.key_match import key_ranges, same_key
from pgoutput_etl.load.net_effect import event_key_parts
from pgoutput_etl.load.row_states import EventLog, row_states, target_values
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.delta import delta_table, read_table
from pgoutput_etl.targets.modes import DELETED_COLUMN, METADATA_COLUMNS


def write(spark: SparkSession, path: str, shape: TableShape, events: EventLog, before: TargetRows) -> WriteResult:
    """One commit; the session has its settings."""
    living = None
    if before is TargetRows.ROWS:
        living = read_table(spark, path).where(~F.col(DELETED_COLUMN))
    net = _last_states(row_states(events, shape, living), shape).localCheckpoint()
    if before is TargetRows.NOTHING:
        values = {**target_values(shape), DELETED_COLUMN: F.col("_deleted")}
        rows = net.where(~F.col("_mark")).select(*(value.alias(name) for name, value in values.items()))
        return commit.initialize(spark, path, rows)
    _merge(spark, path, shape, net)
    return commit.write_result(spark, path)


def _last_states(states: DataFrame, shape: TableShape) -> DataFrame:
    """One row per key. `_mark`: nothing is known of the row here but that it is gone."""
    columns = [f"c{i}" for i in range(len(shape.columns))]
    keys = [f"k{n}" for n in range(len(event_key_parts(shape)))]
    # A transaction may have used the key of a row that was gone, and left nothing under it.
    lived = F.coalesce(F.lag("_lives").over(Window.partitionBy(*keys).orderBy("_seq")), F.lit(True))
    grouped = states.withColumn("_lived", lived).where(F.col("_lives") | F.col("_lived")).groupBy(*keys)
    last = F.max(F.struct("_seq", "_lives", "_lsn", "_ts", "_xid", "_unrep", *columns)).alias("last")
    living = F.max(F.when(F.col("_lives"), F.struct("_seq", "_unrep", *columns))).alias("living")
    found = grouped.agg(last, living)
    was_seen = F.col("living").isNotNull()
    return found.select(
        *(
            F.when(was_seen, F.col(f"living.{name}")).otherwise(F.col(f"last.{name}")).alias(name)
            for name in (*columns, "_unrep")
        ),
        *(F.col(f"last.{name}").alias(name) for name in ("_lsn", "_ts", "_xid")),
        (~F.col("last._lives")).alias("_deleted"),
        (~was_seen).alias("_mark"),
    )


def _merge(spark: SparkSession, path: str, shape: TableShape, net: DataFrame) -> None:
    inserted = {**target_values(shape, "s."), DELETED_COLUMN: F.col("s._deleted")}
    mark, was_deleted = F.col("s._mark"), F.col(f"t.{DELETED_COLUMN}")
    updated: dict[str, Column] = {}
    for name, value in inserted.items():
        stays = mark & was_deleted if name in METADATA_COLUMNS[:-1] else mark
        updated[name] = F.when(stays, F.col(f"t.{quoted(name)}")).otherwise(value)
    updated[DELETED_COLUMN] = F.col("s._deleted")
    merging = delta_table(spark, path).alias("t").merge(net.alias("s"), same_key(shape, key_ranges(net, shape)))
    merging = merging.whenMatchedUpdate(set=target_columns.quoted_names(updated))
    merging.whenNotMatchedInsert(~mark, values=target_columns.quoted_names(inserted)).execute()
