"""Message rows as numbers and bytes in arrays, and the batch that they become without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgoutput_etl.jit import PADDING, compiled, copy_bytes
from pgoutput_etl.scan.fast import fragments as loop
from pgoutput_etl.scan.fast import messages as finder
from pgoutput_etl.scan.fast.messages import Bytes, MessageFields, Numbers
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA

_U64 = np.uint64

# Columns of bytes, and the field of a message where each begins
_BYTES = {loop.OLD_TUPLE: finder.OLD, loop.NEW_TUPLE: finder.NEW, loop.BODY: finder.START}

_PRESENT = {loop.OLD_TUPLE: loop.HAS_OLD, loop.NEW_TUPLE: loop.HAS_NEW, loop.BODY: loop.HAS_BODY}


class RowArrays:
    """Room for `capacity` rows, appended by fragments.follow in the order of their messages.

    A batch of them shares their memory, so they can't be used after it. has_lsn: the framing has LSNs.
    """

    def __init__(self, capacity: int, has_lsn: bool, with_tuples: bool = True) -> None:
        self.has_lsn, self.rows = has_lsn, 0
        self.numbers = np.empty((loop.NUMBERS, capacity), np.int64)
        self.fragments = np.empty(capacity, np.int32)
        self.tags = np.empty((2, capacity), np.uint8)
        self.extents = np.empty((loop.EXTENTS, capacity + 1), np.int32)
        self.extents[:, 0] = 0
        self.presences = np.empty(capacity, np.uint8)
        self._files = np.empty(capacity, np.int64)
        self._bytes = {column: np.empty(0, np.uint8) for column in (_BYTES if with_tuples else (loop.BODY,))}
        self._unchanged: list[NDArray[np.int16]] = []

    def outputs(self) -> tuple[Numbers, NDArray[np.int32], Bytes, NDArray[np.int32], Bytes]:
        """The arrays that fragments.follow writes."""
        return self.numbers, self.fragments, self.tags, self.extents, self.presences

    @property
    def size(self) -> int:
        """The number of bytes in all rows."""
        return int(self.extents[: loop.UNCHANGED, self.rows].sum())

    def has_room(self, rows: int) -> bool:
        return rows <= len(self.presences) - self.rows

    def append(self, data: Bytes, fields: MessageFields, row_messages: Numbers, rows: int, file: int) -> None:
        """Takes the rows up to `rows`, after their numbers were written, and copies their bytes from the data of their
        file. row_messages: the index of each new row's message."""
        first, self.rows = self.rows, rows
        self._files[first:rows] = file
        for column in self._bytes:
            ends = self.extents[column]
            if (size := int(ends[rows])) > ends[first]:
                values = self._with_room(column, int(ends[first]), size + PADDING)
                gather(data, fields.values, _BYTES[column], row_messages, ends, first, rows, values)
        unchanged = self.extents[loop.UNCHANGED]
        if (count := int(unchanged[rows]) - int(unchanged[first])) > 0:
            self._unchanged.append(fields.unchanged[:count].copy())

    def _with_room(self, column: int, used: int, needed: int) -> Bytes:
        values = self._bytes[column]
        if len(values) < needed:
            larger = np.empty(max(needed, 2 * len(values)), np.uint8)
            larger[:used] = values[:used]
            self._bytes[column] = values = larger
        return values

    def batch(self, epoch: int = 0) -> pa.RecordBatch:
        """The rows (MESSAGE_SCHEMA), without their origins. epoch: of all rows."""
        rows, numbers, tags = self.rows, self.numbers, self.tags
        bits = {1 << bit: bitmap(self.presences[:rows] & np.uint8(1 << bit)) for bit in range(8)}
        offsets = np.arange(rows + 1, dtype=np.int32)

        def number(column: int, nulls: tuple[int, pa.Buffer | None] = (0, None)) -> pa.Array:
            values = pa.py_buffer(numbers[column, :rows])
            return pa.Array.from_buffers(pa.int64(), rows, [nulls[1], values], nulls[0])

        def letters(column: int, nulls: tuple[int, pa.Buffer | None] = (0, None)) -> pa.Array:
            buffers = [nulls[1], pa.py_buffer(offsets), pa.py_buffer(tags[column, :rows])]
            return pa.Array.from_buffers(pa.string(), rows, buffers, nulls[0])

        def gathered(column: int) -> pa.Array:
            nulls = bits[_PRESENT[column]]
            if column not in self._bytes or nulls[0] == rows:
                return pa.nulls(rows, pa.binary())
            buffers = [nulls[1], pa.py_buffer(self.extents[column, : rows + 1]), pa.py_buffer(self._bytes[column])]
            return pa.Array.from_buffers(pa.binary(), rows, buffers, nulls[0])

        transaction = bits[loop.HAS_TRANSACTION]
        positions = pa.nulls(rows, pa.list_(pa.int16()))
        if self._unchanged:
            buffers = [bits[loop.HAS_UNCHANGED][1], pa.py_buffer(self.extents[loop.UNCHANGED, : rows + 1])]
            values = _column(pa.int16(), np.concatenate(self._unchanged))
            nulls = bits[loop.HAS_UNCHANGED][0]
            positions = pa.Array.from_buffers(pa.list_(pa.int16()), rows, buffers, nulls, children=[values])
        columns = {
            "file": _column(pa.int64(), self._files[:rows]),
            "ordinal": number(loop.ROW_ORDINAL),
            "offset": number(loop.ROW_OFFSET),
            "begin": number(loop.ROW_BEGIN),
            "end": number(loop.ROW_END),
            "lsn": number(loop.ROW_LSN) if self.has_lsn else pa.nulls(rows, pa.int64()),
            "tag": letters(0),
            "unit": _column(pa.int32(), self.fragments[:rows]),
            "stretch": _column(pa.int32(), np.full(rows, epoch, np.int32)),
            "xid": number(loop.ROW_XID, bits[loop.HAS_XID]),
            "relation": number(loop.ROW_RELATION, bits[loop.HAS_RELATION]),
            "old_kind": letters(1, bits[loop.HAS_OLD]),
            "old": gathered(loop.OLD_TUPLE),
            "new": gathered(loop.NEW_TUPLE),
            "unchanged": positions,
            "body": gathered(loop.BODY),
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


def bitmap(presence: Bytes) -> tuple[int, pa.Buffer | None]:
    """The number of NULLs, and Arrow's validity bitmap; no bitmap if nothing is NULL."""
    nulls = len(presence) - int(np.count_nonzero(presence))
    return nulls, pa.py_buffer(np.packbits(presence, bitorder="little")) if nulls else None


@compiled
def gather(
    data: Bytes,
    fields: Numbers,
    field: int,
    row_messages: Numbers,
    ends: NDArray[np.int32],
    first: int,
    rows: int,
    values: Bytes,
) -> None:
    """Copies data[fields[row_messages[r - first], field]:] to values[ends[r]:ends[r + 1]] for each row r from `first`
    on. `values` must have room for PADDING more bytes."""
    for r in range(first, rows):
        to, end = _U64(ends[_U64(r)]), _U64(ends[_U64(r + 1)])
        begin = _U64(fields[_U64(row_messages[_U64(r - first)]), _U64(field)])
        copy_bytes(data, begin, begin + (end - to), values, to)
