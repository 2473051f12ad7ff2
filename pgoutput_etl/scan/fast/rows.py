"""What columnar.py found, to batches of message rows: tuples are copied, and no message becomes an object of Python."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pgoutput_etl.jit import PADDING, compiled, copied
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.scan.fast.fragments import (
    BODY,
    EXTENTS,
    HAS_BODY,
    HAS_CHANGES,
    HAS_NEW,
    HAS_OLD,
    HAS_RELATION,
    HAS_TRANSACTION,
    HAS_UNCHANGED,
    HAS_XID,
    KNOWN_ORIGIN,
    NEW_TUPLE,
    NO_ORIGIN,
    NUMBERS,
    OLD_TUPLE,
    ORIGIN,
    ROW_BEGIN,
    ROW_CHANGES,
    ROW_COMMIT_LSN,
    ROW_COMMIT_TS,
    ROW_END,
    ROW_LSN,
    ROW_OFFSET,
    ROW_ORDINAL,
    ROW_ORIGIN,
    ROW_RELATION,
    ROW_TOP_XID,
    ROW_XID,
    SLOTS,
    UNCHANGED,
    ScanCursor,
    follow,
)
from pgoutput_etl.scan.fast.messages import (
    COMMIT_LSN,
    END,
    IN_STREAM,
    LSN,
    MOST_MESSAGES,
    NEW,
    NEXT,
    OFFSET,
    OLD,
    START,
    Bytes,
    MessageFields,
    Numbers,
    find,
)
from pgoutput_etl.scan.fragment import stored_origin_lsn
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA

_LEAST = 8  # messages: fewer are read one by one in less time

# Messages that are looked for at once: what isn't taken is looked for again.
_FIRST = 512

_GROWTH = 16


_U64 = np.uint64


OriginField = tuple[str, int | None]  # its name, and the commit's LSN there


@dataclass(frozen=True, slots=True)
class FastRows:
    """So many messages, of what was found, and where a scanner stands behind them.

    tags, relations: what was counted, and how often, in the order in which they first came. offset, lsn, read_to: of
    the last one's frame. position, in_stream: of the first that was not taken, or the end. more: it may be taken too.
    origin: what an Origin among them says of the unit that is open behind them.
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
    """A file's messages, many at a time. The scratch space is used again and again."""

    def __init__(self, data: bytes, framing: Framing, file: int) -> None:
        self.data = np.frombuffer(data, np.uint8)
        self.framing = framing
        self.has_lsn = framing in (Framing.COPYDATA, Framing.PGCOPY)
        self.found = MessageFields()
        self.most = _FIRST
        self.files = np.full(MOST_MESSAGES, file, np.int64)
        self.tags = np.zeros((2, 256), np.int64)
        self.relations = np.zeros((3, SLOTS), np.int64)
        self.of_message = np.empty(MOST_MESSAGES, np.int64)

    def find(self, position: int, in_stream: bool) -> bool:
        """Whether what is to be had at once from a frame on is worth it."""
        find(self.data, self.framing, position, in_stream, self.most, self.found)
        return self.found.messages >= (2 if self.found.more else _LEAST)

    def bodies(self) -> Iterator[bytes]:
        """Of what was found, in order."""
        for message in self.found.fields[: self.found.messages]:
            yield self.data[message[START] : message[END]].tobytes()

    def read(self, place: ScanCursor, epoch: int, origin: OriginField | None = None) -> FastRows:
        """Takes what was found, but for the last one that something else follows: whether it is whole is only known
        once that is. `origin`: of the unit that is open."""
        found = self.found
        most = found.messages if found.to_the_end else found.messages - 1
        at = place.to_array()
        numbers = np.empty((NUMBERS, most), np.int64)
        fragments = np.empty(most, np.int32)
        tags = np.empty((2, most), np.uint8)
        extents = np.empty((EXTENTS, most + 1), np.int32)
        extents[:, 0] = 0
        presences = np.empty(most, np.uint8)
        self.tags.fill(0)
        messages, rows, different = follow(
            found.fields,
            most,
            at,
            self.tags,
            self.relations,
            self.of_message,
            numbers,
            fragments,
            tags,
            extents,
            presences,
        )
        batch = None
        if rows:
            unchanged = found.unchanged[: extents[UNCHANGED, rows]].copy()
            batch = self._batch(found, rows, numbers, fragments, tags, extents, presences, epoch, unchanged)
            batch = self._with_origins(batch, numbers[ROW_ORIGIN, :rows], origin)
        self.most = self.most * _GROWTH if messages == most else _FIRST
        last = max(messages - 1, 0)
        is_all = messages == found.messages
        return FastRows(
            messages,
            ScanCursor.from_array(at),
            _counted_tags(self.tags),
            [(int(oid), int(count)) for oid, count in self.relations[1:, :different].T],
            batch,
            offset=int(found.fields[last, OFFSET]),
            lsn=int(found.fields[last, LSN]) if self.has_lsn else None,
            read_to=int(found.fields[last, NEXT]),
            position=len(self.data) if is_all else int(found.fields[messages, OFFSET]),
            in_stream=not is_all and bool(found.fields[messages, IN_STREAM]),
            more=found.more and messages == most,
            origin=self._origin(int(at[ORIGIN]) - 1) if at[ORIGIN] > 0 else None,
        )

    def _origin(self, number: int) -> OriginField:
        [name], [lsn] = self._origins(np.array([number], np.int64))
        return name, lsn

    def _origins(self, numbers: Numbers) -> tuple[list[str], list[int | None]]:
        """Of messages that are Origins: names, and LSNs, negative where they are past a BIGINT."""
        fields, view = self.found.fields, self.data.data
        begins, ends = (fields[numbers, START] + 9).tolist(), (fields[numbers, END] - 1).tolist()
        names = [str(view[begin:end], "ascii") for begin, end in zip(begins, ends, strict=True)]
        return names, [stored_origin_lsn(lsn) for lsn in fields[numbers, COMMIT_LSN].tolist()]

    def _with_origins(self, batch: pa.RecordBatch, origin: Numbers, before: OriginField | None) -> pa.RecordBatch:
        """`origin`: of each row, as Place has it; `before`: the one that was known before."""
        if not origin.any():
            return batch
        numbers, which = np.unique(origin, return_inverse=True)
        told: list[tuple[str | None, int | None]] = []
        if numbers[0] == KNOWN_ORIGIN:
            told.append((None, None) if before is None else before)
        if NO_ORIGIN in numbers[:2]:
            told.append((None, None))
        names, lsns = self._origins(numbers[numbers > 0] - 1)
        of_row = pa.array(which.astype(np.int32))
        names = pa.array([*(name for name, _ in told), *names], pa.string()).take(of_row)
        lsns = pa.array([*(lsn for _, lsn in told), *lsns], pa.int64()).take(of_row)
        is_commit = pc.equal(batch.column("tag"), "C")
        lsns = pc.if_else(is_commit, lsns, pa.scalar(None, pa.int64()))
        for name, column in (("origin", names), ("origin_lsn", lsns)):
            at = batch.schema.get_field_index(name)
            batch = batch.set_column(at, MESSAGE_SCHEMA.field(name), column)
        return batch

    def _batch(
        self,
        found: MessageFields,
        rows: int,
        numbers: Numbers,
        fragments: NDArray[np.int32],
        tags: Bytes,
        extents: NDArray[np.int32],
        presences: Bytes,
        epoch: int,
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
            values = np.empty(int(ends[rows]) + PADDING, np.uint8)
            _gather(self.data, found.fields, begin, self.of_message, ends, rows, values)
            buffers = [nulls[1], pa.py_buffer(ends), pa.py_buffer(values)]
            return pa.Array.from_buffers(pa.binary(), rows, buffers, nulls[0])

        transaction = bits[HAS_TRANSACTION]
        positions = pa.nulls(rows, pa.list_(pa.int16()))
        if len(unchanged):
            buffers = [bits[HAS_UNCHANGED][1], pa.py_buffer(extents[UNCHANGED, : rows + 1])]
            values = _column(pa.int16(), unchanged)
            nulls = bits[HAS_UNCHANGED][0]
            positions = pa.Array.from_buffers(pa.list_(pa.int16()), rows, buffers, nulls, children=[values])
        columns = {
            "file": _column(pa.int64(), self.files[:rows]),
            "ordinal": number(ROW_ORDINAL),
            "offset": number(ROW_OFFSET),
            "begin": number(ROW_BEGIN),
            "end": number(ROW_END),
            "lsn": number(ROW_LSN) if self.has_lsn else pa.nulls(rows, pa.int64()),
            "tag": letters(0),
            "unit": _column(pa.int32(), fragments[:rows]),
            "stretch": _column(pa.int32(), np.full(rows, epoch, np.int32)),
            "xid": number(ROW_XID, bits[HAS_XID]),
            "relation": number(ROW_RELATION, bits[HAS_RELATION]),
            "old_kind": letters(1, bits[HAS_OLD]),
            "old": copied(OLD_TUPLE, OLD, bits[HAS_OLD]),
            "new": copied(NEW_TUPLE, NEW, bits[HAS_NEW]),
            "unchanged": positions,
            "body": copied(BODY, START, bits[HAS_BODY]),
            "commit_lsn": number(ROW_COMMIT_LSN, transaction),
            "commit_ts": number(ROW_COMMIT_TS, transaction),
            "top_xid": number(ROW_TOP_XID, transaction),
            "changes": number(ROW_CHANGES, bits[HAS_CHANGES]),
            "origin": pa.nulls(rows, pa.string()),
            "origin_lsn": pa.nulls(rows, pa.int64()),
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
def _gather(
    data: Bytes, fields: Numbers, field: int, of_message: Numbers, ends: NDArray[np.int32], rows: int, values: Bytes
) -> None:
    """Copies data[fields[of_message[r], field]:] to values[ends[r]:ends[r + 1]], for each row r; `values` has room for
    PADDING bytes more."""
    for r in range(rows):
        to, end = _U64(ends[_U64(r)]), _U64(ends[_U64(r + 1)])
        begin = _U64(fields[_U64(of_message[_U64(r)]), _U64(field)])
        copied(data, begin, begin + (end - to), values, to)
