"""What changes.events makes of message rows, made by kernels: the same batches, without an object per row or value.

First each row becomes its events as numbers: which tuple an event is of, which one fills what that leaves unchanged,
and whether it is the whole row or its key. Then each column is read in one go (types/kernels.py). Whatever this is not
built for, and whatever is wrong with the rows, is left to `events`, which does it one row at a time and says what is
wrong: so the two can't differ in what they refuse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl import compiled
from pgoutput_etl.changes import (
    DELETED,
    INSERTED,
    MAX_SIZE,
    MOVED_IN,
    MOVED_OUT,
    POSTGRES_EPOCH_MICROSECONDS,
    TIMESTAMP,
    UNREPRESENTABLE,
    UPDATED,
    TableShape,
    events,
    too_long,
)
from pgoutput_etl.relations import RelationVersions
from pgoutput_etl.tuples import SEEN_UNCHANGED, UNCHANGED, RawTuples, SplitTuples, split_tuples
from pgoutput_etl.types import LoadedColumn, ValueTextError
from pgoutput_etl.types.kernels import BINARY, Numbers, UnsureError, are_texts, load_cells

# Rows that are made events at a time: as many as the processor's caches hold.
BATCH_ROWS = 8192
_I, _U, _D, _X, _V = (np.uint8(ord(op)) for op in (INSERTED, UPDATED, DELETED, MOVED_OUT, MOVED_IN))
_LENGTH = np.int32(BINARY - 1)
_UNCHANGED = np.int32(UNCHANGED)
_1 = np.uint64(1)


def event_batches(rows: pa.RecordBatch, shape: TableShape) -> Iterator[pa.RecordBatch]:
    """What `events` gives, in parts. Some values are much longer in text than in binary form: halves, if need be."""
    if not compiled.AVAILABLE:
        yield from _in_halves(rows, shape)
        return
    for begin in range(0, max(rows.num_rows, 1), BATCH_ROWS):
        yield from _in_halves(rows.slice(begin, BATCH_ROWS), shape)


def _in_halves(rows: pa.RecordBatch, shape: TableShape) -> Iterator[pa.RecordBatch]:
    try:
        found = fast_events(rows, shape)
    except OverflowError:
        if rows.num_rows == 1:
            raise too_long(rows, shape) from None
        half = rows.num_rows // 2
        yield from _in_halves(rows.slice(0, half), shape)
        yield from _in_halves(rows.slice(half), shape)
    else:
        yield found


def fast_events(rows: pa.RecordBatch, shape: TableShape) -> pa.RecordBatch:
    """As `events`, and raises what that raises."""
    if compiled.AVAILABLE:
        try:
            return _typed(rows, shape)
        except (UnsureError, ValueTextError):
            pass
    return events(rows, shape)


def _typed(rows: pa.RecordBatch, shape: TableShape) -> pa.RecordBatch:
    _check_versions(rows, shape)
    new, old = RawTuples.of(rows.column("new")), RawTuples.of(rows.column("old"))
    has_old = bool((old.starts >= 0).any())
    if has_old or bool((new.starts < 0).any()):
        tuples = split_tuples(new.followed_by(old), len(shape.relation.columns))
        made = _made_events(rows, shape, tuples, new, old)
    else:
        tuples = split_tuples(new, len(shape.relation.columns))
        made = _of_new_tuples(rows, shape)
    return _to_arrow(rows, shape, _Columns(shape, tuples, made))


def _check_versions(rows: pa.RecordBatch, shape: TableShape) -> None:
    """Every row stands under a version that has the shape's columns, or UnsureError."""
    for name in ("file", "ordinal"):
        if rows.column(name).null_count:
            raise UnsureError
    relation = shape.relation
    is_mine = [
        (version.columns, version.replica_identity) == (relation.columns, relation.replica_identity)
        for version in shape.versions.relations
    ]
    files, ordinals = _numbers(rows, "file"), _numbers(rows, "ordinal")
    numbers = _versions_at(shape.versions, files, ordinals, None)
    scopes = rows.column("scope")
    if scopes.null_count < len(scopes):
        for scope in scopes.unique().drop_null().to_pylist():
            if scope in shape.versions.holds_from:
                at = pc.indices_nonzero(pc.equal(scopes, scope)).to_numpy()
                own = _versions_at(shape.versions, files[at], ordinals[at], scope)
                numbers[at] = np.where(own >= 0, own, numbers[at])
    # The last one is what -1 finds: nothing describes the row.
    if not np.array([*is_mine, False])[numbers].all():
        raise UnsureError


