"""Reduces change events to their net effect: at most one action per row.

replay/mirror.py is the reference and applies events one by one. One aggregation per key gives the same result, because
the effect of an event depends only on the events of its own key. The one exception: a row that moves to another key
takes along unchanged TOAST values from the key it left. `resolve_moves` looks those up first.

Events have the columns of TableShape.event_schema(); `_seq` orders them by commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import and_, or_

import pyarrow as pa
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from pgoutput_etl.changes.events import DELETED, INSERTED, MOVED_IN, MOVED_OUT, UPDATED
from pgoutput_etl.changes.key_facts import Ranges
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.load.batch_keys import BatchKeys
from pgoutput_etl.load.key_chains import chain_of_key
from pgoutput_etl.load.target_columns import (
    comparable,
    entries_of,
    entries_of_target,
    no_entries,
    stored_value,
    unknown_entry,
    with_entries,
)
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.targets.modes import UNREPRESENTABLE_COLUMN


@dataclass(frozen=True)
class TableEvents:
    """A table's change events.

    make: returns them as a DataFrame. is_net: there is one event per key, with every column, in net_schema. size:
    approximate bytes, or None if unknown. is_local: the events are on the driver and not recomputed on each use.
    only_inserts: no event is an UPDATE or DELETE. deletes: an event may remove a row. keys: the events' keys if all are
    INSERTs; None if unknown. ranges: key ranges, if the events are on the driver. net: the events, if they are on the
    driver and are net or INSERTs of a bag. unreduced: other events with keys, if they are on the driver.
    """

    make: Callable[[], DataFrame]
    is_net: bool = False
    size: int | None = None
    is_local: bool = False
    only_inserts: bool = False
    deletes: bool = True
    keys: BatchKeys | None = None
    ranges: Ranges = field(default_factory=dict)
    net: pa.RecordBatch | None = None
    unreduced: pa.RecordBatch | None = None

    @cached_property
    def frame(self) -> DataFrame:
        return self.make()

    @property
    def are_plain(self) -> bool:
        """True if all events are INSERTs of distinct keys, so that none contradicts another. An event on the driver may
        stand for INSERTs that it superseded."""
        if not self.only_inserts or self.keys is None or not self.keys.facts.are_unique:
            return False
        return self.net is None or self.net.column("_chain").null_count == self.net.num_rows


def with_sequence(events: DataFrame) -> DataFrame:
    """Adds `_seq`, unique per event. An UPDATE of a bag, or one that moves a row to another key, is two events; the old
    row's comes first, because both rows may be equal."""
    step = F.when(F.col("_op").isin(MOVED_IN, INSERTED), 1).otherwise(0).alias("step")
    return events.withColumn("_seq", F.struct("_lsn", "_file", "_ordinal", step))


def net_rows(events: DataFrame, shape: TableShape) -> DataFrame:
    """One row per key: c0…, _lsn, _ts, _xid, _unrep, `_chain`, `_delete`, and for each TOAST column `keep0…`, true if
    the target keeps its value."""
    grouped = events.groupBy(*keyed_columns(event_key_parts(shape)))
    columns = [f"c{i}" for i in range(len(shape.columns))] + [f"u{i}" for i in shape.toast]
    last = F.max(F.struct("_seq", "_op", "_lsn", "_ts", "_xid", "_unrep", *columns)).alias("last")
    begun = F.max(F.when(F.col("_op") != UPDATED, F.col("_seq"))).alias("begun")
    chain = chain_of_key(shape).alias("_chain")
    latest = grouped.agg(last, begun, chain, *(F.max(sent_value(i, shape)).alias(f"sent{i}") for i in shape.toast))
    return latest.select(
        *(column.alias(name) for name, column in with_sent_values(shape, F.col("begun"), "last.").items()),
        *(F.col(f"last.{name}").alias(name) for name in ("_lsn", "_ts", "_xid")),
        F.col("last._op").isin(DELETED, MOVED_OUT).alias("_delete"),
        "_chain",
    )


def sent_value(i: int, shape: TableShape) -> Column:
    """The value that an event sent for a TOAST column, and its entries in `_unrep`; NULL if the event sent none."""
    odd = entries_of(F.coalesce(F.col("_unrep"), no_entries()), shape.columns[i].name).alias("odd")
    is_sent = F.col("_op").isin(INSERTED, UPDATED, MOVED_IN) & ~F.col(f"u{i}")
    return F.when(is_sent, F.struct("_seq", F.col(f"c{i}").alias("value"), odd))


