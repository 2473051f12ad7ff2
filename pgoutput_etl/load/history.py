"""Mode history: a row for each version of a row, from the commit that wrote it to the one that took it away.

A version is what a commit left; what a transaction wrote and overwrote itself was never seen by anybody, and is none.
From is included and to is not, so that the rows with `from <= lsn < to` (or no to) are the table as of that commit.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from pgoutput_etl.changes.event_log import TRUNCATED
from pgoutput_etl.changes.events import INSERTED
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.load import commit, target_columns
from pgoutput_etl.load.commit import TargetRows, WriteResult
from pgoutput_etl.load.delta_types import to_event
from pgoutput_etl.load.key_match import key_ranges, same_key
from pgoutput_etl.load.net_effect import bag_content, entries_of_target, event_content, event_key_parts, with_sequence
from pgoutput_etl.load.row_states import EventLog, next_truncate, row_states, target_values, truncates_of
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.delta import delta_table, read_table
from pgoutput_etl.targets.modes import VALID_FROM_LSN, VALID_FROM_TS, VALID_TO_LSN, VALID_TO_TS


def write(spark: SparkSession, path: str, shape: TableShape, events: EventLog, before: TargetRows) -> WriteResult:
    """One commit; the session has its settings."""
    stored = read_table(spark, path) if before is TargetRows.ROWS else None
    if shape.is_bag:
        return _write_bag(spark, path, shape, events.frame, stored)
    return _write_keyed(spark, path, shape, events, stored)


def _write_keyed(
    spark: SparkSession, path: str, shape: TableShape, events: EventLog, stored: DataFrame | None
) -> WriteResult:
    current = None if stored is None else stored.where(F.col(VALID_TO_LSN).isNull())
    changes = _openings_and_closings(row_states(events, shape, current), shape).localCheckpoint()
    versions = changes.where(~F.col("_closes"))
    if stored is None:
        return commit.initialize(spark, path, _as_target(versions, shape))
    is_current = F.col("s._closes") & F.col(f"t.{VALID_TO_LSN}").isNull()
    condition = is_current & same_key(shape, key_ranges(changes, shape))
    merging = delta_table(spark, path).alias("t").merge(changes.alias("s"), condition)
    # Columns that change in the midst of a transaction cut it in two: what its first part left, no commit did.
    merging = merging.whenMatchedDelete(F.col(f"t.{VALID_FROM_LSN}") == F.col("s._lsn"))
    ended = {VALID_TO_LSN: F.col("s._lsn"), VALID_TO_TS: F.col("s._ts")}
    merging = merging.whenMatchedUpdate(set=target_columns.quoted_names(ended))
    merging = merging.whenNotMatchedInsert(
        ~F.col("s._closes"), values=target_columns.quoted_names(_values(shape, "s."))
    )
    merging.execute()
    return commit.write_result(spark, path)


def _openings_and_closings(states: DataFrame, shape: TableShape) -> DataFrame:
    """Per state that lives a row to insert, with `_to_lsn` and `_to_ts` of the one after it. Per key, from its first
    state, one that `_closes` what was current before."""
    in_order = Window.partitionBy(*(f"k{n}" for n in range(len(event_key_parts(shape))))).orderBy("_lsn")
    lined = states.withColumns(
        {"_to": F.lead(F.struct("_lsn", "_ts")).over(in_order), "_number": F.row_number().over(in_order)}
    )
    twice = lined.withColumn("_closes", F.explode(F.array(F.lit(True), F.lit(False))))
    wanted = twice.where(F.when(F.col("_closes"), F.col("_number") == 1).otherwise(F.col("_lives")))
    return wanted.select(
        "_closes",
        *(f"c{i}" for i in range(len(shape.columns))),
        *("_unrep", "_lsn", "_ts", "_xid"),
        F.col("_to._lsn").alias("_to_lsn"),
        F.col("_to._ts").alias("_to_ts"),
    )


def _values(shape: TableShape, alias: str = "") -> dict[str, Column]:
    return {
        **target_values(shape, alias),
        VALID_FROM_LSN: F.col(f"{alias}_lsn"),
        VALID_TO_LSN: F.col(f"{alias}_to_lsn"),
        VALID_FROM_TS: F.col(f"{alias}_ts"),
        VALID_TO_TS: F.col(f"{alias}_to_ts"),
    }


def _as_target(versions: DataFrame, shape: TableShape) -> DataFrame:
    return versions.select(*(value.alias(name) for name, value in _values(shape).items()))


def _write_bag(
    spark: SparkSession, path: str, shape: TableShape, events: DataFrame, stored: DataFrame | None
) -> WriteResult:
    """Equal rows can't be told apart, so that no MERGE could end one of them: the table is written anew, unless there
    are inserts alone."""
    ordered = with_sequence(events).localCheckpoint()
    paired = _paired(ordered, shape).localCheckpoint()
    versions = _as_target(_versions_of_bag(paired), shape)
    if stored is None:
        return commit.initialize(spark, path, versions)
    if not ordered.where(F.col("_op") != INSERTED).limit(1).count():
        commit.append(spark, path, versions)
        return commit.write_result(spark, path)
    first = truncates_of(ordered).select(F.get("_truncates", 0).alias("_emptied"))
    commit.overwrite(spark, path, _ended(stored, _taken(paired), first, shape).unionByName(versions))
    return commit.write_result(spark, path)


def _paired(ordered: DataFrame, shape: TableShape) -> DataFrame:
    """Each insert with the delete that takes its row, `_to`, and each delete of a row that was there before with its
    rank among its equals, `_rank`: the newest row goes first, as in a mirror.

    Counted up by inserts and down by deletes, an insert and the next delete from its level are a pair. A truncate ends
    all of them.
    """
    is_insert = F.col("_op") == INSERTED
    changes = ordered.where(F.col("_op") != TRUNCATED).crossJoin(F.broadcast(truncates_of(ordered)))
    before = F.size(F.filter("_truncates", lambda truncate: truncate["_seq"] < F.col("_seq")))
    changes = changes.withColumns({"_content": event_content(shape), "_epoch": before, "_emptied": next_truncate()})
    equals = Window.partitionBy("_content", "_epoch").orderBy("_seq")
    level = F.sum(F.when(is_insert, 1).otherwise(-1)).over(
        equals.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    counted = changes.withColumn("_level", level + F.when(is_insert, 0).otherwise(1))
    of_level = Window.partitionBy("_content", "_epoch", "_level").orderBy("_seq")
    next_delete = F.lead(F.struct("_lsn", "_ts")).over(of_level)
    emptied = F.struct(F.col("_emptied._seq._lsn").alias("_lsn"), F.col("_emptied._ts").alias("_ts"))
    is_first = F.row_number().over(of_level) == 1
    takes = ~is_insert & is_first & (F.col("_epoch") == 0)
    paired = counted.withColumns(
        {
            "_to": F.coalesce(next_delete, F.when(F.col("_emptied").isNotNull(), emptied)),
            "_rank": F.when(takes, 1 - F.col("_level")),
        }
    )
    return paired.where(is_insert | F.col("_rank").isNotNull())


def _versions_of_bag(paired: DataFrame) -> DataFrame:
    to_lsn, to_ts = F.col("_to._lsn"), F.col("_to._ts")
    inserted = paired.where((F.col("_op") == INSERTED) & (to_lsn.isNull() | (to_lsn > F.col("_lsn"))))
    return inserted.withColumns({"_to_lsn": to_lsn, "_to_ts": to_ts})


def _taken(paired: DataFrame) -> DataFrame:
    taken = paired.where(F.col("_rank").isNotNull())
    return taken.select(
        F.col("_content").alias("gone"), F.col("_rank").alias("nth"), F.struct("_lsn", "_ts").alias("taken")
    )


def _ended(stored: DataFrame, taken: DataFrame, first: DataFrame, shape: TableShape) -> DataFrame:
    """The target's rows, of which those that are current end where they are taken, or where the table is emptied first.

    A row goes through as one struct, so that its columns' names meet none of those used here.
    """
    own = bag_content(shape, (to_event(F.col(quoted(c.name)), c.type) for c in shape.columns), entries_of_target())
    rows = stored.select(F.struct(*(quoted(name) for name in stored.columns)).alias("row"), own.alias("content"))
    is_current = F.col(f"row.{VALID_TO_LSN}").isNull()
    newest_first = Window.partitionBy("content", is_current).orderBy(F.desc(f"row.{VALID_FROM_LSN}"))
    ranked = rows.withColumn("rank", F.when(is_current, F.row_number().over(newest_first)))
    same = (F.col("content") == F.col("gone")) & (F.col("rank") == F.col("nth"))
    joined = ranked.join(taken, same, "left").crossJoin(F.broadcast(first))
    to_lsn = F.coalesce(F.col("taken._lsn"), F.col("_emptied._seq._lsn"))
    to_ts = F.coalesce(F.col("taken._ts"), F.col("_emptied._ts"))
    ended = joined.withColumns({"to_lsn": F.when(is_current, to_lsn), "to_ts": F.when(is_current, to_ts)})
    # What the same transaction had written before its columns changed, no commit left.
    ended = ended.where(F.col("to_lsn").isNull() | (F.col("to_lsn") > F.col(f"row.{VALID_FROM_LSN}")))
    new = {VALID_TO_LSN: F.col("to_lsn"), VALID_TO_TS: F.col("to_ts")}
    return ended.select(
        *(
            F.coalesce(F.col(f"row.{quoted(name)}"), new[name]).alias(name) if name in new else f"row.{quoted(name)}"
            for name in stored.columns
        )
    )