def _versions_at(versions: RelationVersions, files: Numbers, ordinals: Numbers, scope: int | None) -> Numbers:
    """What versions.at gives for each position of that scope alone; -1 for None."""
    entries = versions.holds_from.get(scope, ())
    found = np.full(len(files), -1, np.int64)
    if not entries or not len(files):
        return found
    first_file, last_file = files.min(), files.max()
    first = (int(first_file), int(ordinals[files == first_file].min()))
    last = (int(last_file), int(ordinals[files == last_file].max()))
    for (file, ordinal), number in entries:
        if (file, ordinal) <= first:
            found[:] = number
        elif (file, ordinal) <= last:
            found[(files > file) | ((files == file) & (ordinals >= ordinal))] = number
    return found


def _numbers(rows: pa.RecordBatch, name: str) -> Numbers:
    numbers: Numbers = rows.column(name).to_numpy()
    return numbers


@dataclass(frozen=True, slots=True)
class _Events:
    """Per event: `source`, its row; `op`; `base`, the tuple it is of; `fill`, the tuple that fills what that leaves
    unchanged, -1 for none, and `fills_all`, whether in all columns or in the replica identity's; `only_key`; `before`,
    the tuple of the key that the row moved from, -1 for none.

    None for `fill` and what follows it: no event has any.
    """

    source: Numbers | None  # None: one event a row
    op: Numbers
    base: Numbers
    fill: Numbers | None = None
    fills_all: Numbers | None = None
    only_key: Numbers | None = None
    before: Numbers | None = None

    def __len__(self) -> int:
        return len(self.op)


def _is(rows: pa.RecordBatch, name: str, what: str) -> Numbers:
    found: Numbers = pc.fill_null(pc.equal(rows.column(name), what), False).to_numpy(zero_copy_only=False)
    return found


def _of_new_tuples(rows: pa.RecordBatch, shape: TableShape) -> _Events:
    base = np.arange(rows.num_rows, dtype=np.int32)
    if shape.is_bag:
        return _Events(None, np.full(rows.num_rows, _I), base)
    return _Events(None, np.where(_is(rows, "tag", INSERTED), _I, _U), base)


def _made_events(
    rows: pa.RecordBatch, shape: TableShape, tuples: SplitTuples, new: RawTuples, old: RawTuples
) -> _Events:
    """tuples: the new ones, then the old ones."""
    count = rows.num_rows
    has_new, has_old = new.starts >= 0, old.starts >= 0
    is_insert = _is(rows, "tag", INSERTED)
    if not (has_new | has_old).all() or (is_insert & has_old).any():
        raise UnsureError
    fills_all = _is(rows, "old_kind", "O")
    if shape.is_bag:
        if not fills_all[has_old].all():
            raise UnsureError
        moves, is_key_only = has_new & has_old, np.zeros(count, np.bool_)
    else:
        sent = np.array([column.is_key for column in shape.relation.columns])
        key = np.array(shape.key, np.int64)
        moves, is_key_only = np.zeros(count, np.bool_), has_old & ~has_new
        both = np.flatnonzero(has_new & has_old).astype(np.int32)
        found = np.empty(len(both), np.uint8)
        if not _key_moves(tuples.data, tuples.at, tuples.size, both, count, key, sent, fills_all, found):
            raise UnsureError
        moves[both] = found != 0
        # `events` reads all of an old tuple, and so finds what is no text where it is not used.
        read = np.flatnonzero(has_old).astype(np.int32) + np.int32(count)
        if not all(are_texts(tuples.cells(column, read)) for column in range(len(sent))):
            raise UnsureError
    return _arranged(shape, is_insert, has_new, has_old, moves, is_key_only, fills_all)


