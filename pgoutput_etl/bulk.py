"""What columnar.py found, to message rows: units and commits followed, tuples copied, no Python object per message.

It goes on from where the readable scanner stands, and stops before whatever isn't the plain way of a transaction: then
the readable scanner takes that message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgoutput_etl.columnar import (
    COMMIT_LSN,
    COMMIT_TS,
    END,
    IN_STREAM,
    LSN,
    MOST_MESSAGES,
    NEW,
    NEW_END,
    NEXT,
    OFFSET,
    OLD,
    OLD_END,
    OLD_KIND,
    RELATION,
    START,
    TAG,
    UNCHANGED_END,
    XID,
    Bytes,
    Found,
    Numbers,
    find,
)
from pgoutput_etl.compiled import compiled
from pgoutput_etl.framing import Framing
from pgoutput_etl.message_rows import MESSAGE_SCHEMA, NO_UNIT, STORED_TIMES

# What a unit is to the loop. Of an OTHER nothing is known but its number: prepared, or without its beginning.
NO_KIND, HEAD_UNIT, TRANSACTION, SEGMENT, OTHER = range(5)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a scanner stands, in numbers: the unit that is open, its stretch, what it has seen of the file. What isn't
    there is 0. is_pending: something that was interrupted waits for the next commit's LSN."""

    kind: int
    unit: int
    units: int
    unit_xid: int
    unit_lsn: int
    unit_ts: int
    changes: int  # of the unit
    is_damaged: bool
    is_pending: bool
    has_commits: bool  # the stretch
    first_commit: int
    last_commit: int
    commit_lsn: int  # the highest in the file
    has_xids: bool
    lowest_xid: int
    highest_xid: int
    first_lsn: int  # of frames
    last_lsn: int
    head_matters: bool
    ordinal: int
    accounted_to: int

    def to_array(self) -> Numbers:
        return np.array([getattr(self, name) for name in _PLACE_NAMES], np.int64)

    @classmethod
    def from_array(cls, numbers: Numbers) -> Place:
        return cls(*(bool(n) if is_bool else n for n, is_bool in zip(numbers.tolist(), _PLACE_IS_BOOL, strict=True)))


_PLACE_NAMES = tuple(each.name for each in fields(Place))
_PLACE_IS_BOOL = tuple(each.type == "bool" for each in fields(Place))
(
    KIND, UNIT, UNITS, UNIT_XID, UNIT_LSN, UNIT_TS, CHANGES, IS_DAMAGED, IS_PENDING, HAS_LAST, FIRST_COMMIT,
    LAST_COMMIT, COMMITTED, HAS_XIDS, LOWEST_XID, HIGHEST_XID, FIRST_LSN, LAST_LSN, HEAD_MATTERS, ORDINAL, ACCOUNTED_TO,
) = range(len(_PLACE_NAMES))  # fmt: skip

# The columns of a row that are numbers
_ROW_ORDINAL, _ROW_OFFSET, _ROW_BEGIN, _ROW_END, _ROW_LSN, _ROW_XID, _ROW_RELATION = range(7)
_ROW_COMMIT_LSN, _ROW_COMMIT_TS, _ROW_TOP_XID, _ROW_CHANGES = range(7, 11)
_NUMBERS = 11
# The columns of a row that are bytes, and how many of them are before the next row's
_OLD_TUPLE, _NEW_TUPLE, _BODY, _UNCHANGED = range(4)
_EXTENTS = 4
# Which of a row's columns aren't NULL, as bits
_HAS_XID, _HAS_RELATION, _HAS_OLD, _HAS_NEW = 1, 2, 4, 8
_HAS_UNCHANGED, _HAS_BODY, _HAS_TRANSACTION, _HAS_CHANGES = 16, 32, 64, 128

_A, _B, _C, _D, _E, _I, _M, _R, _S, _U, _Y, _COMMIT_OF_STREAM = b"ABCDEIMRSUYc"
_FIRST_TIME, _LAST_TIME = STORED_TIMES[0], STORED_TIMES[-1]
_SLOTS = 1024  # of a hash table of relations
_MOST_RELATIONS = 512
_PADDING = 8
_LEAST = 8  # messages: fewer are read one by one in less time
# Messages that are looked for at once: what isn't taken is looked for again.
_FIRST = 512
_GROWTH = 16

