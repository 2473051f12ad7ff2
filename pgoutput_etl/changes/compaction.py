"""Events that mean nothing any more, as a later one of the same row says all: left out before Spark sees them.

What an event means depends on its own key's events alone. One that has every column, or says that the row is gone,
makes those before it void; one that leaves unchanged TOAST as it is doesn't.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.changes.events import MOVED_IN
from pgoutput_etl.changes.fast_events import event_batches
from pgoutput_etl.changes.window import Window, rows_in
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.transactions.status_lookup import StatusLookup

Integers = npt.NDArray[np.int64]

_MOST_CODES = 1 << 62

# How many events are looked at together, and how many bytes of them.
_MOST_ROWS = 1 << 18

_MOST_BYTES = 1 << 26

_ROWS_AT_ONCE = 1 << 14


def events_of(
    blocks: Iterable[Mapping[str, Any]], statuses: StatusLookup, window: Window, shape: TableShape
) -> Iterator[pa.RecordBatch]:
    """What a table's blocks come to: typed events, of each key as few as can be told within some hundred thousand."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in typed_events_of(blocks, statuses, window, shape):
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _MOST_ROWS or size >= _MOST_BYTES:
            yield from _reduced(held, shape)
            held, rows, size = [], 0, 0
    yield from _reduced(held, shape)


def net_events_of(
    blocks: Iterable[Mapping[str, Any]], statuses: StatusLookup, window: Window, shape: TableShape
) -> Iterator[pa.RecordBatch]:
    """Of each key the last event: of all of a table's blocks, and a shape that `is_net_by_itself`. Holds as many events
    as the table has keys, or three times that many."""
    held: list[pa.RecordBatch] = []
    rows, enough = 0, _MOST_ROWS
    for batch in typed_events_of(blocks, statuses, window, shape):
        held.append(batch)
        rows += batch.num_rows
        if rows >= enough:
            held = list(_reduced(held, shape))
            rows = sum(batch.num_rows for batch in held)
            enough = max(_MOST_ROWS, 3 * rows)
    for batch in _reduced(held, shape):
        for begin in range(0, batch.num_rows, _ROWS_AT_ONCE):
            yield batch.slice(begin, _ROWS_AT_ONCE)


def typed_events_of(
    blocks: Iterable[Mapping[str, Any]], statuses: StatusLookup, window: Window, shape: TableShape
) -> Iterator[pa.RecordBatch]:
    """All of them."""
    for block in blocks:
        yield from event_batches(rows_in(block, statuses, window), shape)


def is_net_by_itself(shape: TableShape) -> bool:
    """Whether of each key's events the last one says all, and keys can be told apart in their columns."""
    types = [shape.columns[i].type for i in shape.key]
    can_be_told = not any(t.may_be_unrepresentable or not _is_plain(t.arrow) for t in types)
    return can_supersede(shape) and not shape.toast and shape.has_unique_key and can_be_told


def _reduced(held: list[pa.RecordBatch], shape: TableShape) -> Iterator[pa.RecordBatch]:
    if not can_supersede(shape):
        yield from held
    elif held:
        for batch in pa.Table.from_batches(held).combine_chunks().to_batches():
            yield without_superseded(batch, shape)[0]


def can_supersede(shape: TableShape) -> bool:
    """Not where a row takes values along to another key: they may be those of an event that is void otherwise."""
    return bool(shape.key) and not shape.moves_toast


def without_superseded(events: pa.RecordBatch, shape: TableShape) -> tuple[pa.RecordBatch, bool]:
    """Events of a table that has a key, and whether what is left is one event for each key, which has every column.

    Events whose key has a part that its type can't hold are all kept.
    """
    key = _key_codes(events, shape)
    if key is None:
        return events, events.num_rows < 2 and not _leaves_some(events, shape).any()
    order = _in_order(events, key)
    key = key[order]
    is_whole = ~_leaves_some(events, shape)[order]
    count = len(order)
    number = np.arange(count)
    is_last = np.empty(count, np.bool_)
    is_last[-1:] = True
    is_last[:-1] = key[1:] != key[:-1]
    # The number of the last whole event of each key, or of its first one if there is none.
    group = np.concatenate(([0], np.cumsum(is_last[:-1]))) if count else np.zeros(0, np.int64)
    first_kept = np.full(group[-1] + 1 if count else 0, -1, np.int64)
    np.maximum.at(first_kept, group[is_whole], number[is_whole])
    kept = number >= first_kept[group]
    is_unique = bool((is_last[kept] & is_whole[kept]).all())
    if kept.all():
        return events, is_unique
    return events.take(pa.array(np.sort(order[kept]))), is_unique


def _leaves_some(events: pa.RecordBatch, shape: TableShape) -> npt.NDArray[np.bool_]:
    """Which events leave a column as it is."""
    found = np.zeros(events.num_rows, np.bool_)
    for i in shape.toast:
        found |= events.column(f"u{i}").to_numpy(zero_copy_only=False)
    return found


def _key_codes(events: pa.RecordBatch, shape: TableShape) -> Integers | None:
    """Equal numbers for equal keys; None if that can't be told from the columns alone."""
    codes = np.zeros(events.num_rows, np.int64)
    size = 1
    for i in shape.key:
        column = events.column(f"c{i}")
        if column.null_count or not _is_plain(column.type):
            return None
        words = column.dictionary_encode()
        size *= max(len(words.dictionary), 1)
        if size > _MOST_CODES:
            return None
        codes = codes * max(len(words.dictionary), 1) + words.indices.to_numpy(zero_copy_only=False)
    return codes


def _is_plain(kind: pa.DataType) -> bool:
    """Of a value that is equal to itself alone, in Arrow as in Spark."""
    return not pa.types.is_nested(kind) and not pa.types.is_floating(kind)


def _in_order(events: pa.RecordBatch, key: Integers) -> Integers:
    """By key, then as the transactions were committed; of the two events of a move the way out comes first."""
    step = pc.equal(events.column("_op"), MOVED_IN).to_numpy(zero_copy_only=False)
    places = [events.column(name).to_numpy(zero_copy_only=False) for name in ("_ordinal", "_file", "_lsn")]
    found: Integers = np.lexsort((step, *places, key))
    return found
