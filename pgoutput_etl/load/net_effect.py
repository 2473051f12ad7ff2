"""Reduces change events to their net effect: at most one action per row.

replay/mirror.py is the reference; it applies one event after the other. One aggregation per key gives the same result,
because an event's meaning depends only on the events of its own key. The one exception: a row that moves to another key
brings along unchanged TOAST values from the key it left. `resolve_moves` looks those up first.

Events have the columns of TableShape.event_schema(); `_seq` orders them by commit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial, reduce

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pgoutput_etl.changes.events import DELETED, INSERTED, MOVED_IN, MOVED_OUT, UPDATED
from pgoutput_etl.changes.key_facts import Ranges
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.load.batch_keys import BatchKeys
from pgoutput_etl.load.delta_types import comparable, to_event
from pgoutput_etl.schema.table_shape import TableShape

_ENTRIES = "array<struct<key: string, value: string>>"


@dataclass(frozen=True, slots=True)
class TableEvents:
    """A table's change events.

    is_net: there is one event per key, with every column. size: approximate bytes, or None if unknown. is_local: the
    events are on the driver and not recomputed on each use. only_inserts: no event is an UPDATE or a DELETE. keys: of
    the events if all are INSERTs; None if unknown. ranges: the least and greatest value of key columns, or None if
    unknown.
    """

    frame: DataFrame
    is_net: bool = False
    size: int | None = None
    is_local: bool = False
    only_inserts: bool = False
    keys: BatchKeys | None = None
    ranges: Ranges | None = None


def with_sequence(events: DataFrame) -> DataFrame:
    """Adds `_seq`, unique per event. An UPDATE that moves a row to another key is two events, like an UPDATE of a bag:
    the old row comes first, because both rows may be equal."""
    step = F.when(F.col("_op").isin(MOVED_IN, INSERTED), 1).otherwise(0).alias("step")
    return events.withColumn("_seq", F.struct("_lsn", "_file", "_ordinal", step))


def net_rows(events: DataFrame, shape: TableShape) -> DataFrame:
    """One row per key: c0…, _lsn, _ts, _xid, _unrep, `_delete`, and for each TOAST column `keep0…`, true if the target
    keeps its own value."""
    grouped = events.groupBy(*(expression.alias(f"k{n}") for n, expression in enumerate(event_key_parts(shape))))
    columns = [f"c{i}" for i in range(len(shape.columns))] + [f"u{i}" for i in shape.toast]
    last = F.max(F.struct("_seq", "_op", "_lsn", "_ts", "_xid", "_unrep", *columns)).alias("last")
    begun = F.max(F.when(F.col("_op") != UPDATED, F.col("_seq"))).alias("begun")
    values = [_last_value(i, shape).alias(f"x{i}") for i in shape.toast]
    latest = grouped.agg(last, begun, *values)
    unrepresentable = F.coalesce(F.col("last._unrep"), no_entries())
    result: dict[str, Column] = {f"c{i}": F.col(f"last.c{i}") for i in range(len(shape.columns))}
    for i in shape.toast:
        value = F.col(f"x{i}")
        # A value from before the current row took this key belonged to another row.
        carried = value.isNotNull() & (F.col("begun").isNull() | (value["_seq"] >= F.col("begun")))
        unchanged = F.col(f"last.u{i}")
        result[f"c{i}"] = F.when(unchanged & carried, value[f"c{i}"]).otherwise(result[f"c{i}"])
        result[f"keep{i}"] = unchanged & ~carried
        unrepresentable = F.concat(unrepresentable, F.when(unchanged & carried, value["odd"]).otherwise(no_entries()))
    return latest.select(
        *(column.alias(name) for name, column in result.items()),
        F.col("last._lsn").alias("_lsn"),
        F.col("last._ts").alias("_ts"),
        F.col("last._xid").alias("_xid"),
        unrepresentable.alias("_unrep"),
        F.col("last._op").isin(DELETED, MOVED_OUT).alias("_delete"),
    )


def as_net_rows(events: DataFrame, shape: TableShape) -> DataFrame:
    """Like net_rows, for events that already are one per key and have every column."""
    return events.select(
        *(f"c{i}" for i in range(len(shape.columns))),
        *(F.lit(False).alias(f"keep{i}") for i in shape.toast),
        "_lsn",
        "_ts",
        "_xid",
        F.coalesce(F.col("_unrep"), no_entries()).alias("_unrep"),
        F.col("_op").isin(DELETED, MOVED_OUT).alias("_delete"),
    )


def _last_value(i: int, shape: TableShape) -> Column:
    """The newest value sent for a TOAST column, with its entries in `_unrep`."""
    odd = entries_of(F.coalesce(F.col("_unrep"), no_entries()), shape.columns[i].name).alias("odd")
    sent = F.col("_op").isin(INSERTED, UPDATED, MOVED_IN) & ~F.col(f"u{i}")
    return F.max(F.when(sent, F.struct("_seq", f"c{i}", odd)))


def entries_of(entries: Column, name: str) -> Column:
    return F.filter(entries, lambda entry: entry["key"] == F.lit(name))


def event_key_parts(shape: TableShape, column: str = "c{}", odd: str = "_unrep") -> list[Column]:
    """The key as expressions to group and join by. They include the text of unrepresentable values: infinity is not a
    Delta date, but it is a key."""
    parts = []
    for i in shape.key:
        parts.append(F.col(column.format(i)))
        if shape.columns[i].type.may_be_unrepresentable:
            parts.append(_text_of(F.col(odd), shape.columns[i].name))
    return parts


def _text_of(entries: Column, name: str) -> Column:
    return F.get(entries_of(entries, name), 0)["value"]


def resolve_moves(events: DataFrame, shape: TableShape, target: DataFrame | None) -> DataFrame:
    """Fills in the unchanged values that moved rows brought from the key they left.

    The value is the newest one sent under the old key before the move. Without one, it is the value the row brought
    when it moved to the old key; otherwise the target's. An unknown value is NULL, with a NULL text in `_unrep`.
    target: its rows before this batch.
    """
    for i in shape.toast:
        events = _resolve_column(events, shape, i, target).localCheckpoint()
    return events


def _resolve_column(events: DataFrame, shape: TableShape, i: int, target: DataFrame | None) -> DataFrame:
    links = _links(events, shape, i).localCheckpoint()
    while links.where(F.col("through").isNotNull()).limit(1).count():
        links = _follow(links).localCheckpoint()
    links = _from_target(links, shape, i, target)
    answers = links.select(F.col("move").alias("_move"), "known", "value", "odd")
    is_open = (F.col("_op") == MOVED_IN) & F.col(f"u{i}")
    joined = events.join(answers, is_open & (F.col("_seq") == F.col("_move")), "left")
    unknown = F.array(F.struct(F.lit(shape.columns[i].name).alias("key"), F.lit(None).cast("string").alias("value")))
    entries = F.when(F.col("known"), F.col("odd")).otherwise(unknown.cast(_ENTRIES))
    own = F.coalesce(F.col("_unrep"), no_entries())
    changed = {
        f"c{i}": F.when(is_open, F.col("value")).otherwise(F.col(f"c{i}")),
        f"u{i}": F.col(f"u{i}") & ~is_open,
        "_unrep": F.when(is_open, F.concat(own, entries)).otherwise(F.col("_unrep")),
    }
    return joined.select(*(changed.get(name, F.col(name)).alias(name) for name in events.columns))


def _links(events: DataFrame, shape: TableShape, i: int) -> DataFrame:
    """For each move that leaves column i unchanged: `known` and `value` if an event under the old key sent the value,
    `through` if that event is itself an unresolved move, and neither if the row is older than the batch."""
    odd = entries_of(F.coalesce(F.col("_unrep"), no_entries()), shape.columns[i].name).alias("odd")
    moves = events.where((F.col("_op") == MOVED_IN) & F.col(f"u{i}"))
    moves = moves.select(F.col("_seq").alias("move"), *(F.col(f"f{k}") for k in shape.key), "_from_unrep")
    unresolved = (F.col("_op") == MOVED_IN) & F.col(f"u{i}")
    sources = events.where(F.col("_op").isin(INSERTED, UPDATED, MOVED_IN) & (~F.col(f"u{i}") | unresolved)).select(
        "_seq",
        *(part.alias(f"g{n}") for n, part in enumerate(event_key_parts(shape))),
        F.col(f"c{i}").alias("value"),
        odd,
        unresolved.alias("unresolved"),
    )
    same_key = all_of(
        F.col(f"g{n}").eqNullSafe(part) for n, part in enumerate(event_key_parts(shape, "f{}", "_from_unrep"))
    )
    joined = moves.join(sources, same_key & (F.col("_seq") < F.col("move")), "left")
    keys = [f"f{k}" for k in shape.key] + ["_from_unrep"]
    newest = joined.groupBy("move").agg(
        F.max(F.struct("_seq", "unresolved", "value", "odd")).alias("source"), *(F.first(k).alias(k) for k in keys)
    )
    has_source = F.col("source._seq").isNotNull()
    return newest.select(
        "move",
        *keys,
        (has_source & ~F.col("source.unresolved")).alias("known"),
        F.when(has_source & F.col("source.unresolved"), F.col("source._seq")).alias("through"),
        F.col("source.value").alias("value"),
        F.col("source.odd").alias("odd"),
    )


def _follow(links: DataFrame) -> DataFrame:
    """Each move that depends on another move adopts that move's value or dependency. Every call halves the chains."""
    keys = [name for name in links.columns if name[0] == "f"] + ["_from_unrep"]
    other = links.select(*(F.col(name).alias(f"o_{name}") for name in links.columns))
    joined = links.join(other, F.col("through") == F.col("o_move"), "left")
    depends = F.col("through").isNotNull()
    names = [*keys, "known", "through", "value", "odd"]
    return joined.select("move", *(F.when(depends, F.col(f"o_{n}")).otherwise(F.col(n)).alias(n) for n in names))