def with_sent_values(shape: TableShape, begun: Column, event: str = "") -> dict[str, Column]:
    """An event's c0… and _unrep, with unchanged values filled in from `sent0…`, the key's newest `sent_value`.
    `keep0…`: true if still unknown. begun: `_seq` of the event that began the current row. event: alias of the
    event."""
    columns = {f"c{i}": F.col(f"{event}c{i}") for i in range(len(shape.columns))}
    entries = []
    for i in shape.toast:
        value, unchanged = F.col(f"sent{i}"), F.col(f"{event}u{i}")
        # A value from before the current row took this key belongs to another row.
        carried = value.isNotNull() & (begun.isNull() | (value["_seq"] >= begun))
        columns[f"c{i}"] = F.when(unchanged & carried, value["value"]).otherwise(columns[f"c{i}"])
        columns[f"keep{i}"] = unchanged & ~carried
        entries.append((unchanged & carried, value["odd"]))
    return {**columns, "_unrep": with_entries(F.col(f"{event}_unrep"), entries)}


def as_net_rows(events: DataFrame, shape: TableShape) -> DataFrame:
    """Like `net_rows`, for events in net_schema, which are already one per key."""
    return events.select("*", *(F.lit(False).alias(f"keep{i}") for i in shape.toast))


def event_key_parts(shape: TableShape, column: str = "c{}", odd: str = "_unrep") -> list[Column]:
    """The key as expressions to group and join by. They include the text of unrepresentable values: Delta has no date
    `infinity`, but a key may have it."""
    parts = []
    for i in shape.key:
        parts.append(F.col(column.format(i)))
        if shape.columns[i].type.may_be_unrepresentable:
            parts.append(F.get(entries_of(F.col(odd), shape.columns[i].name), 0)["value"])
    return parts


def keyed_columns(parts: Iterable[Column]) -> list[Column]:
    """k0…: a key's parts as columns, for `has_key`."""
    return [part.alias(f"k{n}") for n, part in enumerate(parts)]


def has_key(shape: TableShape) -> Column:
    """Joins events with rows whose key is in k0… ."""
    return all_of(part.eqNullSafe(F.col(f"k{n}")) for n, part in enumerate(event_key_parts(shape)))


def stored_keys(target: DataFrame, shape: TableShape) -> DataFrame:
    """The keys of a target's rows in the columns of events: c… and _unrep."""
    names = [shape.columns[i].name for i in shape.key]
    entries = F.filter(entries_of_target(), lambda entry: entry["key"].isin(names)).alias("_unrep")
    return target.select(*(stored_value(shape.columns[i]).alias(f"c{i}") for i in shape.key), entries)


def delete_events(keys: DataFrame, at: Mapping[str, Column], schema: StructType, shape: TableShape) -> DataFrame:
    """One DELETE per key. keys: from `stored_keys`. at: _lsn, _file, _ordinal, and other columns that order events.
    schema: of events."""
    values = {
        **at,
        "_op": F.lit(DELETED),
        "_unrep": F.col("_unrep"),
        **{f"u{i}": F.lit(False) for i in shape.toast},
        **{f"c{i}": F.col(f"c{i}") for i in shape.key},
    }
    missing = F.lit(None)
    return keys.select(*(values.get(f.name, missing).cast(f.dataType).alias(f.name) for f in schema.fields))


def brings_unsent(shape: TableShape) -> Column:
    """True for an event that moves a row to another key with values that were not sent."""
    return (F.col("_op") == MOVED_IN) & _any(F.col(f"u{i}") for i in shape.toast)


def _any(conditions: Iterable[Column]) -> Column:
    """A single expression; `any_of` would nest one per column."""
    return F.array_contains(F.array(*conditions), True)


def resolve_moves(events: DataFrame, shape: TableShape, target: DataFrame | None) -> DataFrame:
    """Fills in the unchanged values that moved rows took along from the key they left.

    Such a value is the newest one sent under the old key before the move; failing that, the value the row brought when
    it moved to the old key; failing that, the target's. An unknown value is NULL, with a NULL text in `_unrep`. target:
    its rows before this batch.
    """
    if not shape.toast:
        return events
    links = _links(events, shape).localCheckpoint()
    while links.where(F.col("through").isNotNull()).limit(1).count():
        links = _follow(links, shape).localCheckpoint()
    answers = _from_target(links, shape, target).drop(*_old_key(shape)).withColumnRenamed("move", "_move")
    joined = events.join(answers, brings_unsent(shape) & (F.col("_seq") == F.col("_move")), "left")
    changed: dict[str, Column] = {}
    entries = []
    for i in shape.toast:
        is_open = (F.col("_op") == MOVED_IN) & F.col(f"u{i}")
        changed[f"c{i}"] = F.when(is_open, F.col(f"value{i}")).otherwise(F.col(f"c{i}"))
        changed[f"u{i}"] = F.col(f"u{i}") & ~is_open
        entries.append((is_open & F.col(f"known{i}"), F.col(f"odd{i}")))
        entries.append((is_open & ~F.col(f"known{i}"), unknown_entry(shape.columns[i].name)))
    changed["_unrep"] = F.when(brings_unsent(shape), with_entries(F.col("_unrep"), entries)).otherwise(F.col("_unrep"))
    return joined.select(*(changed.get(name, F.col(name)).alias(name) for name in events.columns)).localCheckpoint()


