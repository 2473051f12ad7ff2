"""Drops events superseded by a later event of the same key, before they reach Spark.

The effect of an event depends only on the events of its own key. An event that has every column, or deletes the row,
supersedes all earlier ones. An event that leaves TOAST unchanged does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.changes.events import DELETED, MOVED_IN, MOVED_OUT
from pgoutput_etl.changes.fast_events import event_batches
from pgoutput_etl.changes.key_chains import net_chains, with_chains
from pgoutput_etl.changes.key_facts import hashes_of
from pgoutput_etl.changes.window import Window, rows_in
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.transactions.status_lookup import StatusLookup

Integers = npt.NDArray[np.int64]

# Limits on the events, and their bytes, that are compacted together.
_MAX_ROWS = 1 << 18

_MAX_BYTES = 1 << 26

_BATCH_ROWS = 1 << 14

# If more than this share of a group's events is left, compacting it was in vain: the next groups are sent as they are.
_IN_VAIN, _NOT_COMPACTED = 0.9, 3


def events_of(
    blocks: Iterable[Mapping[str, Any]], statuses: StatusLookup, window: Window, shape: TableShape
) -> Iterator[pa.RecordBatch]:
    """The typed events of a table's blocks, compacted in groups of a few hundred thousand events."""
    for group in _groups(typed_events_of(blocks, statuses, window, shape)):
        yield from _compacted(group, shape)