def _arranged(
    shape: TableShape,
    is_insert: Numbers,
    has_new: Numbers,
    has_old: Numbers,
    moves: Numbers,
    is_key_only: Numbers,
    fills_all: Numbers,
) -> _Events:
    """A row that moves is two events: X (in a bag D) of the old tuple, then V (in a bag I) of the new one."""
    count = len(has_new)
    each = np.where(moves, 2, 1)
    source = np.repeat(np.arange(count, dtype=np.int32), each)
    ends = np.cumsum(each)
    is_first = np.zeros(len(source), np.bool_)
    is_first[ends[moves] - 2] = True
    of_old = is_first | ~has_new[source]
    base = np.where(of_old, source + np.int32(count), source).astype(np.int32)
    fill = np.where(~of_old & has_old[source], source + np.int32(count), -1).astype(np.int32)
    if shape.is_bag:
        op = np.where(of_old, _D, _I)
        return _Events(source, op, base, fill, fills_all[source])
    moved_in = moves[source] & ~is_first
    op = np.where(is_insert[source], _I, _U)
    op[of_old] = _D
    op[is_first] = _X
    op[moved_in] = _V
    before = np.where(moved_in, source + np.int32(count), -1).astype(np.int32)
    return _Events(source, op, base, fill, fills_all[source], is_key_only[source] | is_first, before)


@compiled.compiled
def _key_moves(
    data: Any, at: Any, size: Any, rows: Any, count: Any, key: Any, sent: Any, fills_all: Any, moves: Any
) -> bool:
    """Of rows with a new tuple (numbered as they are) and an old one (`count` further): whether their keys differ.

    False if a column of a key is unchanged TOAST that nothing fills.
    """
    for i in range(rows.shape[0]):
        row = rows[i]
        moves[i] = 0
        for k in range(key.shape[0]):
            c = key[k]
            was, now = row + count, row
            if size[c, now] == _UNCHANGED and (fills_all[row] or sent[c]):
                now = was
            if size[c, now] == _UNCHANGED or size[c, was] == _UNCHANGED:
                return False
            if now == was:
                continue
            length = size[c, was] & _LENGTH if size[c, was] >= 0 else -1
            if length != (size[c, now] & _LENGTH if size[c, now] >= 0 else -1):
                moves[i] = 1
            elif length > 0 and not moves[i]:
                p, q = np.uint64(at[c, was]), np.uint64(at[c, now])
                end = p + np.uint64(length)
                while p < end and data[p] == data[q]:
                    p += _1
                    q += _1
                moves[i] = p < end
    return True


