"""Rewrites a small table with a batch's net changes, in one commit: a MERGE takes longer, whatever the table's size."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from threading import Thread

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.changes.key_facts import Ranges
from pgoutput_etl.load.commit import WriteResult, written
from pgoutput_etl.load.key_match import same_key
from pgoutput_etl.load.merge import DELETED, INSERTED, UPDATED, RowMerge
from pgoutput_etl.load.mismatches import counted, counted_in
from pgoutput_etl.load.table_writer import TableCommit
from pgoutput_etl.load.target_columns import net_values, updated_values
from pgoutput_etl.places import Place
from pgoutput_etl.schema.layout import CHANGE_FEED
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.delta import read_table, save
from pgoutput_etl.spark.delta_log import has_bytes, newest_version, properties_of, read_log
from pgoutput_etl.targets.write_method import SMALL_BYTES, SMALL_ROWS

_PATIENCE = 60  # seconds until Spark has reported what it counted; usually milliseconds

# A rewrite would fill the feed with all rows, and give all of them new identifiers.
TRACKED = (CHANGE_FEED, "delta.enableRowTracking")

_CLUSTERED = "delta.feature.clustering"  # a table that is overwritten loses its clustering


def small_table(spark: SparkSession, path: Place, shape: TableShape, rows: int | None) -> DataFrame | None:
    """The table's rows, if it can be rewritten without loss and in less time than a MERGE takes; else None. rows: its
    row count, or None if unknown."""
    if rows is None or rows > SMALL_ROWS or path.tag:
        return None
    target = read_log(spark, path)  # lists the log, before it is asked
    target = read_table(spark, path) if target is None else target
    if not has_bytes(spark, path, SMALL_BYTES) or sorted(target.columns) != sorted(updated_values(shape)):
        return None
    properties = properties_of(spark, path)
    if (
        properties is None
        or _CLUSTERED in properties
        or any(properties.get(name, "").lower() == "true" for name in TRACKED)
    ):
        return None
    return target


def net_merge(net: DataFrame, shape: TableShape, ranges: Ranges | None = None, deletes: bool = True) -> RowMerge:
    """net: one row per key (net_effect.net_rows). ranges: of its keys. deletes: a net row may delete a row; even if
    none does, Delta would read every column of the target for it."""
    is_deleted = F.col("s._delete")
    values = (updated_values(shape), net_values(shape, "s."))
    return RowMerge(net, same_key(shape, ranges or {}), *values, is_deleted if deletes else None, ~is_deleted)


def rewrite(table: TableCommit, target: DataFrame, shape: TableShape, net: DataFrame) -> WriteResult:
    """target: from `small_table`. net: one row per key (net_effect.net_rows). Delta reads the target in the version
    that its transaction overwrites, whatever was committed since `target` was made."""
    counts, merge = Observation(), net_merge(net, shape)
    effects = merge.effects(target)
    of_effects = (F.count_if(F.col("effect") == effect).alias(effect) for effect in (INSERTED, UPDATED, DELETED))
    checks = counted("s._chain", F.col("t").isNotNull())
    of_rows = (F.count_if(F.col("effect") != DELETED).alias("rows"), *(v.alias(name) for name, v in checks.items()))
    effects = effects.observe(counts, *of_effects, *of_rows)
    rows = merge.after(target, effects)
    # Also for a partitioned table in a session that overwrites only the partitions that it writes.
    save(table.writer_of(rows).mode("overwrite").option("partitionOverwriteMode", "static"), table.place)
    found, version = awaited(counts), newest_version(table.spark, table.place)
    if found is None or version is None:
        return written(table)
    effects_of_rows = (found["inserted"], found["updated"], found["deleted"])
    return WriteResult(version, *effects_of_rows, rows=found["rows"], mismatches=counted_in(found))


def awaited(counts: Observation) -> dict[str, int] | None:
    """None if nothing was counted: Delta skips the write of a run whose work another run has done meanwhile, and the
    observation would wait for ever."""
    found: SimpleQueue[dict[str, int]] = SimpleQueue()
    Thread(target=lambda: found.put(counts.get), daemon=True).start()
    try:
        return found.get(timeout=_PATIENCE)
    except Empty:
        return None
