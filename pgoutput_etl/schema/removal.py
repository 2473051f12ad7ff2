"""Rows that leave a partitioned table with their partition. No message lists them, but the partition's bound does.

The same rule applies to rows in memory and to Spark columns: both support `&` and `|`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_
from typing import Any

import pyarrow as pa

from pgoutput_etl.protocol.messages import Relation, RelationColumn
from pgoutput_etl.protocol.partition_bound import Edge, PartitionBound
from pgoutput_etl.schema.definitions import DefinitionEntry, RemovedPartition
from pgoutput_etl.schema.table_shape import TableColumn
from pgoutput_etl.types.column import ValueTextError, load_text

# text, varchar, and uuid, whose stored values sort like the server's (conf/landing/catalog.sql checks collations).
_TEXTS = (25, 1043, 2950)


@dataclass(frozen=True, slots=True)
class ColumnValue:
    """A value in a bound, as the table stores it. None is NULL."""

    column: TableColumn
    value: Any


@dataclass(frozen=True, slots=True)
class HeldRows:
    """The rows of one partition according to one of its bounds. listed: their only values. lower, upper: the values of
    a range's edge, and True if rows with these values are included."""

    columns: tuple[TableColumn, ...]
    listed: tuple[ColumnValue, ...] = ()
    lower: tuple[tuple[ColumnValue, ...], bool] | None = None
    upper: tuple[tuple[ColumnValue, ...], bool] | None = None


@dataclass(frozen=True, slots=True)
class Removal:
    """Rows that left with a commit: for each partition, the rows within all of its bounds. lsn, ts (microseconds since
    2000-01-01 UTC), xid: of the commit. names: of the partitions. unknown: partitions whose rows can't be
    determined."""

    lsn: int
    ts: int | None
    xid: int | None
    partitions: tuple[tuple[HeldRows, ...], ...]
    names: tuple[str, ...]
    unknown: tuple[str, ...]


# Flags of rows whose value is below, equal to, and above the bound's.
Comparison = Callable[[ColumnValue], tuple[Any, Any, Any]]

# The columns that are sent and not masked, by their names in the catalog.
Sent = Mapping[str, tuple[RelationColumn, TableColumn]]

# Flags of rows with NULL in a column, and of rows with a value.
IsNull = Callable[[TableColumn], tuple[Any, Any]]


def removal_of(
    entry: DefinitionEntry, relation: Relation, columns: Sequence[TableColumn], masks: Mapping[str, str]
) -> Removal:
    """The rows that a commit removed without sending them. relation, columns: the table's before the commit."""
    known: list[tuple[HeldRows, ...]] = []
    names: dict[bool, list[str]] = {True: [], False: []}
    by_number = {c.number: (c, column) for c, column in zip(relation.columns, columns, strict=False)}
    sent = {c.name: pair for c in entry.definition.columns if (pair := by_number.get(c.number)) is not None}
    if relation.catalog is None:
        sent = {c.name: (c, column) for c, column in zip(relation.columns, columns, strict=False)}
    sent = {name: pair for name, pair in sent.items() if pair[1].name not in masks}
    for partition in entry.definition.removed:
        held = _held_by(partition, sent)
        names[held is not None].append(partition.name)
        known += [] if held is None else [held]
    commit = (entry.at[0], entry.commit_ts, entry.top_xid)
    return Removal(*commit, tuple(known), tuple(names[True]), tuple(names[False]))


def _held_by(partition: RemovedPartition, sent: Sent) -> tuple[HeldRows, ...] | None:
    held = [_rows_of(bound, sent) for bound in partition.bounds or ()]
    return tuple(rows for rows in held if rows is not None) if held and None not in held else None


def _rows_of(bound: PartitionBound, sent: Sent) -> HeldRows | None:
    found = [sent[name] for name in bound.columns if name in sent]
    is_range = bound.lower is not None
    if len(found) < len(bound.columns) or not all(_is_comparable(*pair, is_range) for pair in found):
        return None
    typed = tuple(column for _, column in found)
    try:
        listed = tuple(_value(typed[0], text) for text in bound.listed)
        return HeldRows(typed, listed, _edge(typed, bound.lower), _edge(typed, bound.upper))
    except ValueTextError:
        return None


def _is_comparable(sent: RelationColumn, column: TableColumn, is_range: bool) -> bool:
    kind = column.type.arrow
    if pa.types.is_string(kind):
        is_enum = sent.form is not None and bool(sent.form.labels) and not is_range
        return sent.type_oid in _TEXTS or is_enum
    is_number = pa.types.is_integer(kind) or pa.types.is_decimal(kind)
    return bool(is_number or pa.types.is_boolean(kind) or pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _value(column: TableColumn, text: str | None) -> ColumnValue:
    """Raises ValueTextError, also for a value that the column's type can't represent."""
    loaded = load_text(column.type, [None if text is None else text.encode()])
    if loaded.unrepresentable:
        raise ValueTextError(0, column.type.name, "a value that the column's type holds")
    return ColumnValue(column, loaded.array[0].as_py())


def _edge(columns: Sequence[TableColumn], edge: Edge | None) -> tuple[tuple[ColumnValue, ...], bool] | None:
    if edge is None:
        return None
    values = (_value(column, text) for column, text in zip(columns, edge.values, strict=False))
    return tuple(values), edge.is_within


def is_removed(removal: Removal, compare: Comparison, is_null: IsNull) -> Any:
    """Flags of the rows that leave."""
    parts = [[_is_held(rows, compare, is_null) for rows in partition] for partition in removal.partitions]
    return reduce(or_, [reduce(and_, conditions) for conditions in parts])


def _is_held(rows: HeldRows, compare: Comparison, is_null: IsNull) -> Any:
    """Flags of the rows in a bound. A range contains no NULLs."""
    if rows.lower is None or rows.upper is None:
        return reduce(or_, [is_null(v.column)[0] if v.value is None else compare(v)[1] for v in rows.listed])
    have_values = [is_null(column)[1] for column in rows.columns]
    return reduce(and_, [*have_values, _is_beyond(*rows.lower, 2, compare), _is_beyond(*rows.upper, 0, compare)])


def _is_beyond(values: Sequence[ColumnValue], is_within: bool, side: int, compare: Comparison) -> Any:
    """side: 0 for rows below an edge, 2 for rows above it."""
    found: Any = is_within
    for value in reversed(values):
        order = compare(value)
        found = order[side] | (order[1] & found)
    return found


def is_below_all(text: str) -> bool:
    """True for a text that the column's type can't represent because it is too low: -infinity, or a year BC. Other such
    texts (infinity, NaN, a late year) are too high."""
    return text.startswith("-") or text.endswith(" BC")


def removed_from(removal: Removal) -> Callable[[Mapping[str, Any], Mapping[str, str | None]], bool]:
    """Returns a function that decides if a row in memory leaves: given values by column name, and texts of
    unrepresentable values. A value that was never sent is in no range."""

    def is_gone(values: Mapping[str, Any], texts: Mapping[str, str | None]) -> bool:
        def compare(bound: ColumnValue) -> tuple[bool, bool, bool]:
            value, text = values[bound.column.name], texts.get(bound.column.name)
            if value is None:
                return (False, False, False) if text is None else (is_below_all(text), False, not is_below_all(text))
            return value < bound.value, value == bound.value, value > bound.value

        def is_null(column: TableColumn) -> tuple[bool, bool]:
            has_text = column.name in texts
            return values[column.name] is None and not has_text, values[column.name] is not None or has_text

        return bool(is_removed(removal, compare, is_null))

    return is_gone
