"""Mode history: stores every version of a row, from the commit that wrote it to the commit that ended it.

Only the state that a commit leaves is a version; values that a transaction wrote and then overwrote are not. `from` is
inclusive and `to` exclusive: the rows with `from <= lsn < to`, or without `to`, are the table as of `lsn`.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pgoutput_etl.changes.event_log import TRUNCATED
from pgoutput_etl.changes.events import INSERTED
from pgoutput_etl.changes.key_facts import Ranges
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.load import commit
from pgoutput_etl.load.bag import replace_equal_rows, with_content_among
from pgoutput_etl.load.bag_deletes import settled
from pgoutput_etl.load.commit import TargetRows, WriteResult
from pgoutput_etl.load.key_match import key_ranges, same_key
from pgoutput_etl.load.layout import has_change_feed
from pgoutput_etl.load.merge import RowMerge
from pgoutput_etl.load.mismatches import mismatches_in_log
from pgoutput_etl.load.net_effect import event_content, rows_with_content, with_sequence
from pgoutput_etl.load.row_states import EventLog, key_names, next_truncate, row_states, truncates_of
from pgoutput_etl.load.shared_table import tagged_target
from pgoutput_etl.load.table_writer import TableCommit
from pgoutput_etl.load.target_columns import selected, target_values
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.targets.modes import VALID_FROM_LSN, VALID_FROM_TS, VALID_TO_LSN, VALID_TO_TS


def write(table: TableCommit, shape: TableShape, events: EventLog, before: TargetRows) -> WriteResult:
    """Makes one Delta commit."""
    stored = tagged_target(table.spark, table.place, shape.columns) if before is TargetRows.ROWS else None
    mismatches = mismatches_in_log(events, shape, _current(stored))
    if shape.is_bag:
        result = _write_bag(table, shape, events.frame, stored)
    else:
        result = _write_keyed(table, shape, events, stored)
    return replace(result, mismatches=mismatches)


def _write_keyed(table: TableCommit, shape: TableShape, events: EventLog, stored: DataFrame | None) -> WriteResult:
    changes = _changes(shape, events, stored).localCheckpoint()
    if stored is None:
        return commit.initialize(table, _new_versions(changes, shape), shape.layout)
    _merge(changes, shape, key_ranges(changes, shape, table.place)).execute(table)
    return commit.written(table)


def rows_after(stored: DataFrame | None, shape: TableShape, events: EventLog) -> DataFrame:
    """See mirror.rows_after."""
    if not shape.is_bag:
        changes = _changes(shape, events, stored)
        return _new_versions(changes, shape) if stored is None else _merge(changes, shape, {}).after(stored)
    ordered = with_sequence(events.frame)
    paired = _paired(ordered, shape)
    versions = selected(_versions_of_bag(paired), _values(shape))
    if stored is None:
        return versions
    deletes = settled(_deletes(paired), stored.where(F.col(VALID_TO_LSN).isNull()), shape)
    ended = _ended(stored, deletes, _first_truncate(ordered), shape)
    return ended.unionByName(versions, allowMissingColumns=True)


def _current(stored: DataFrame | None) -> DataFrame | None:
    return None if stored is None else stored.where(F.col(VALID_TO_LSN).isNull())


def _changes(shape: TableShape, events: EventLog, stored: DataFrame | None) -> DataFrame:
    return _openings_and_closings(row_states(events, shape, _current(stored)), shape)


def _new_versions(changes: DataFrame, shape: TableShape) -> DataFrame:
    return selected(changes.where(~F.col("_closes")), _values(shape))


def _merge(changes: DataFrame, shape: TableShape, ranges: Ranges) -> RowMerge:
    is_current = F.col("s._closes") & F.col(f"t.{VALID_TO_LSN}").isNull()
    ended = {VALID_TO_LSN: F.col("s._lsn"), VALID_TO_TS: F.col("s._ts")}
    # A schema change within a transaction splits it into two spans; the state after the first is not a version.
    is_deleted = F.col(f"t.{VALID_FROM_LSN}") == F.col("s._lsn")
    condition = is_current & same_key(shape, ranges)
    return RowMerge(changes, condition, ended, _values(shape, "s."), is_deleted, ~F.col("s._closes"))


def _openings_and_closings(states: DataFrame, shape: TableShape) -> DataFrame:
    """One row to insert per living state, with `_to_lsn` and `_to_ts` from the next state's commit, and one row per key
    that `_closes` the stored current version at the key's first state."""
    in_order = Window.partitionBy(*key_names(shape)).orderBy("_lsn")
    numbered = states.withColumns(
        {"_to": F.lead(F.struct("_lsn", "_ts")).over(in_order), "_number": F.row_number().over(in_order)}
    )
    doubled = numbered.withColumn("_closes", F.explode(F.array(F.lit(True), F.lit(False))))
    rows = doubled.where(F.when(F.col("_closes"), F.col("_number") == 1).otherwise(F.col("_lives")))
    return rows.select(
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


def _write_bag(table: TableCommit, shape: TableShape, events: DataFrame, stored: DataFrame | None) -> WriteResult:
    """Rewrites the table unless all events are INSERTs: a MERGE can't end just one of several equal rows."""
    ordered = with_sequence(events).localCheckpoint()
    paired = _paired(ordered, shape).localCheckpoint()
    versions = selected(_versions_of_bag(paired), _values(shape))
    if stored is None:
        return commit.initialize(table, versions, shape.layout)
    if not ordered.where(F.col("_op") != INSERTED).limit(1).count():
        return commit.append(table, versions)
    current = stored.where(F.col(VALID_TO_LSN).isNull())
    first, deletes = _first_truncate(ordered), settled(_deletes(paired), current, shape)
    if not has_change_feed(table.spark, table.place):
        return commit.initialize(
            table, _ended(stored, deletes, first, shape).unionByName(versions, allowMissingColumns=True)
        )
    # An overwrite would put all rows into the feed.
    is_emptied = first.where(F.col("_emptied").isNotNull()).limit(1).count()
    contents = rows_with_content(current, shape).select(F.col("content").alias("gone")) if is_emptied else deletes
    gone = contents.select("gone").distinct().localCheckpoint()
    ended = _ended(with_content_among(current, gone, shape), deletes, first, shape)
    is_current = F.col(f"t.{VALID_TO_LSN}").isNull()
    return replace_equal_rows(table, shape, gone, ended.unionByName(versions), is_current)


def _first_truncate(ordered: DataFrame) -> DataFrame:
    """One row: `_emptied`, the first truncate, or NULL."""
    return truncates_of(ordered).select(F.get("_truncates", 0).alias("_emptied"))


def _paired(ordered: DataFrame, shape: TableShape) -> DataFrame:
    """Pairs INSERTs with DELETEs. `_to`: the commit that deletes an inserted row. `_rank`: for a DELETE of a row that
    is in the target, the row's rank among equal rows, newest first, as in a mirror.

    An INSERT raises the level and a DELETE lowers it; an INSERT and the next DELETE from its level are a pair. A
    truncate ends all rows.
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
    by_level = Window.partitionBy("_content", "_epoch", "_level").orderBy("_seq")
    next_delete = F.lead(F.struct("_lsn", "_ts")).over(by_level)
    emptied = F.struct(F.col("_emptied._seq._lsn").alias("_lsn"), F.col("_emptied._ts").alias("_ts"))
    is_first = F.row_number().over(by_level) == 1
    deletes_stored = ~is_insert & is_first & (F.col("_epoch") == 0)
    paired = counted.withColumns(
        {
            "_to": F.coalesce(next_delete, F.when(F.col("_emptied").isNotNull(), emptied)),
            "_rank": F.when(deletes_stored, 1 - F.col("_level")),
        }
    )
    return paired.where(is_insert | F.col("_rank").isNotNull())


def _versions_of_bag(paired: DataFrame) -> DataFrame:
    to_lsn, to_ts = F.col("_to._lsn"), F.col("_to._ts")
    inserted = paired.where((F.col("_op") == INSERTED) & (to_lsn.isNull() | (to_lsn > F.col("_lsn"))))
    return inserted.withColumns({"_to_lsn": to_lsn, "_to_ts": to_ts})


def _deletes(paired: DataFrame) -> DataFrame:
    deletes = paired.where(F.col("_rank").isNotNull())
    own = (F.col("_content").alias("gone"), F.col("_rank").cast("int").alias("nth"))
    return deletes.select("_seq", *own, F.struct("_lsn", "_ts").alias("deleted"))


def _ended(stored: DataFrame, deletes: DataFrame, first: DataFrame, shape: TableShape) -> DataFrame:
    """The target's rows; current rows end at their DELETE or at the first truncate."""
    is_current = F.col(f"row.{VALID_TO_LSN}").isNull()
    newest_first = Window.partitionBy("content", is_current).orderBy(F.desc(f"row.{VALID_FROM_LSN}"))
    rank = F.when(is_current, F.row_number().over(newest_first))
    ranked = rows_with_content(stored, shape).withColumn("rank", rank)
    same = (F.col("content") == F.col("gone")) & (F.col("rank") == F.col("nth"))
    joined = ranked.join(deletes, same, "left").crossJoin(F.broadcast(first))
    to_lsn = F.coalesce(F.col("deleted._lsn"), F.col("_emptied._seq._lsn"))
    to_ts = F.coalesce(F.col("deleted._ts"), F.col("_emptied._ts"))
    ended = joined.withColumns({"to_lsn": F.when(is_current, to_lsn), "to_ts": F.when(is_current, to_ts)})
    # A row that the same transaction wrote before it changed the columns is not a version.
    ended = ended.where(F.col("to_lsn").isNull() | (F.col("to_lsn") > F.col(f"row.{VALID_FROM_LSN}")))
    new = {VALID_TO_LSN: F.col("to_lsn"), VALID_TO_TS: F.col("to_ts")}
    return ended.select(
        *(
            F.coalesce(F.col(f"row.{quoted(name)}"), new[name]).alias(name) if name in new else f"row.{quoted(name)}"
            for name in stored.columns
        )
    )
