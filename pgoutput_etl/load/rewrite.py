"""Applies a batch's net changes to a small table by rewriting it in one commit, which is faster than any MERGE."""

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
from pgoutput_etl.targets.write_method import SMALL_BYTES, has_few

_PATIENCE = 60  # seconds to wait for the counts; Spark usually reports them within milliseconds

# A rewrite would put all rows into the feed and give them new row IDs.
TRACKED = (CHANGE_FEED, "delta.enableRowTracking")

_CLUSTERED = "delta.feature.clustering"  # an overwrite drops the clustering


def small_table(spark: SparkSession, path: Place, shape: TableShape, rows: int | None) -> DataFrame | None:
    """The table's rows if a rewrite would lose nothing and take less time than a MERGE, otherwise None. rows: its row
    count, or None if unknown."""
    if not has_few(rows) or path.tag:
        return None
    target = read_log(spark, path)  # lists the log before it is asked for versions
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
    """net: one row per key (net_effect.net_rows). ranges: of its keys. deletes: False if no net row deletes a row, so
    that Delta needn't read every column of the target."""
    is_deleted = F.col("s._delete")
    values = (updated_values(shape), net_values(shape, "s."))
    return RowMerge(net, same_key(shape, ranges or {}), *values, is_deleted if deletes else None, ~is_deleted)


def rewrite(table: TableCommit, target: DataFrame, shape: TableShape, net: DataFrame) -> WriteResult:
    """target: from `small_table`. net: one row per key (net_effect.net_rows). Delta reads the target in the version
    that its transaction overwrites, even if there were commits since `target` was created."""
    counts, merge = Observation(), net_merge(net, shape)
    effects = merge.effects(target)
    of_effects = (F.count_if(F.col("effect") == effect).alias(effect) for effect in (INSERTED, UPDATED, DELETED))
    checks = counted("s._chain", F.col("t").isNotNull())
    of_rows = (F.count_if(F.col("effect") != DELETED).alias("rows"), *(v.alias(name) for name, v in checks.items()))
    counted_before, version_before = None, newest_version(table.spark, table.place)
    if table.place.is_in_catalog:  # see `awaited`
        counted_before = effects.agg(*of_effects, *of_rows).collect()[0].asDict()
    else:
        effects = effects.observe(counts, *of_effects, *of_rows)
    rows = merge.after(target, effects)
    # Static even if the session's default overwrites only the partitions that receive rows.
    save(table.writer_of(rows).mode("overwrite").option("partitionOverwriteMode", "static"), table.place)
    version = newest_version(table.spark, table.place)
    is_skipped = version == version_before  # Delta skips a commit that an earlier run has made, and observes nothing
    found = None if is_skipped else counted_before or awaited(counts)
    if found is None or version is None:
        return written(table)
    effects_of_rows = (found["inserted"], found["updated"], found["deleted"])
    return WriteResult(version, *effects_of_rows, rows=found["rows"], mismatches=counted_in(found))


def awaited(counts: Observation) -> dict[str, int] | None:
    """The observed counts. None if there are none: Delta skips the write if another run has already made this commit,
    and `Observation.get` would wait forever. Spark loses observations of writes to a catalog's table, because such
    writes run a separate query."""
    found: SimpleQueue[dict[str, int] | None] = SimpleQueue()

    def get() -> None:
        try:
            found.put(counts.get)
        except Exception:  # noqa: BLE001 # py4j's, if the counts are lost
            found.put(None)

    Thread(target=get, daemon=True).start()
    try:
        return found.get(timeout=_PATIENCE)
    except Empty:
        return None
