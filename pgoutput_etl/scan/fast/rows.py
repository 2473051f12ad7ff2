"""Builds batches of message rows from message fields: copies tuples, without a Python object per message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pgoutput_etl.jit import PADDING, compiled, copy_bytes
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.scan.fast import fragments as loop
from pgoutput_etl.scan.fast import messages as finder
from pgoutput_etl.scan.fast.fragments import ScanCursor
from pgoutput_etl.scan.fast.messages import Bytes, MessageFields, Numbers
from pgoutput_etl.scan.fragment import stored_origin_lsn
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA

_FEWEST_MESSAGES = 8  # fewer are faster to read one by one

# The number of messages to find at a time. Messages that are found but not read have to be found again.
_FIRST_LIMIT = 512
_GROWTH = 16

_U64 = np.uint64

OriginField = tuple[str, int | None]  # the origin's name, and the commit's LSN there


class _RowArrays(NamedTuple):
    """The output arrays of fragments.follow."""

    numbers: Numbers
    fragments: NDArray[np.int32]
    tags: Bytes
    extents: NDArray[np.int32]
    presences: Bytes


@dataclass(frozen=True, slots=True)
class FastRows:
    """The rows of `messages` messages, and the scan's state after the last one.

    tags, relations: counts, in order of first occurrence. offset, lsn, read_to: of the last message's frame. position,
    in_stream: of the first message not read, or the end. more: the fast path may also be able to read that message.
    origin: from an Origin among the messages, for the fragment that is open after them.
    """

    messages: int
    cursor: ScanCursor
    tags: list[tuple[str, int]]
    relations: list[tuple[int, int]]
    batch: pa.RecordBatch | None
    offset: int
    lsn: int | None
    read_to: int
    position: int
    in_stream: bool
    more: bool
    origin: OriginField | None = None


class FastScanner:
    """Reads a file's messages many at a time, in scratch arrays that every call reuses."""

    def __init__(self, data: bytes, framing: Framing, file: int, with_tuples: bool = True) -> None:
        self.data = np.frombuffer(data, np.uint8)
        self.with_tuples = with_tuples
        self.framing = framing
        self.has_lsn = framing in (Framing.COPYDATA, Framing.PGCOPY)
        self.fields = MessageFields()
        self.limit = _FIRST_LIMIT
        self.files = np.full(finder.MOST_MESSAGES, file, np.int64)
        self.tags = np.zeros((2, 256), np.int64)
        self.relations = np.zeros((3, loop.SLOTS), np.int64)
        self.row_messages = np.empty(finder.MOST_MESSAGES, np.int64)

    def find(self, position: int, in_stream: bool) -> bool:
        """Finds messages from a frame on. False if there are too few to be worth reading here."""
        finder.find(self.data, self.framing, position, in_stream, self.limit, self.fields)
        return self.fields.messages >= (2 if self.fields.more else _FEWEST_MESSAGES)

    def bodies(self) -> Iterator[bytes]:
        """The messages found, in order."""
        for message in self.fields.values[: self.fields.messages]:
            yield self.data[message[finder.START] : message[finder.END]].tobytes()

    def read(self, cursor: ScanCursor, epoch: int, origin: OriginField | None = None) -> FastRows:
        """Reads the messages found, except the last one, unless it ends the file: only another message after it proves
        that a message is whole. `origin`: the open fragment's."""
        fields = self.fields
        limit = fields.messages if fields.to_the_end else fields.messages - 1
        cursor_numbers = np.array(cursor, np.int64)
        arrays = _RowArrays(
            numbers=np.empty((loop.NUMBERS, limit), np.int64),
            fragments=np.empty(limit, np.int32),
            tags=np.empty((2, limit), np.uint8),
            extents=np.empty((loop.EXTENTS, limit + 1), np.int32),
            presences=np.empty(limit, np.uint8),
        )
        arrays.extents[:, 0] = 0
        self.tags.fill(0)
        messages, rows, relations = loop.follow(
            fields.values, limit, cursor_numbers, self.tags, self.relations, self.row_messages, *arrays
        )
        batch = None
        if rows:
            batch = self._with_origins(self._batch(rows, arrays, epoch), arrays.numbers[loop.ROW_ORIGIN, :rows], origin)
        self.limit = self.limit * _GROWTH if messages == limit else _FIRST_LIMIT
        last = max(messages - 1, 0)
        is_all = messages == fields.messages
        return FastRows(
            messages,
            ScanCursor(*cursor_numbers.tolist()),
            _counted_tags(self.tags),
            [(int(oid), int(count)) for oid, count in self.relations[1:, :relations].T],
            batch,
            offset=int(fields.values[last, finder.OFFSET]),
            lsn=int(fields.values[last, finder.LSN]) if self.has_lsn else None,
            read_to=int(fields.values[last, finder.NEXT]),
            position=len(self.data) if is_all else int(fields.values[messages, finder.OFFSET]),
            in_stream=not is_all and bool(fields.values[messages, finder.IN_STREAM]),
            more=fields.more and messages == limit,
            origin=self._origin(int(cursor_numbers[loop.ORIGIN]) - 1) if cursor_numbers[loop.ORIGIN] > 0 else None,
        )

    def _origin(self, message: int) -> OriginField:
        [name], [lsn] = self._origins(np.array([message], np.int64))
        return name, lsn

    def _origins(self, messages: Numbers) -> tuple[list[str], list[int | None]]:
        """The names and LSNs of Origin messages, given by index."""
        values, view = self.fields.values, self.data.data
        begins, ends = (values[messages, finder.START] + 9).tolist(), (values[messages, finder.END] - 1).tolist()
        names = [str(view[begin:end], "ascii") for begin, end in zip(begins, ends, strict=True)]
        return names, [stored_origin_lsn(lsn) for lsn in values[messages, finder.COMMIT_LSN].tolist()]

    def _with_origins(self, batch: pa.RecordBatch, row_origins: Numbers, known: OriginField | None) -> pa.RecordBatch:
        """`row_origins`: each row's origin, as in ScanCursor.origin. `known`: the origin for which KNOWN_ORIGIN
        stands."""
        if not row_origins.any():
            return batch
        numbers, places = np.unique(row_origins, return_inverse=True)
        before: list[tuple[str | None, int | None]] = []
        if numbers[0] == loop.KNOWN_ORIGIN:
            before.append((None, None) if known is None else known)
        if loop.NO_ORIGIN in numbers[:2]:
            before.append((None, None))
        names, lsns = self._origins(numbers[numbers > 0] - 1)
        indices = pa.array(places.astype(np.int32))
        names = pa.array([*(name for name, _ in before), *names], pa.string()).take(indices)
        lsns = pa.array([*(lsn for _, lsn in before), *lsns], pa.int64()).take(indices)
        is_commit = pc.equal(batch.column("tag"), "C")
        lsns = pc.if_else(is_commit, lsns, pa.scalar(None, pa.int64()))
        for name, column in (("origin", names), ("origin_lsn", lsns)):
            batch = batch.set_column(batch.schema.get_field_index(name), MESSAGE_SCHEMA.field(name), column)
        return batch

    def _batch(self, rows: int, arrays: _RowArrays, epoch: int) -> pa.RecordBatch:
        numbers, fragments, tags, extents, presences = arrays
        unchanged = self.fields.unchanged[: extents[loop.UNCHANGED, rows]].copy()
        bits = {1 << bit: _bitmap(presences[:rows] & np.uint8(1 << bit)) for bit in range(8)}
        offsets = np.arange(rows + 1, dtype=np.int32)

        def number(column: int, nulls: tuple[int, pa.Buffer | None] = (0, None)) -> pa.Array:
            values = pa.py_buffer(numbers[column, :rows])
            return pa.Array.from_buffers(pa.int64(), rows, [nulls[1], values], nulls[0])

        def letters(column: int, nulls: tuple[int, pa.Buffer | None] = (0, None)) -> pa.Array:
            buffers = [nulls[1], pa.py_buffer(offsets), pa.py_buffer(tags[column, :rows])]
            return pa.Array.from_buffers(pa.string(), rows, buffers, nulls[0])

        def gathered(column: int, begin: int, nulls: tuple[int, pa.Buffer | None]) -> pa.Array:
            if nulls[0] == rows:
                return pa.nulls(rows, pa.binary())
            ends = extents[column, : rows + 1]
            values = np.empty(int(ends[rows]) + PADDING, np.uint8)
            _gather(self.data, self.fields.values, begin, self.row_messages, ends, rows, values)
            buffers = [nulls[1], pa.py_buffer(ends), pa.py_buffer(values)]
            return pa.Array.from_buffers(pa.binary(), rows, buffers, nulls[0])

        def tuples(column: int, begin: int, nulls: tuple[int, pa.Buffer | None]) -> pa.Array:
            return gathered(column, begin, nulls) if self.with_tuples else pa.nulls(rows, pa.binary())

        transaction = bits[loop.HAS_TRANSACTION]
        positions = pa.nulls(rows, pa.list_(pa.int16()))
        if len(unchanged):
            buffers = [bits[loop.HAS_UNCHANGED][1], pa.py_buffer(extents[loop.UNCHANGED, : rows + 1])]
            values = _column(pa.int16(), unchanged)
            nulls = bits[loop.HAS_UNCHANGED][0]
            positions = pa.Array.from_buffers(pa.list_(pa.int16()), rows, buffers, nulls, children=[values])
        columns = {
            "file": _column(pa.int64(), self.files[:rows]),
            "ordinal": number(loop.ROW_ORDINAL),
            "offset": number(loop.ROW_OFFSET),
            "begin": number(loop.ROW_BEGIN),
            "end": number(loop.ROW_END),
            "lsn": number(loop.ROW_LSN) if self.has_lsn else pa.nulls(rows, pa.int64()),
            "tag": letters(0),
            "unit": _column(pa.int32(), fragments[:rows]),
            "stretch": _column(pa.int32(), np.full(rows, epoch, np.int32)),
            "xid": number(loop.ROW_XID, bits[loop.HAS_XID]),
            "relation": number(loop.ROW_RELATION, bits[loop.HAS_RELATION]),
            "old_kind": letters(1, bits[loop.HAS_OLD]),
            "old": tuples(loop.OLD_TUPLE, finder.OLD, bits[loop.HAS_OLD]),
            "new": tuples(loop.NEW_TUPLE, finder.NEW, bits[loop.HAS_NEW]),
            "unchanged": positions,
            "body": gathered(loop.BODY, finder.START, bits[loop.HAS_BODY]),
            "commit_lsn": number(loop.ROW_COMMIT_LSN, transaction),
            "commit_ts": number(loop.ROW_COMMIT_TS, transaction),
            "top_xid": number(loop.ROW_TOP_XID, transaction),
            "changes": number(loop.ROW_CHANGES, bits[loop.HAS_CHANGES]),
            "origin": pa.nulls(rows, pa.string()),
            "origin_lsn": pa.nulls(rows, pa.int64()),
        }
        return pa.RecordBatch.from_arrays([columns[name] for name in MESSAGE_SCHEMA.names], schema=MESSAGE_SCHEMA)