_U64 = np.uint64
_I64 = cast("Callable[[object], int]", np.int64)


@dataclass(frozen=True, slots=True)
class Taken:
    """So many messages, of what was found, and where a scanner stands behind them.

    tags, relations: what was counted, and how often, in the order in which they first came. offset, lsn, read_to: of
    the last one's frame. position, in_stream: of the first that was not taken, or the end. more: it may be taken too.
    """

    messages: int
    place: Place
    tags: list[tuple[str, int]]
    relations: list[tuple[int, int]]
    batch: pa.RecordBatch | None
    offset: int
    lsn: int | None
    read_to: int
    position: int
    in_stream: bool
    more: bool


class Bulk:
    """A file's messages, many at a time. The scratch space is used again and again."""

    def __init__(self, data: bytes, framing: Framing, file: int) -> None:
        self.data = np.frombuffer(data, np.uint8)
        self.framing = framing
        self.has_lsn = framing in (Framing.COPYDATA, Framing.PGCOPY)
        self.found = Found()
        self.most = _FIRST
        self.files = np.full(MOST_MESSAGES, file, np.int64)
        self.tags = np.zeros((2, 256), np.int64)
        self.relations = np.zeros((3, _SLOTS), np.int64)
        self.of_message = np.empty(MOST_MESSAGES, np.int64)

    def find(self, position: int, in_stream: bool) -> bool:
        """Whether what is to be had at once from a frame on is worth it."""
        find(self.data, self.framing, position, in_stream, self.most, self.found)
        return self.found.messages >= (2 if self.found.more else _LEAST)

    def bodies(self) -> Iterator[bytes]:
        """Of what was found, in order."""
        for message in self.found.fields[: self.found.messages]:
            yield self.data[message[START] : message[END]].tobytes()

    def take(self, place: Place, stretch: int) -> Taken:
        """Takes what was found, but for the last one that something else follows: whether it is whole is only known
        once that is."""
        found = self.found
        most = found.messages if found.to_the_end else found.messages - 1
        at = place.to_array()
        numbers = np.empty((_NUMBERS, most), np.int64)
        units = np.empty(most, np.int32)
        tags = np.empty((2, most), np.uint8)
        extents = np.empty((_EXTENTS, most + 1), np.int32)
        extents[:, 0] = 0
        presences = np.empty(most, np.uint8)
        self.tags.fill(0)
        messages, rows, different = _follow(
            found.fields, most, at, self.tags, self.relations, self.of_message, numbers, units, tags, extents, presences
        )
        batch = None
        if rows:
            unchanged = found.unchanged[: extents[_UNCHANGED, rows]].copy()
            batch = self._batch(found, rows, numbers, units, tags, extents, presences, stretch, unchanged)
        self.most = self.most * _GROWTH if messages == most else _FIRST
        last = max(messages - 1, 0)
        is_all = messages == found.messages
        return Taken(
            messages,
            Place.from_array(at),
            _counted_tags(self.tags),
            [(int(oid), int(count)) for oid, count in self.relations[1:, :different].T],
            batch,
            offset=int(found.fields[last, OFFSET]),
            lsn=int(found.fields[last, LSN]) if self.has_lsn else None,
            read_to=int(found.fields[last, NEXT]),
            position=len(self.data) if is_all else int(found.fields[messages, OFFSET]),
            in_stream=not is_all and bool(found.fields[messages, IN_STREAM]),
            more=found.more and messages == most,
        )

    def _batch(
        self,
        found: Found,
        rows: int,
        numbers: Numbers,
        units: NDArray[np.int32],
        tags: Bytes,
        extents: NDArray[np.int32],
        presences: Bytes,
        stretch: int,
        unchanged: NDArray[np.int16],
    ) -> pa.RecordBatch:
        bits = {1 << bit: _bitmap(presences[:rows] & np.uint8(1 << bit)) for bit in range(8)}
        offsets = np.arange(rows + 1, dtype=np.int32)

        def number(which: int, nulls: tuple[int, pa.Buffer | None] = (0, None)) -> pa.Array:
            values = pa.py_buffer(numbers[which, :rows])
            return pa.Array.from_buffers(pa.int64(), rows, [nulls[1], values], nulls[0])

        def letters(which: int, nulls: tuple[int, pa.Buffer | None] = (0, None)) -> pa.Array:
            buffers = [nulls[1], pa.py_buffer(offsets), pa.py_buffer(tags[which, :rows])]
            return pa.Array.from_buffers(pa.string(), rows, buffers, nulls[0])

        def copied(which: int, begin: int, nulls: tuple[int, pa.Buffer | None]) -> pa.Array:
            if nulls[0] == rows:
                return pa.nulls(rows, pa.binary())
            ends = extents[which, : rows + 1]
            values = np.empty(int(ends[rows]) + _PADDING, np.uint8)
            _gather(self.data, found.fields, begin, self.of_message, ends, rows, values)
            buffers = [nulls[1], pa.py_buffer(ends), pa.py_buffer(values)]
            return pa.Array.from_buffers(pa.binary(), rows, buffers, nulls[0])

        transaction = bits[_HAS_TRANSACTION]
        positions = pa.nulls(rows, pa.list_(pa.int16()))
        if len(unchanged):
            buffers = [bits[_HAS_UNCHANGED][1], pa.py_buffer(extents[_UNCHANGED, : rows + 1])]
            values = _column(pa.int16(), unchanged)
            nulls = bits[_HAS_UNCHANGED][0]
            positions = pa.Array.from_buffers(pa.list_(pa.int16()), rows, buffers, nulls, children=[values])
        columns = {
            "file": _column(pa.int64(), self.files[:rows]),
            "ordinal": number(_ROW_ORDINAL),
            "offset": number(_ROW_OFFSET),
            "begin": number(_ROW_BEGIN),
            "end": number(_ROW_END),
            "lsn": number(_ROW_LSN) if self.has_lsn else pa.nulls(rows, pa.int64()),
            "tag": letters(0),
            "unit": _column(pa.int32(), units[:rows]),
            "stretch": _column(pa.int32(), np.full(rows, stretch, np.int32)),
            "xid": number(_ROW_XID, bits[_HAS_XID]),
            "relation": number(_ROW_RELATION, bits[_HAS_RELATION]),
            "old_kind": letters(1, bits[_HAS_OLD]),
            "old": copied(_OLD_TUPLE, OLD, bits[_HAS_OLD]),
            "new": copied(_NEW_TUPLE, NEW, bits[_HAS_NEW]),
            "unchanged": positions,
            "body": copied(_BODY, START, bits[_HAS_BODY]),
            "commit_lsn": number(_ROW_COMMIT_LSN, transaction),
            "commit_ts": number(_ROW_COMMIT_TS, transaction),
            "top_xid": number(_ROW_TOP_XID, transaction),
            "changes": number(_ROW_CHANGES, bits[_HAS_CHANGES]),
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in MESSAGE_SCHEMA.names], schema=MESSAGE_SCHEMA)


