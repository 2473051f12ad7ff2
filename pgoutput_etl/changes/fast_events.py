"""The compiled twin of `events`: the same batches, without an object per row or value.

First, each row becomes one or two events in the form of numbers: the tuple of the event, the tuple that fills in its
unchanged columns, and whether it has the whole row or only the key. Then each column is loaded at once (types/kernels).
Cases that this doesn't cover, and all errors, are left to `events`, so both reject the same rows with the same
messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from pgoutput_etl import jit
from pgoutput_etl.changes.events import (
    DELETED,
    INSERTED,
    MAX_SIZE,
    MOVED_IN,
    MOVED_OUT,
    UPDATED,
    events,
    refuse_too_large,
    too_long,
)
from pgoutput_etl.changes.tuple_columns import NULL, UNCHANGED, RawTuples, SplitTuples, split_tuples
from pgoutput_etl.scan.message_row import one_letter
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.schema.table_shape import CHAIN, TIMESTAMP, UNREPRESENTABLE, TableShape
from pgoutput_etl.schema.version_spans import NO_SCOPE, numbers_in_force
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS
from pgoutput_etl.types import LoadedColumn, ValueTextError
from pgoutput_etl.types.kernels.dispatch import BINARY, Numbers, UnsureError, load_cells

# Rows per batch that fit into the processor's caches.
BATCH_ROWS = 8192

_I, _U, _D, _X, _V = (np.uint8(ord(op)) for op in (INSERTED, UPDATED, DELETED, MOVED_OUT, MOVED_IN))

_O = np.uint8(ord("O"))

_LENGTH = np.int32(BINARY - 1)

_UNCHANGED, _NULL = np.int32(UNCHANGED), np.int32(NULL)

_1 = np.uint64(1)


def event_batches(rows: pa.RecordBatch, shape: TableShape) -> Iterator[pa.RecordBatch]:
    """Like `events`, but in several batches. Some values are much longer as text than in binary form, so batches may be
    halved."""
    refuse_too_large(rows, shape)
    if not jit.AVAILABLE:
        yield from _in_halves(rows, shape)
        return
    for begin in range(0, max(rows.num_rows, 1), BATCH_ROWS):
        yield from _in_halves(rows.slice(begin, BATCH_ROWS), shape)


def _in_halves(rows: pa.RecordBatch, shape: TableShape) -> Iterator[pa.RecordBatch]:
    try:
        events_of_rows = fast_events(rows, shape)
    except OverflowError:
        if rows.num_rows == 1:
            raise too_long(rows, shape) from None
        half = rows.num_rows // 2
        yield from _in_halves(rows.slice(0, half), shape)
        yield from _in_halves(rows.slice(half), shape)
    else:
        yield events_of_rows


def fast_events(rows: pa.RecordBatch, shape: TableShape) -> pa.RecordBatch:
    """Like `events`, with the same errors."""
    if jit.AVAILABLE:
        try:
            return _compiled_events(rows, shape)
        except (UnsureError, ValueTextError):
            pass
    return events(rows, shape)


def _compiled_events(rows: pa.RecordBatch, shape: TableShape) -> pa.RecordBatch:
    check_versions(rows, shape)
    new, old = RawTuples.of(rows.column("new")), RawTuples.of(rows.column("old"))
    has_old = bool((old.starts >= 0).any())
    if has_old or bool((new.starts < 0).any()):
        tuples = split_tuples(new.followed_by(old), len(shape.relation.columns))
        made = _events_of_new_and_old(rows, shape, tuples, new, old)
    else:
        tuples = split_tuples(new, len(shape.relation.columns))
        made = _events_of_new(rows, shape)
    return _to_arrow(rows, shape, _Columns(shape, tuples, made))


def check_versions(rows: pa.RecordBatch, shape: TableShape) -> None:
    """Raises UnsureError unless every row's version has the shape's columns."""
    for name in ("file", "ordinal"):
        if rows.column(name).null_count:
            raise UnsureError
    relation = shape.relation
    numbers = versions_in_force(rows, shape.versions)
    is_same = [
        (version.columns, version.replica_identity) == (relation.columns, relation.replica_identity)
        for version in shape.versions.relations
    ]
    # A row without a description has the number -1, which selects the last entry.
    if not np.array([*is_same, False])[numbers].all():
        raise UnsureError


def versions_in_force(rows: pa.RecordBatch, versions: RelationVersions) -> Numbers:
    """versions.at for each row; -1 for None."""
    scopes = rows.column("scope").fill_null(NO_SCOPE).to_numpy(zero_copy_only=False)
    return numbers_in_force(_numbers(rows, "file"), _numbers(rows, "ordinal"), scopes, versions.holds_from)


def _numbers(rows: pa.RecordBatch, name: str) -> Numbers:
    numbers: Numbers = rows.column(name).to_numpy()
    return numbers


@dataclass(frozen=True, slots=True)
class _EventRows:
    """Events as parallel arrays.

    is_plain: each event is its row's complete new tuple. source: index of its row. base: index of its tuple. fill:
    index of the tuple that fills in its unchanged columns, if it has them; -1 for none. only_key: the event only has
    the key. before: the tuple with the old key of a moved row; -1 for none.
    """

    is_plain: bool
    source: Numbers
    op: Numbers
    base: Numbers
    fill: Numbers
    only_key: Numbers
    before: Numbers

    def __len__(self) -> int:
        return len(self.op)


def _letters(letters: pa.Array) -> Numbers:
    if letters.type != pa.string():
        raise UnsureError
    return one_letter(letters)


def _events_of_new(rows: pa.RecordBatch, shape: TableShape) -> _EventRows:
    indices = np.arange(rows.num_rows, dtype=np.int32)
    empty = np.empty(0, np.int32)
    op = np.where(_letters(rows.column("tag")) == _I, _I, _U)
    if shape.is_bag and (op == _U).any():
        raise UnsureError
    return _EventRows(True, indices, op, indices, empty, empty, empty)


def _events_of_new_and_old(
    rows: pa.RecordBatch, shape: TableShape, tuples: SplitTuples, new: RawTuples, old: RawTuples
) -> _EventRows:
    """The events of rows with new and old tuples. tuples: new tuples followed by old tuples."""
    count = rows.num_rows
    tags, old_kinds = _letters(rows.column("tag")), _letters(rows.column("old_kind"))
    op, only_key = (np.empty(2 * count, np.uint8) for _ in range(2))
    source, base, fill, before = (np.empty(2 * count, np.int32) for _ in range(4))
    key = np.array(shape.key, np.int64)
    made = _write_events(
        *(tuples.data, tuples.at, tuples.size, new.starts, old.starts, tags, old_kinds, key),
        *(shape.has_whole_keys, source, op, base, fill, only_key, before),
    )
    if made < 0:
        raise UnsureError
    parts = [array[:made] for array in (source, op, base, fill, only_key, before)]
    return _EventRows(False, *parts)


@jit.compiled
def _write_events(
    data: Any, at: Any, size: Any, new: Any, old: Any, tags: Any, old_kinds: Any, key: Any,
    has_whole_keys: bool, source: Any, op: Any, base: Any, fill: Any, only_key: Any, before: Any,
) -> int:  # fmt: skip
    """Writes the events of all rows. Returns their number, or -1 if a row is not covered.

    A moved row becomes two events: X from the old tuple, then V from the new one. So does an UPDATE in a bag: D and I.
    """
    count = new.shape[0]
    made = 0
    is_bag = key.shape[0] == 0
    for i in range(count):
        has_new, has_old = new[i] >= 0, old[i] >= 0
        is_full = has_whole_keys or old_kinds[i] == _O
        if (not has_new and not has_old) or (has_old and tags[i] == _I) or (has_old and is_bag and not is_full):
            return -1
        if is_bag and not has_old and tags[i] != _I:
            return -1
        moves = is_bag
        if has_old and has_new and not is_bag:
            moved = _key_moves(data, at, size, i, i + count, key)
            if moved < 0:
                return -1
            moves = moved == 1
        if has_old and (not has_new or moves):
            source[made], base[made], fill[made], before[made] = i, i + count, -1, -1
            op[made] = _X if has_new and not is_bag else _D
            only_key[made] = not is_bag
            made += 1
        if has_new:
            source[made], base[made], fill[made], before[made] = i, i, -1, -1
            op[made] = _I if is_bag or tags[i] == _I else _U
            only_key[made] = 0
            if has_old:
                fill[made] = i + count
                if moves and not is_bag:
                    op[made] = _V
                    before[made] = i + count
            made += 1
    return made


@jit.compiled
def _key_moves(data: Any, at: Any, size: Any, new: Any, old: Any, key: Any) -> int:
    """1 if the keys in a row's new and old tuple differ; -1 if a key column is unchanged TOAST that nothing fills
    in."""
    moves = 0
    for k in range(key.shape[0]):
        c = key[k]
        now = old if size[c, new] == _UNCHANGED and size[c, old] != _NULL else new
        if size[c, now] == _UNCHANGED or size[c, old] == _UNCHANGED:
            return -1
        length = size[c, old] & _LENGTH if size[c, old] >= 0 else np.int32(-1)
        if length != (size[c, now] & _LENGTH if size[c, now] >= 0 else np.int32(-1)):
            moves = 1
        elif length > 0 and now != old:
            p, q = np.uint64(at[c, old]), np.uint64(at[c, now])
            end = p + np.uint64(length)
            while p < end and data[p] == data[q]:
                p += _1
                q += _1
            if p < end:
                moves = 1
    return moves


@jit.compiled
def _choose(
    size: Any, base: Any, fill: Any, only_key: Any, is_key: Any, chosen: Any, unchanged: Any
) -> int:  # fmt: skip
    """Writes, for one column, the tuple with each event's value and whether the value is unchanged. Returns the number
    of unchanged values."""
    count = 0
    for i in range(base.shape[0]):
        t = base[i]
        unchanged[i] = 0
        if only_key[i] and not is_key:
            t = np.int32(-1)
        elif size[t] == _UNCHANGED:
            if fill[i] >= 0 and size[fill[i]] != _NULL:
                t = fill[i]
            if size[t] == _UNCHANGED:
                unchanged[i] = 1
                count += 1
        chosen[i] = t
    return count


_Texts = dict[int, list[tuple[str, str]]]  # by event: column name and text


@dataclass(slots=True)
class _Columns:
    """The columns of events, and the texts of unrepresentable values in rows and old keys."""

    shape: TableShape
    tuples: SplitTuples
    made: _EventRows
    unrepresentable: _Texts = field(default_factory=dict)
    old_unrepresentable: _Texts = field(default_factory=dict)
    _size: int = 0

    def columns(self) -> dict[str, pa.Array]:
        columns: dict[str, pa.Array] = {}
        for i, column in enumerate(self.shape.columns):
            if column.retired:
                columns[f"c{i}"] = pa.nulls(len(self.made), column.type.arrow)
                # An existing row keeps its value; a new row has none, and an event with only a key has no other values.
                unchanged = (self.made.op == _U) | (self.made.op == _V)
            else:
                chosen, unchanged = self._choose(i)
                columns[f"c{i}"] = self._load(i, chosen, self.unrepresentable)
                if i in self.shape.key and (self.tuples.size[i][chosen] == _NULL).any():
                    raise UnsureError
            if i in self.shape.toast:
                columns[f"u{i}"] = pa.array(unchanged)
        for i in self.shape.key:
            if self.made.is_plain:
                columns[f"f{i}"] = pa.nulls(len(self.made), self.shape.columns[i].type.arrow)
            else:
                columns[f"f{i}"] = self._load(i, self.made.before, self.old_unrepresentable)
        return columns

    def _choose(self, column: int) -> tuple[Numbers, Numbers]:
        """The tuple with each event's value of the column, and whether it is unchanged."""
        shape, made = self.shape, self.made
        unchanged = np.zeros(len(made), np.bool_)
        if made.is_plain:
            if self.tuples.has_unchanged[column]:
                unchanged = self.tuples.size[column] == UNCHANGED
            count, chosen = int(unchanged.sum()), made.base
        else:
            chosen = np.empty(len(made), np.int32)
            count = _choose(
                *(self.tuples.size[column], made.base, made.fill, made.only_key),
                *(column in shape.key, chosen, unchanged),
            )
        if count and (column not in shape.toast or column in shape.key or shape.is_bag):
            raise UnsureError
        if count and not shape.moves_toast and (unchanged & (made.op == _V)).any():
            raise UnsureError
        return chosen, unchanged

    def _load(self, column: int, chosen: Numbers, texts: _Texts) -> pa.Array:
        name, column_type = self.shape.columns[column].name, self.shape.columns[column].type
        loaded: LoadedColumn = load_cells(column_type, self.tuples.cells(column, chosen))
        self._size += loaded.array.nbytes + sum(map(len, loaded.unrepresentable.values()))
        if self._size > MAX_SIZE:
            raise OverflowError(f"more than {MAX_SIZE:,} bytes of values in a batch; make it smaller")
        for i, text in loaded.unrepresentable.items():
            texts.setdefault(i, []).append((name, text))
        return loaded.array