def _from_target(links: DataFrame, shape: TableShape, i: int, target: DataFrame | None) -> DataFrame:
    if target is None:
        return links
    name = shape.columns[i].name
    stored = target.select(
        *(part.alias(f"t{n}") for n, part in enumerate(target_key_parts(shape))),
        to_event(F.col(quoted(name)), shape.columns[i].type).alias("t_value"),
        entries_of(entries_of_target(), name).alias("t_odd"),
        F.lit(True).alias("t_exists"),
    )
    same_key = all_of(
        F.col(f"t{n}").eqNullSafe(part) for n, part in enumerate(event_key_parts(shape, "f{}", "_from_unrep"))
    )
    joined = links.join(stored, ~F.col("known") & same_key, "left")
    use = F.col("t_exists").isNotNull()
    return joined.select(
        "move",
        (F.col("known") | use).alias("known"),
        F.when(use, F.col("t_value")).otherwise(F.col("value")).alias("value"),
        F.when(use, F.col("t_odd")).otherwise(F.col("odd")).alias("odd"),
    )


def target_key_parts(shape: TableShape, alias: str = "") -> list[Column]:
    """The counterpart of `event_key_parts` for a target's row."""
    parts = []
    for i in shape.key:
        name = shape.columns[i].name
        parts.append(to_event(F.col(alias + quoted(name)), shape.columns[i].type))
        if shape.columns[i].type.may_be_unrepresentable:
            parts.append(F.col(f"{alias}_pg_unrepresentable")[F.lit(name)])
    return parts