def _links(events: DataFrame, shape: TableShape) -> DataFrame:
    """Links each move that leaves columns unchanged to the source of their values. For each TOAST column i: `known{i}`,
    `value{i}`, and `odd{i}` if an event under the old key sent the value; `waits{i}` if the newest event with a value
    is itself a move that left it unchanged, the one in `through`. Neither is true if the row predates the batch. Ignore
    the fields of columns that the move did send."""
    keys = _old_key(shape)
    moves = events.where(brings_unsent(shape)).select(F.col("_seq").alias("move"), *keys)
    is_move = F.col("_op") == MOVED_IN
    sources = events.where(F.col("_op").isin(INSERTED, UPDATED, MOVED_IN)).select(
        "_seq",
        *(part.alias(f"g{n}") for n, part in enumerate(event_key_parts(shape))),
        F.when(is_move, F.col("_seq")).alias("through"),
        *(_source(i, is_move, shape).alias(f"source{i}") for i in shape.toast),
    )
    joined = moves.join(sources, _is_old_key(shape, "g") & (F.col("_seq") < F.col("move")), "left")
    newest = joined.groupBy("move").agg(
        *(F.first(name).alias(name) for name in keys),
        # Every move to the old key is a source for each column, so only the newest one needs to be waited for.
        F.max("through").alias("through"),
        *(F.max(f"source{i}").alias(f"source{i}") for i in shape.toast),
    )
    columns: dict[str, Column] = {}
    for i in shape.toast:
        source = F.col(f"source{i}")
        columns[f"known{i}"] = source.isNotNull() & ~source["waits"]
        columns[f"waits{i}"] = source.isNotNull() & source["waits"]
        columns |= {f"value{i}": source["value"], f"odd{i}": source["odd"]}
    waits = _any(columns[f"waits{i}"] for i in shape.toast)
    named = (column.alias(name) for name, column in columns.items())
    return newest.select("move", *keys, F.when(waits, F.col("through")).alias("through"), *named)


def _source(i: int, is_move: Column, shape: TableShape) -> Column:
    """An event's value for a TOAST column: sent, or brought along by a move; NULL otherwise."""
    odd = entries_of(F.coalesce(F.col("_unrep"), no_entries()), shape.columns[i].name).alias("odd")
    source = F.struct("_seq", F.col(f"u{i}").alias("waits"), F.col(f"c{i}").alias("value"), odd)
    return F.when(is_move | ~F.col(f"u{i}"), source)


def _old_key(shape: TableShape) -> list[str]:
    return [*(f"f{k}" for k in shape.key), "_from_unrep"]


def _is_old_key(shape: TableShape, prefix: str) -> Column:
    """Joins a move's old key (f0…, _from_unrep) with the key parts `prefix`0…."""
    parts = event_key_parts(shape, "f{}", "_from_unrep")
    return all_of(F.col(f"{prefix}{n}").eqNullSafe(part) for n, part in enumerate(parts))


def _follow(links: DataFrame, shape: TableShape) -> DataFrame:
    """A move that waits for another move adopts that move's values, or waits for whatever the other one waits for. Each
    call halves the chains."""
    other = links.select(*(F.col(name).alias(f"o_{name}") for name in links.columns))
    joined = links.join(other, F.col("through") == F.col("o_move"), "left")
    columns: dict[str, Column] = {}
    for i in shape.toast:
        for name in (f"known{i}", f"waits{i}", f"value{i}", f"odd{i}"):
            columns[name] = F.when(F.col(f"waits{i}"), F.col(f"o_{name}")).otherwise(F.col(name))
    waits = _any(columns[f"waits{i}"] for i in shape.toast)
    columns["through"] = F.when(waits, F.col("o_through"))
    # A value that is still unknown when nothing waits any more is from before the batch, under the row's first key.
    moved = F.col("through").isNotNull()
    columns |= {name: F.when(moved, F.col(f"o_{name}")).otherwise(F.col(name)) for name in _old_key(shape)}
    return joined.select(*(columns.get(name, F.col(name)).alias(name) for name in links.columns))


