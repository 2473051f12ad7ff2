"""Reads many messages at a time and appends their rows to arrays, without a Python object per message."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.scan.fast import fragments as loop
from pgoutput_etl.scan.fast import messages as finder
from pgoutput_etl.scan.fast.fragments import ScanCursor
from pgoutput_etl.scan.fast.messages import MessageFields, Numbers
from pgoutput_etl.scan.fast.row_arrays import RowArrays
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.scan.request import stored_origin_lsn

_FEWEST_MESSAGES = 8  # fewer are faster to read one by one

# The number of messages to find at a time. Messages that are found but not read have to be found again.
_FIRST_LIMIT = 512
_GROWTH = 16

OriginField = tuple[str, int | None]  # the origin's name, and the commit's LSN there


@dataclass(frozen=True, slots=True)
class Scratch:
    """Arrays that every reading of messages overwrites. Files that are read one after another share them, because their
    allocation takes longer than reading a small file."""

    fields: MessageFields = field(default_factory=MessageFields)
    tags: Numbers = field(default_factory=lambda: np.zeros((2, 256), np.int64))
    relations: Numbers = field(default_factory=lambda: np.zeros((3, loop.SLOTS), np.int64))
    row_messages: Numbers = field(default_factory=lambda: np.empty(finder.MOST_MESSAGES, np.int64))


@dataclass(frozen=True, slots=True)
class FastRows:
    """What a reading of `messages` messages found, and the scan's state after the last one. rows: the number of rows in
    the arrays, with those before.

    tags, relations: counts, in order of first occurrence. offset, lsn, read_to: of the last message's frame. position,
    in_stream: of the first message not read, or the end. more: the fast path may also be able to read that message.
    origin: from an Origin among the messages, for the fragment that is open after them.
    """

    messages: int
    rows: int
    cursor: ScanCursor
    tags: list[tuple[str, int]]
    relations: list[tuple[int, int]]
    offset: int
    lsn: int | None
    read_to: int
    position: int
    in_stream: bool
    more: bool
    origin: OriginField | None = None


class FastScanner:
    """Reads a file's messages many at a time."""

    def __init__(self, data: bytes, framing: Framing, file: int, scratch: Scratch, limit: int = _FIRST_LIMIT) -> None:
        self.data = np.frombuffer(data, np.uint8)
        self.framing, self.file, self.scratch = framing, file, scratch
        self.has_lsn = framing in (Framing.COPYDATA, Framing.PGCOPY)
        self.fields = scratch.fields
        self.limit = limit

    def find(self, position: int, in_stream: bool) -> bool:
        """Finds messages from a frame on. False if there are too few to be worth reading here."""
        finder.find(self.data, self.framing, position, in_stream, self.limit, self.fields)
        return self.fields.messages >= (2 if self.fields.more else _FEWEST_MESSAGES)

    def bodies(self) -> Iterator[bytes]:
        """The messages found, in order."""
        for message in self.fields.values[: self.fields.messages]:
            yield self.data[message[finder.START] : message[finder.END]].tobytes()

    @property
    def readable(self) -> int:
        """The number of messages found, except the last one, unless it ends the file: only another message after it
        proves that a message is whole."""
        return self.fields.messages if self.fields.to_the_end else self.fields.messages - 1

    def read(self, cursor: ScanCursor, arrays: RowArrays) -> FastRows:
        """Reads the readable messages. Writes their rows after the arrays' own, to which `append` adds them."""
        fields, scratch, limit = self.fields, self.scratch, self.readable
        cursor_numbers = np.array(cursor, np.int64)
        scratch.tags.fill(0)
        messages, rows, relations = loop.follow(
            fields.values,
            limit,
            cursor_numbers,
            scratch.tags,
            scratch.relations,
            scratch.row_messages,
            arrays.rows,
            *arrays.outputs(),
        )
        self.limit = self.limit * _GROWTH if messages == limit else _FIRST_LIMIT
        last = max(messages - 1, 0)
        is_all = messages == fields.messages
        return FastRows(
            messages,
            rows,
            ScanCursor(*cursor_numbers.tolist()),
            _counted_tags(scratch.tags),
            [(int(oid), int(count)) for oid, count in scratch.relations[1:, :relations].T],
            offset=int(fields.values[last, finder.OFFSET]),
            lsn=int(fields.values[last, finder.LSN]) if self.has_lsn else None,
            read_to=int(fields.values[last, finder.NEXT]),
            position=len(self.data) if is_all else int(fields.values[messages, finder.OFFSET]),
            in_stream=not is_all and bool(fields.values[messages, finder.IN_STREAM]),
            more=fields.more and messages == limit,
            origin=self._origin(int(cursor_numbers[loop.ORIGIN]) - 1) if cursor_numbers[loop.ORIGIN] > 0 else None,
        )

    def append(self, arrays: RowArrays, read: FastRows) -> None:
        arrays.append(self.data, self.fields, self.scratch.row_messages, read.rows, self.file)

    def with_origins(self, batch: pa.RecordBatch, row_origins: Numbers, known: OriginField | None) -> pa.RecordBatch:
        """The rows with their origins. row_origins: each row's, as in ScanCursor.origin. known: the origin for which
        KNOWN_ORIGIN stands."""
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

    def _origin(self, message: int) -> OriginField:
        [name], [lsn] = self._origins(np.array([message], np.int64))
        return name, lsn

    def _origins(self, messages: Numbers) -> tuple[list[str], list[int | None]]:
        """The names and LSNs of Origin messages, given by index."""
        values, view = self.fields.values, self.data.data
        begins, ends = (values[messages, finder.START] + 9).tolist(), (values[messages, finder.END] - 1).tolist()
        names = [str(view[begin:end], "ascii") for begin, end in zip(begins, ends, strict=True)]
        return names, [stored_origin_lsn(lsn) for lsn in values[messages, finder.COMMIT_LSN].tolist()]


def _counted_tags(counts: Numbers) -> list[tuple[str, int]]:
    """counts: by tag, the count and the index of its first message."""
    present = np.flatnonzero(counts[0])
    return [(chr(tag), int(counts[0, tag])) for tag in present[np.argsort(counts[1, present])]]