class _Columns:
    """The events' columns, and the texts of what these can't hold."""

    __slots__ = ("_shape", "_size", "_tuples", "before", "here", "made")

    def __init__(self, shape: TableShape, tuples: SplitTuples, made: _Events) -> None:
        self._shape, self._tuples, self.made = shape, tuples, made
        self._size = 0
        self.here: dict[int, list[tuple[str, str]]] = {}  # by event: column's name and text
        self.before: dict[int, list[tuple[str, str]]] = {}

    def columns(self) -> dict[str, pa.Array]:
        found: dict[str, pa.Array] = {}
        for i, column in enumerate(self._shape.columns):
            if column.retired:
                found[f"c{i}"] = pa.nulls(len(self.made), column.type.arrow)
                if i in self._shape.toast:
                    found[f"u{i}"] = self._retired_unchanged()
                continue
            chosen = self._chosen(i)
            unchanged = self._unchanged(i, chosen)
            found[f"c{i}"] = self._loaded(i, chosen, self.here)
            if i in self._shape.toast:
                found[f"u{i}"] = pa.array(unchanged)
        before = self.made.before
        for i in self._shape.key:
            nothing = pa.nulls(len(self.made), self._shape.columns[i].type.arrow)
            found[f"f{i}"] = nothing if before is None else self._loaded(i, before, self.before)
        return found

    def _chosen(self, column: int) -> Numbers:
        """The tuple that has the column's value, of each event."""
        made = self.made
        chosen = made.base
        if made.fill is not None and made.fills_all is not None and self._tuples.seen[column] & SEEN_UNCHANGED:
            fills = made.fill >= 0
            if not self._shape.relation.columns[column].is_key:
                fills &= made.fills_all
            chosen = np.where(fills & (self._tuples.size[column][chosen] == UNCHANGED), made.fill, chosen)
        if made.only_key is not None and column not in self._shape.key:
            chosen = np.where(made.only_key, np.int32(-1), chosen)
        return chosen

    def _unchanged(self, column: int, chosen: Numbers) -> Numbers:
        """Which events leave it as it is. UnsureError where none may."""
        if not self._tuples.seen[column] & SEEN_UNCHANGED:
            return np.zeros(len(self.made), np.bool_)
        unchanged: Numbers = (chosen >= 0) & (self._tuples.size[column][chosen] == UNCHANGED)
        is_allowed = column in self._shape.toast and column not in self._shape.key and not self._shape.is_bag
        if not is_allowed and unchanged.any():
            raise UnsureError
        return unchanged

    def _retired_unchanged(self) -> pa.Array:
        """A retired column's value stays with its row; a new row has none, and a key alone tells nothing of it."""
        op = self.made.op
        return pa.array((op == _U) | (op == _V) if not self._shape.is_bag else np.zeros(len(op), np.bool_))

    def _loaded(self, column: int, chosen: Numbers, noted: dict[int, list[tuple[str, str]]]) -> pa.Array:
        name, of = self._shape.columns[column].name, self._shape.columns[column].type
        loaded: LoadedColumn = load_cells(of, self._tuples.cells(column, chosen))
        self._size += loaded.array.nbytes + sum(map(len, loaded.unrepresentable.values()))
        if self._size > MAX_SIZE:
            raise OverflowError(f"more than {MAX_SIZE:,} bytes of values in a batch; make it smaller")
        for i, text in loaded.unrepresentable.items():
            noted.setdefault(i, []).append((name, text))
        return loaded.array


def _to_arrow(rows: pa.RecordBatch, shape: TableShape, columns: _Columns) -> pa.RecordBatch:
    values = columns.columns()
    made = columns.made
    source = None if made.source is None else pa.array(made.source)
    for name, of in (("_lsn", "commit_lsn"), ("_file", "file"), ("_ordinal", "ordinal"), ("_xid", "top_xid")):
        values[name] = rows.column(of) if source is None else rows.column(of).take(source)
    times = rows.column("commit_ts") if source is None else rows.column("commit_ts").take(source)
    if times.null_count:
        raise UnsureError
    try:
        values["_ts"] = pc.add_checked(times, POSTGRES_EPOCH_MICROSECONDS).view(TIMESTAMP)
    except pa.ArrowInvalid:
        raise UnsureError from None
    offsets = np.arange(len(made) + 1, dtype=np.int32)
    values["_op"] = pa.StringArray.from_buffers(len(made), pa.py_buffer(offsets), pa.py_buffer(made.op))
    values["_unrep"] = _noted(columns.here, len(made))
    values["_from_unrep"] = _noted(columns.before, len(made))
    schema = shape.event_schema()
    return pa.RecordBatch.from_arrays([values[name] for name in schema.names], schema=schema)


def _noted(texts: dict[int, list[tuple[str, str]]], count: int) -> pa.Array:
    if not texts:
        return pa.nulls(count, UNREPRESENTABLE)
    return pa.array([texts.get(i) for i in range(count)], UNREPRESENTABLE)
