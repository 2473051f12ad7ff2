"""Computes the state of each row after every commit that wrote it, from all of a table's events.

Only a commit's last event on a row counts; columns that it leaves unchanged take the values that earlier events sent.

Columns of the states: k0… (the key as expressions to group by), c0…, _unrep, _lsn, _ts, _xid, and `_lives`, which is
false if the commit deleted the row; then only the key is known.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pgoutput_etl.changes.event_log import TRUNCATED
from pgoutput_etl.changes.events import DELETED, MOVED_OUT, UPDATED
from pgoutput_etl.load.net_effect import (
    all_of,
    brings_unsent,
    delete_events,
    event_key_parts,
    resolve_moves,
    sent_value,
    stored_keys,
    target_key_parts,
    with_sent_values,
    with_sequence,
)
from pgoutput_etl.load.target_columns import (
    entries_of,
    entries_of_target,
    no_entries,
    stored_value,
    unknown_entry,
    with_entries,
)
from pgoutput_etl.schema.table_shape import TableShape


@dataclass(frozen=True, slots=True)
class EventLog:
    """All of a table's change events, including truncates. size: approximate bytes, or None if unknown. are_plain: all
    are INSERTs of distinct keys, so that none contradicts another."""

    frame: DataFrame
    size: int | None = None
    has_truncates: bool = True
    are_plain: bool = False


def row_states(events: EventLog, shape: TableShape, living: DataFrame | None) -> DataFrame:
    """One row per key and commit, for a table with a key. living: the target's current rows, one per key."""
    changes = with_sequence(events.frame)
    if events.has_truncates:
        changes = without_truncates(changes.localCheckpoint(), shape, living)
    if shape.toast and shape.moves_toast:
        changes = changes.localCheckpoint()
        if changes.where(brings_unsent(shape)).limit(1).count():
            changes = resolve_moves(changes, shape, living)
    states = _last_of_each_commit(_filled_from_events(changes, shape), shape)
    states = _filled_from_target(states, shape, living)
    names = key_names(shape) + [f"c{i}" for i in range(len(shape.columns))]
    unrepresentable = F.coalesce("_unrep", no_entries()).alias("_unrep")
    lives = (~F.col("_op").isin(DELETED, MOVED_OUT)).alias("_lives")
    return states.select(*names, unrepresentable, "_lsn", "_ts", "_xid", "_seq", lives)


def key_names(shape: TableShape) -> list[str]:
    """k0…: the key columns of the states."""
    return [f"k{n}" for n in range(len(event_key_parts(shape)))]


def truncates_of(events: DataFrame) -> DataFrame:
    """One row: `_truncates`, an array of (_seq, _ts, _xid) in order. events: with `_seq`."""
    truncates = events.where(F.col("_op") == TRUNCATED)
    return truncates.agg(F.sort_array(F.collect_list(F.struct("_seq", "_ts", "_xid"))).alias("_truncates"))


def next_truncate() -> Column:
    """The first of `_truncates` after `_seq`, or NULL."""
    return F.get(F.filter("_truncates", lambda truncate: truncate["_seq"] > F.col("_seq")), 0)


def without_truncates(events: DataFrame, shape: TableShape, living: DataFrame | None) -> DataFrame:
    """Replaces each truncate with DELETEs of all rows, in the target and written since."""
    truncates = F.broadcast(truncates_of(events))
    changes = events.where(F.col("_op") != TRUNCATED)
    names = [shape.columns[i].name for i in shape.key]
    key_entries = F.filter("_unrep", lambda entry: entry["key"].isin(names)).alias("_unrep")
    written = changes.crossJoin(truncates).withColumn("_at", next_truncate())
    emptied = written.select(*(f"c{i}" for i in shape.key), key_entries, "_at")
    if living is not None:
        stored = stored_keys(living, shape).crossJoin(truncates).withColumn("_at", F.get("_truncates", 0))
        emptied = emptied.unionByName(stored.drop("_truncates"))
    deletes = emptied.where(F.col("_at").isNotNull()).distinct()
    at = {name: F.col(f"_at.{name}") for name in ("_seq", "_ts", "_xid")}
    at |= {name: F.col(f"_at._seq.{name}") for name in ("_lsn", "_file", "_ordinal")}
    return changes.unionByName(delete_events(deletes, at, changes.schema, shape))


def _filled_from_events(changes: DataFrame, shape: TableShape) -> DataFrame:
    """Fills in unchanged values from earlier events of the key. `keep3`: c3 is still unknown. `_is_old`: the row
    existed before the key's first event."""
    keyed = changes.withColumns({f"k{n}": part for n, part in enumerate(event_key_parts(shape))})
    if not shape.toast:
        return keyed
    keys = key_names(shape)
    until_now = Window.partitionBy(*keys).orderBy("_seq").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    begun = F.last(F.when(F.col("_op") != UPDATED, F.col("_seq")), ignorenulls=True).over(until_now)
    sent = {f"sent{i}": F.last(sent_value(i, shape), ignorenulls=True).over(until_now) for i in shape.toast}
    filled = keyed.withColumns({"_begun": begun, **sent})
    columns = with_sent_values(shape, F.col("_begun")) | {"_is_old": F.col("_begun").isNull()}
    others = ("_op", "_lsn", "_ts", "_xid", "_seq")
    return filled.select(*keys, *(column.alias(name) for name, column in columns.items()), *others)


def _last_of_each_commit(changes: DataFrame, shape: TableShape) -> DataFrame:
    newest_first = Window.partitionBy(*key_names(shape), "_lsn").orderBy(F.desc("_seq"))
    ranked = changes.withColumn("_rank", F.row_number().over(newest_first))
    return ranked.where(F.col("_rank") == 1).drop("_rank")


def _filled_from_target(states: DataFrame, shape: TableShape, living: DataFrame | None) -> DataFrame:
    """Fills in the remaining values from the target's row if it is the row that was updated; otherwise marks them
    unknown."""
    if not shape.toast:
        return states
    joined = states.withColumn("_stored", F.lit(None).cast("int"))
    if living is not None:
        stored = living.select(
            *(part.alias(f"t{n}") for n, part in enumerate(target_key_parts(shape))),
            *(stored_value(shape.columns[i]).alias(f"s{i}") for i in shape.toast),
            entries_of_target().alias("_stored_unrep"),
            F.lit(1).alias("_stored"),
        )
        same_key = all_of(F.col(f"t{n}").eqNullSafe(F.col(name)) for n, name in enumerate(key_names(shape)))
        joined = states.join(stored, F.col("_is_old") & same_key, "left")
    left: list[tuple[Column, Column]] = []
    changed: dict[str, Column] = {}
    for i in shape.toast:
        name = shape.columns[i].name
        is_open, is_known = F.col(f"keep{i}"), F.col("_stored").isNotNull()
        entries: Column = unknown_entry(name)
        if living is not None:
            changed[f"c{i}"] = F.when(is_open, F.col(f"s{i}")).otherwise(F.col(f"c{i}"))
            entries = F.when(is_known, entries_of(F.col("_stored_unrep"), name)).otherwise(entries)
        left.append((is_open, entries))
    changed["_unrep"] = with_entries(F.col("_unrep"), left)
    return joined.select(*(changed.get(name, F.col(name)).alias(name) for name in states.columns))