def _to_arrow(rows: pa.RecordBatch, shape: TableShape, columns: _Columns) -> pa.RecordBatch:
    values = columns.columns()
    made = columns.made
    for name, source in (("_lsn", "commit_lsn"), ("_file", "file"), ("_ordinal", "ordinal"), ("_xid", "top_xid")):
        values[name] = rows.column(source) if made.is_plain else rows.column(source).take(pa.array(made.source))
    is_unknown = rows.column("commit_ts").is_null().to_numpy(zero_copy_only=False)[made.source]
    values["_ts"] = pa.array(_times(rows)[made.source], mask=is_unknown).view(TIMESTAMP)
    offsets = np.arange(len(made) + 1, dtype=np.int32)
    values["_op"] = pa.StringArray.from_buffers(len(made), pa.py_buffer(offsets), pa.py_buffer(made.op))
    values["_unrep"] = _texts_by_event(columns.unrepresentable, len(made))
    values["_from_unrep"] = _texts_by_event(columns.old_unrepresentable, len(made))
    values["_chain"] = pa.nulls(len(made), CHAIN)
    schema = shape.event_schema()
    return pa.RecordBatch.from_arrays([values[name] for name in schema.names], schema=schema)


def _times(rows: pa.RecordBatch) -> Numbers:
    """Microseconds since 1970; arbitrary for NULL."""
    times: Numbers = rows.column("commit_ts").fill_null(0).to_numpy(zero_copy_only=False)
    if len(times) and times.max() > np.iinfo(np.int64).max - POSTGRES_EPOCH_MICROSECONDS:
        raise UnsureError
    return times + POSTGRES_EPOCH_MICROSECONDS


def _texts_by_event(texts: _Texts, count: int) -> pa.Array:
    if not texts:
        return pa.nulls(count, UNREPRESENTABLE)
    return pa.array([texts.get(i) for i in range(count)], UNREPRESENTABLE)