def net_key_parts(shape: TableShape, alias: str) -> list[Column]:
    """The counterpart of `event_key_parts` for a net row."""
    return event_key_parts(shape, alias + "c{}", f"{alias}_unrep")


def net_of_bag(events: DataFrame, shape: TableShape) -> DataFrame:
    """The events of a bag that have an effect: inserts whose rows remain, and deletes of rows in the target.

    A delete removes the newest of equal rows, or nothing if no row matches: it may concern a row that is older than the
    slot. `_level` counts equal rows, starting at 0 for those in the target.
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
    return bag_content(shape, (F.col(f"c{i}") for i in range(len(shape.columns))), F.col("_unrep"))


def bag_content(shape: TableShape, columns: Iterable[Column], entries: Column) -> Column:
    """Like event_content. columns: a row's values in event form. entries: its unrepresentable values.

    The result is one struct, because Spark needs minutes to plan a grouping and join by two hundred columns.
    """
    parts = [
        comparable(value, column.type)
        for value, column in zip(columns, shape.columns, strict=True)
        if not column.retired
    ]
    live_entries = F.coalesce(entries, no_entries())
    for column in shape.columns:
        if column.retired:
            live_entries = F.filter(live_entries, partial(_is_not_of, column.name))
    return F.struct(*(part.alias(f"p{n}") for n, part in enumerate([*parts, F.array_sort(live_entries)])))


def _is_not_of(name: str, entry: Column) -> Column:
    return entry["key"] != F.lit(name)


def all_of(conditions: Iterable[Column]) -> Column:
    return reduce(lambda a, b: a & b, conditions)


def no_entries() -> Column:
    return F.array().cast(_ENTRIES)


def entries_of_target(alias: str = "") -> Column:
    """A target's `_pg_unrepresentable` in the event form."""
    return F.coalesce(F.map_entries(F.col(f"{alias}_pg_unrepresentable")), no_entries())