def _column(kind: pa.DataType, values: NDArray[Any]) -> pa.Array:
    """Without a copy, and without pandas, which pa.array() imports to look at an array."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _bitmap(presence: Bytes) -> tuple[int, pa.Buffer | None]:
    """How many are NULL, and Arrow's bitmap of those that aren't, if some are and some aren't."""
    nulls = len(presence) - int(np.count_nonzero(presence))
    return nulls, pa.py_buffer(np.packbits(presence, bitorder="little")) if nulls else None


def _counted_tags(counts: Numbers) -> list[tuple[str, int]]:
    """counts: how often each came and, next, at which message first."""
    present = np.flatnonzero(counts[0])
    return [(chr(tag), int(counts[0, tag])) for tag in present[np.argsort(counts[1, present])]]


@compiled
def _follow(  # noqa: C901 - one loop, for speed
    fields: Numbers,
    most: int,
    place: Numbers,
    tag_counts: Numbers,
    relation_counts: Numbers,
    of_message: Numbers,
    numbers: Numbers,
    units: NDArray[np.int32],
    tags: Bytes,
    extents: NDArray[np.int32],
    presences: Bytes,
) -> tuple[int, int, int]:
    """How many messages were taken, with how many rows, of how many relations. `place` is moved on.

    relation_counts: a hash table of numbers from 1, then by number the OID and how often.
    """
    kind, unit, all_units = place[KIND], place[UNIT], place[UNITS]
    unit_xid, unit_lsn, unit_ts = place[UNIT_XID], place[UNIT_LSN], place[UNIT_TS]
    changes = place[CHANGES]
    ordinal, accounted_to = place[ORDINAL], place[ACCOUNTED_TO]
    relation_counts[0, :] = 0
    different = 0
    last_relation, last_number = _I64(-1), 0
    row = 0
    taken = 0
    unchanged_end = _I64(0)
    for i in range(most):
        m = _U64(i)
        tag = fields[m, TAG]
        lsn = fields[m, LSN]
        if lsn < 0:
            break
        r = _U64(row)
        has_row = True
        has_transaction = kind == TRANSACTION
        of_unit = unit
        present = 0
        if tag in (_I, _U, _D):
            if kind == NO_KIND:
                break
            relation = fields[m, RELATION]
            if relation != last_relation:
                slot = (relation * 40503 >> 4) % _SLOTS
                number = relation_counts[0, _U64(slot)]
                while number != 0 and relation_counts[1, _U64(number - 1)] != relation:
                    slot = (slot + 1) % _SLOTS
                    number = relation_counts[0, _U64(slot)]
                if number == 0:
                    if different == _MOST_RELATIONS:
                        break
                    relation_counts[1, _U64(different)] = relation
                    relation_counts[2, _U64(different)] = 0
                    different += 1
                    number = _I64(different)
                    relation_counts[0, _U64(slot)] = number
                last_relation, last_number = relation, number - 1
            relation_counts[2, _U64(last_number)] += 1
            changes += 1
            now_unchanged = fields[m, UNCHANGED_END]
            if kind == HEAD_UNIT:
                place[HEAD_MATTERS] = 1
            numbers[_ROW_XID, r] = fields[m, XID]
            numbers[_ROW_RELATION, r] = relation
            tags[1, r] = fields[m, OLD_KIND]
            present = _HAS_RELATION
            if fields[m, IN_STREAM]:
                present |= _HAS_XID
            if fields[m, OLD_KIND]:
                present |= _HAS_OLD
            if tag != _D:
                present |= _HAS_NEW
            if now_unchanged > unchanged_end:
                present |= _HAS_UNCHANGED
            unchanged_end = now_unchanged
            extents[_OLD_TUPLE, r + _U64(1)] = extents[_OLD_TUPLE, r] + (fields[m, OLD_END] - fields[m, OLD])
            extents[_NEW_TUPLE, r + _U64(1)] = extents[_NEW_TUPLE, r] + (fields[m, NEW_END] - fields[m, NEW])
            extents[_BODY, r + _U64(1)] = extents[_BODY, r]
        else:
            xid, has_xid = _I64(0), _I64(0)
            if tag == _B:
                lsn_of_commit, time = fields[m, COMMIT_LSN], fields[m, COMMIT_TS]
                if kind != NO_KIND or place[IS_PENDING] or lsn_of_commit < 0 or time < _FIRST_TIME or time > _LAST_TIME:
                    break
                if place[HAS_LAST] and lsn_of_commit <= place[LAST_COMMIT]:
                    break
                all_units += 1
                kind, unit, changes = _I64(TRANSACTION), all_units, _I64(0)
                unit_xid, unit_lsn, unit_ts = fields[m, XID], lsn_of_commit, time
                place[IS_DAMAGED] = 0
                has_row = False
            elif tag == _C:
                lsn_of_commit, time = fields[m, COMMIT_LSN], fields[m, COMMIT_TS]
                if kind != TRANSACTION or place[IS_DAMAGED] or lsn_of_commit != unit_lsn:
                    break
                if place[IS_PENDING] or time < _FIRST_TIME or time > _LAST_TIME:
                    break
                if place[HAS_LAST]:
                    if lsn_of_commit <= place[LAST_COMMIT]:
                        break
                else:
                    place[HAS_LAST] = 1
                    place[FIRST_COMMIT] = lsn_of_commit
                place[LAST_COMMIT] = lsn_of_commit
                place[COMMITTED] = max(place[COMMITTED], lsn_of_commit)
                if not place[HAS_XIDS]:
                    place[HAS_XIDS] = 1
                    place[LOWEST_XID] = unit_xid
                    place[HIGHEST_XID] = unit_xid
                place[LOWEST_XID] = min(place[LOWEST_XID], unit_xid)
                place[HIGHEST_XID] = max(place[HIGHEST_XID], unit_xid)
                kind = _I64(NO_KIND)
            elif tag == _COMMIT_OF_STREAM:
                lsn_of_commit, time = fields[m, COMMIT_LSN], fields[m, COMMIT_TS]
                if kind != NO_KIND or place[IS_PENDING] or lsn_of_commit < 0 or time < _FIRST_TIME or time > _LAST_TIME:
                    break
                if place[HAS_LAST]:
                    if lsn_of_commit <= place[LAST_COMMIT]:
                        break
                else:
                    place[HAS_LAST] = 1
                    place[FIRST_COMMIT] = lsn_of_commit
                place[LAST_COMMIT] = lsn_of_commit
                place[COMMITTED] = max(place[COMMITTED], lsn_of_commit)
                of_unit = _I64(NO_UNIT)
            elif tag == _S:
                if kind != NO_KIND:
                    break
                all_units += 1
                kind, unit, changes = _I64(SEGMENT), all_units, _I64(0)
                unit_xid = fields[m, XID]
                place[IS_DAMAGED] = 0
                of_unit = unit
            elif tag == _E:
                if kind != SEGMENT:
                    break
                kind = _I64(NO_KIND)
            elif tag == _A:
                if kind != NO_KIND:
                    break
                of_unit = _I64(NO_UNIT)
            elif tag in (_R, _Y):
                if kind == NO_KIND:
                    of_unit = _I64(NO_UNIT)
                xid = fields[m, XID]
                has_xid = fields[m, IN_STREAM]
            else:
                if tag == _M and fields[m, COMMIT_LSN] != 0 and kind == NO_KIND:
                    break
                has_row = False
            if has_row:
                present = _HAS_BODY
                if has_xid:
                    present |= _HAS_XID
                if tag == _C:
                    present |= _HAS_CHANGES
                tags[1, r] = 0
                extents[_OLD_TUPLE, r + _U64(1)] = extents[_OLD_TUPLE, r]
                extents[_NEW_TUPLE, r + _U64(1)] = extents[_NEW_TUPLE, r]
                extents[_BODY, r + _U64(1)] = extents[_BODY, r] + (fields[m, END] - fields[m, START])
                numbers[_ROW_XID, r] = xid
                numbers[_ROW_RELATION, r] = 0

        if has_row:
            end = fields[m, NEXT]
            numbers[_ROW_ORDINAL, r] = ordinal
            numbers[_ROW_OFFSET, r] = fields[m, OFFSET]
            numbers[_ROW_BEGIN, r] = accounted_to
            numbers[_ROW_END, r] = end
            numbers[_ROW_LSN, r] = lsn
            numbers[_ROW_COMMIT_LSN, r] = unit_lsn
            numbers[_ROW_COMMIT_TS, r] = unit_ts
            numbers[_ROW_TOP_XID, r] = unit_xid
            numbers[_ROW_CHANGES, r] = changes
            presences[r] = present | _HAS_TRANSACTION if has_transaction else present
            extents[_UNCHANGED, r + _U64(1)] = unchanged_end
            tags[0, r] = tag
            units[r] = of_unit
            of_message[r] = i
            accounted_to = end
            row += 1
        if tag_counts[0, _U64(tag)] == 0:
            tag_counts[1, _U64(tag)] = i
        tag_counts[0, _U64(tag)] += 1
        if lsn != 0:
            if place[FIRST_LSN] == 0:
                place[FIRST_LSN] = lsn
            place[LAST_LSN] = lsn
        ordinal += 1
        taken += 1
    place[KIND], place[UNIT], place[UNITS] = kind, unit, all_units
    place[UNIT_XID], place[UNIT_LSN], place[UNIT_TS] = unit_xid, unit_lsn, unit_ts
    place[CHANGES] = changes
    place[ORDINAL], place[ACCOUNTED_TO] = ordinal, accounted_to
    return taken, row, different


@compiled
def _gather(
    data: Bytes, fields: Numbers, field: int, of_message: Numbers, ends: NDArray[np.int32], rows: int, values: Bytes
) -> None:
    """Copies data[fields[of_message[r], field]:] to values[ends[r]:ends[r + 1]], for each row r."""
    for r in range(rows):
        at = _U64(ends[_U64(r)])
        size = _U64(ends[_U64(r + 1)]) - at
        begin = _U64(fields[_U64(of_message[_U64(r)]), _U64(field)])
        for k in range(size):
            values[at + k] = data[begin + k]