def _groups(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    group: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        group.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _MAX_ROWS or size >= _MAX_BYTES:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def net_events_of(
    blocks: Iterable[Mapping[str, Any]], statuses: StatusLookup, window: Window, shape: TableShape
) -> Iterator[pa.RecordBatch]:
    """The last event of each key. blocks: all blocks of the table. shape: `is_net_by_itself` must be true.

    Holds up to three times as many events in memory as the table has keys.
    """
    pending: list[pa.RecordBatch] = []
    rows, limit = 0, _MAX_ROWS
    for batch in typed_events_of(blocks, statuses, window, shape):
        pending.append(batch)
        rows += batch.num_rows
        if rows >= limit:
            pending = list(_compacted(pending, shape))
            rows = sum(batch.num_rows for batch in pending)
            limit = max(_MAX_ROWS, 3 * rows)
    yield from _in_batches(_compacted(pending, shape))


EXCHANGE_SCHEMA = pa.schema([("bucket", pa.int64()), ("events", pa.binary())])


def bucketed_events_of(
    blocks: Iterable[Mapping[str, Any]], statuses: StatusLookup, window: Window, shape: TableShape, buckets: int
) -> Iterator[pa.RecordBatch]:
    """Like `events_of`, but as rows of EXCHANGE_SCHEMA for `net_events_of_buckets`. Equal keys are in the same bucket,
    and Spark shuffles a few large values instead of single events; groups are sent as they are where few events of a
    group have the same key. shape: `is_net_by_itself` must be true."""
    for batch in _worth_compacting(_groups(typed_events_of(blocks, statuses, window, shape)), shape):
        hashes = hashes_of([batch.column(f"c{i}") for i in shape.key], shape)
        bucket = (
            np.zeros(batch.num_rows, np.int64) if hashes is None else (hashes % np.uint64(buckets)).astype(np.int64)
        )
        order = np.argsort(bucket, kind="stable")
        ends = np.searchsorted(bucket[order], np.arange(buckets), "right").tolist()
        in_order = _taken(batch, order)
        for number, (begin, end) in enumerate(pairwise([0, *ends])):
            if begin < end:
                row = {"bucket": number, "events": _ipc_stream(in_order.slice(begin, end - begin))}
                yield pa.RecordBatch.from_pylist([row], EXCHANGE_SCHEMA)


def _worth_compacting(groups: Iterable[list[pa.RecordBatch]], shape: TableShape) -> Iterator[pa.RecordBatch]:
    """Groups of events, compacted unless few events of an earlier group were superseded."""
    not_compacted = 0
    for group in groups:
        if not_compacted:
            not_compacted -= 1
            yield from _joined(group)
            continue
        compacted = [*_compacted(group, shape)]
        left, all_of_them = (sum(batch.num_rows for batch in batches) for batches in (compacted, group))
        if left > _IN_VAIN * all_of_them:
            not_compacted = _NOT_COMPACTED
        yield from compacted


def net_events_of_buckets(batches: Iterable[pa.RecordBatch], shape: TableShape) -> Iterator[pa.RecordBatch]:
    """The last event of each key. batches: rows of EXCHANGE_SCHEMA, in complete buckets."""
    by_bucket: dict[int, list[pa.RecordBatch]] = {}
    schema = shape.event_schema()
    for batch in batches:
        for number, events in zip(batch.column("bucket").to_pylist(), batch.column("events"), strict=True):
            with pa.ipc.open_stream(events.as_buffer()) as reader:
                by_bucket.setdefault(number, []).extend(_with_nulls(batch, schema) for batch in reader)
    while by_bucket:
        _, events = by_bucket.popitem()
        events.sort(key=_first_position)  # each batch is in commit order, and usually so are all of them once sorted
        yield from _in_batches(_compacted(events, shape))


def _ipc_stream(events: pa.RecordBatch) -> bytes:
    """The events as an Arrow IPC stream, without columns that are entirely NULL. Compressed, because Spark copies each
    byte several times."""
    sink, stored = pa.BufferOutputStream(), events.select(_not_null(events))
    with pa.ipc.new_stream(sink, stored.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(stored)
    return bytes(sink.getvalue())


def _first_position(events: pa.RecordBatch) -> tuple[int, ...]:
    return tuple(events.column(name)[0].as_py() for name in ("_lsn", "_file", "_ordinal"))


def _in_batches(events: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in events:
        for begin in range(0, batch.num_rows, _BATCH_ROWS):
            yield batch.slice(begin, _BATCH_ROWS)


def typed_events_of(
    blocks: Iterable[Mapping[str, Any]], statuses: StatusLookup, window: Window, shape: TableShape
) -> Iterator[pa.RecordBatch]:
    """All typed events of a table's blocks."""
    for block in blocks:
        yield from event_batches(rows_in(block, statuses, window), shape)


def as_net(events: pa.RecordBatch, shape: TableShape) -> pa.RecordBatch:
    """The events as net_schema. events: no two may have the same key."""
    schema = shape.net_schema()
    deletes = pc.is_in(events.column("_op"), pa.array([DELETED, MOVED_OUT]))
    made = {"_delete": deletes, "_chain": net_chains(events)}
    columns = [made[name] if name in made else events.column(name) for name in schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def is_net_by_itself(shape: TableShape) -> bool:
    """True if a key's last event always supersedes the others, and the key columns determine which keys are equal."""
    types = [shape.columns[i].type for i in shape.key]
    is_comparable = not any(t.may_be_unrepresentable or not _is_plain(t.arrow) for t in types)
    return can_supersede(shape) and not shape.toast and shape.has_unique_key and is_comparable


def _compacted(batches: list[pa.RecordBatch], shape: TableShape) -> Iterator[pa.RecordBatch]:
    if not can_supersede(shape):
        yield from batches
    elif batches:
        for batch in _joined(batches):
            yield without_superseded(batch, shape)[0]


def _joined(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One batch, or several if a column would be too large for one."""
    table = pa.Table.from_batches(batches)
    for batch in table.select(_not_null(table)).combine_chunks().to_batches():
        yield _with_nulls(batch, table.schema)


def _taken(events: pa.RecordBatch, numbers: Integers) -> pa.RecordBatch:
    """Like events.take(numbers), which takes as long for NULLs as for values."""
    taken = events.select(_not_null(events)).take(pa.array(numbers))
    return _with_nulls(taken, events.schema)


def _chosen(events: pa.RecordBatch, numbers: Integers) -> pa.RecordBatch:
    """The events with these numbers, in the order of `events`: where most are left, a filter is faster than a take."""
    is_chosen = np.zeros(events.num_rows, np.bool_)
    is_chosen[numbers] = True
    chosen = events.select(_not_null(events)).filter(pa.array(is_chosen))
    return _with_nulls(chosen, events.schema)


def _not_null(events: pa.RecordBatch | pa.Table) -> list[str]:
    """The columns with values. Most tables' events have none in several: chains, texts of unrepresentable values, and
    old keys."""
    return [name for name in events.schema.names if events.column(name).null_count < events.num_rows]


def _with_nulls(events: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The events with the columns of `schema`; columns that `events` lacks are NULL."""
    columns = {name: events.column(name) for name in events.schema.names}
    arrays = [
        columns[field.name] if field.name in columns else pa.nulls(events.num_rows, field.type) for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def can_supersede(shape: TableShape) -> bool:
    """False if a row can take values along to another key, because they may come from a superseded event."""
    return bool(shape.key) and not shape.moves_toast


def without_superseded(events: pa.RecordBatch, shape: TableShape) -> tuple[pa.RecordBatch, bool]:
    """The events that are not superseded, and True if one event per key remains, with every column.

    shape: must have a key. Keeps all events if a key has a part that its type can't represent.
    """
    key = key_codes(events, shape)
    if key is None:
        return events, events.num_rows < 2 and not _leaves_toast(events, shape).any()
    position = positions(events)
    if not shape.toast and _are_in_order(position):
        if int(key.max(initial=-1)) + 1 == len(key):
            return events, True
        return _chosen(*_last_in(np.argsort(key, kind="stable"), events, key, shape)), True
    order = np.lexsort((*position, key))
    key = key[order]
    is_whole = ~_leaves_toast(events, shape)[order]
    count = len(order)
    number = np.arange(count)
    is_last = _are_last(key)
    # The position of each key's last whole event, or -1.
    group = np.concatenate(([0], np.cumsum(is_last[:-1]))) if count else np.zeros(0, np.int64)
    first_kept = np.full(group[-1] + 1 if count else 0, -1, np.int64)
    np.maximum.at(first_kept, group[is_whole], number[is_whole])
    kept = number >= first_kept[group]
    is_unique = bool((is_last[kept] & is_whole[kept]).all())
    if kept.all():
        return events, is_unique
    return _chosen(with_chains(events, order, key, kept, shape), order[kept]), is_unique


def last_of_keys(events: pa.RecordBatch, key: Integers, shape: TableShape) -> tuple[pa.RecordBatch, Integers]:
    """The events with chains (changes/key_chains.py), and the numbers of those that are the last of their key, whose
    chain stands for all of them. key: a number per event, the same for equal keys."""
    events, last = _last_in(np.lexsort((*positions(events), key)), events, key, shape)
    return events, np.sort(last)


def _last_in(
    order: Integers, events: pa.RecordBatch, key: Integers, shape: TableShape
) -> tuple[pa.RecordBatch, Integers]:
    is_last = _are_last(key[order])
    return with_chains(events, order, key[order], is_last, shape), order[is_last]


def _are_last(key: Integers) -> npt.NDArray[np.bool_]:
    """True for the last of equal keys. key: sorted."""
    is_last = np.ones(len(key), np.bool_)
    is_last[:-1] = key[1:] != key[:-1]
    return is_last


def _leaves_toast(events: pa.RecordBatch, shape: TableShape) -> npt.NDArray[np.bool_]:
    """True for events that leave a column unchanged."""
    leaves = np.zeros(events.num_rows, np.bool_)
    for i in shape.toast:
        leaves |= events.column(f"u{i}").to_numpy(zero_copy_only=False)
    return leaves


def key_codes(events: pa.RecordBatch, shape: TableShape) -> Integers | None:
    """An integer per key, without gaps from 0, equal for equal keys. None if the key columns alone don't determine
    which keys are equal."""
    codes: Integers | None = None
    for i in shape.key:
        column = events.column(f"c{i}")
        if column.null_count or not _is_plain(column.type):
            return None
        encoded = column.dictionary_encode()
        own = encoded.indices.cast(pa.int64()).to_numpy()
        if codes is not None:
            own = pa.array(codes * max(len(encoded.dictionary), 1) + own).dictionary_encode().indices.to_numpy()
        codes = own.astype(np.int64, copy=False)
    return codes


def _is_plain(kind: pa.DataType) -> bool:
    """True if each value equals only itself, both in Arrow and in Spark."""
    return not pa.types.is_nested(kind) and not pa.types.is_floating(kind)


def positions(events: pa.RecordBatch) -> list[npt.NDArray[Any]]:
    """The commit order, least significant part first; X comes before V of the same move."""
    step = pc.equal(events.column("_op"), MOVED_IN).to_numpy(zero_copy_only=False)
    return [step, *(events.column(name).to_numpy(zero_copy_only=False) for name in ("_ordinal", "_file", "_lsn"))]


def _are_in_order(position: list[npt.NDArray[Any]]) -> bool:
    """True if the events are already in commit order, as events of ordinary transactions usually are."""
    is_after, is_same = np.zeros(max(len(position[0]) - 1, 0), np.bool_), np.ones(1, np.bool_)
    for part in reversed(position):
        is_after = is_after | (is_same & (part[1:] > part[:-1]))
        is_same = is_same & (part[1:] == part[:-1])
    return bool(is_after.all())