def _column(kind: pa.DataType, values: NDArray[Any]) -> pa.Array:
    """An array of the values without a copy. pa.array() would import pandas to inspect a NumPy array."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def _bitmap(presence: Bytes) -> tuple[int, pa.Buffer | None]:
    """The number of NULLs, and Arrow's validity bitmap; no bitmap if nothing is NULL."""
    nulls = len(presence) - int(np.count_nonzero(presence))
    return nulls, pa.py_buffer(np.packbits(presence, bitorder="little")) if nulls else None


def _counted_tags(counts: Numbers) -> list[tuple[str, int]]:
    """counts: by tag, the count and the index of its first message."""
    present = np.flatnonzero(counts[0])
    return [(chr(tag), int(counts[0, tag])) for tag in present[np.argsort(counts[1, present])]]


@compiled
def _gather(
    data: Bytes, fields: Numbers, field: int, row_messages: Numbers, ends: NDArray[np.int32], rows: int, values: Bytes
) -> None:
    """Copies data[fields[row_messages[r], field]:] to values[ends[r]:ends[r + 1]] for each row r. `values` must have
    room for PADDING more bytes."""
    for r in range(rows):
        to, end = _U64(ends[_U64(r)]), _U64(ends[_U64(r + 1)])
        begin = _U64(fields[_U64(row_messages[_U64(r)]), _U64(field)])
        copy_bytes(data, begin, begin + (end - to), values, to)