def _from_target(links: DataFrame, shape: TableShape, target: DataFrame | None) -> DataFrame:
    if target is None:
        return links
    stored = target.select(
        *(part.alias(f"t{n}") for n, part in enumerate(target_key_parts(shape))),
        *(stored_value(shape.columns[i]).alias(f"t_value{i}") for i in shape.toast),
        *(entries_of(entries_of_target(), shape.columns[i].name).alias(f"t_odd{i}") for i in shape.toast),
        F.lit(True).alias("t_exists"),
    )
    is_open = _any(~F.col(f"known{i}") for i in shape.toast)
    joined = links.join(stored, is_open & _is_old_key(shape, "t"), "left")
    columns: dict[str, Column] = {}
    for i in shape.toast:
        known, use = F.col(f"known{i}"), ~F.col(f"known{i}") & F.col("t_exists").isNotNull()
        columns[f"known{i}"] = known | F.col("t_exists").isNotNull()
        for name in ("value", "odd"):
            columns[f"{name}{i}"] = F.when(use, F.col(f"t_{name}{i}")).otherwise(F.col(f"{name}{i}"))
    return joined.select("move", *(column.alias(name) for name, column in columns.items()))


def target_key_parts(shape: TableShape, alias: str = "") -> list[Column]:
    """Like `event_key_parts`, for a target's row."""
    parts = []
    for i in shape.key:
        parts.append(stored_value(shape.columns[i], alias))
        if shape.columns[i].type.may_be_unrepresentable:
            parts.append(F.col(alias + UNREPRESENTABLE_COLUMN)[F.lit(shape.columns[i].name)])
    return parts


def net_key_parts(shape: TableShape, alias: str) -> list[Column]:
    """Like `event_key_parts`, for a net row."""
    return event_key_parts(shape, alias + "c{}", f"{alias}_unrep")


def net_of_bag(events: DataFrame, shape: TableShape) -> DataFrame:
    """The events of a bag that have an effect: INSERTs whose rows remain, and DELETEs of rows in the target.

    A DELETE removes the newest of equal rows, or nothing if no row matches, because its row may predate the slot.
    `_level` counts equal rows, starting at 0 for those in the target.
    """
    is_insert = F.col("_op") == INSERTED
    in_order = Window.partitionBy("_content").orderBy("_seq")
    first, here, last = Window.unboundedPreceding, Window.currentRow, Window.unboundedFollowing
    level = F.sum(F.when(is_insert, 1).otherwise(-1)).over(in_order.rowsBetween(first, here))
    counted = events.withColumn("_content", event_content(shape)).withColumn("_level", level)
    marked = counted.withColumns(
        {
            "_lowest_before": F.coalesce(F.min("_level").over(in_order.rowsBetween(first, -1)), F.lit(0)),
            "_lowest_after": F.min("_level").over(in_order.rowsBetween(here, last)),
        }
    )
    stays = is_insert & (F.col("_lowest_after") == F.col("_level"))
    takes = ~is_insert & (F.col("_level") < F.least(F.col("_lowest_before"), F.lit(0)))
    return marked.where(stays | takes).drop("_level", "_lowest_before", "_lowest_after", "_content")


def event_content(shape: TableShape) -> Column:
    """An expression over events that is equal for equal rows of a bag."""
    return _content(shape, [F.col(f"c{i}") for i in range(len(shape.columns))], F.col("_unrep"))


def rows_with_content(target: DataFrame, shape: TableShape) -> DataFrame:
    """A bag's rows as `row`, a struct, so that column names can't collide, with `content`, which equals the
    `event_content` of equal rows."""
    row = F.struct(*(quoted(name) for name in target.columns))
    return target.select(row.alias("row"), target_content(shape).alias("content"))


def target_content(shape: TableShape, alias: str = "") -> Column:
    """Like `event_content`, for a target's row."""
    return _content(shape, [stored_value(column, alias) for column in shape.columns], entries_of_target(alias))


def _content(shape: TableShape, values: Iterable[Column], entries: Column) -> Column:
    """A single struct, because Spark takes minutes to plan grouping and joining by two hundred columns."""
    pairs = zip(values, shape.columns, strict=True)
    parts = [comparable(value, column.type) for value, column in pairs if not column.retired]
    retired = [column.name for column in shape.columns if column.retired]
    live_entries = F.coalesce(entries, no_entries())
    if retired:
        live_entries = F.filter(live_entries, lambda entry: ~entry["key"].isin(retired))
    return F.struct(*(part.alias(f"p{n}") for n, part in enumerate([*parts, F.array_sort(live_entries)])))


def all_of(conditions: Iterable[Column]) -> Column:
    return reduce(and_, conditions)


def any_of(conditions: Iterable[Column]) -> Column:
    return reduce(or_, conditions)
