"""Erases changes from a landed file. Each one leaves an empty logical decoding Message in its place.

Every other message therefore keeps its bytes, its number within the file, its LSN, and its transaction. Only the
offsets after an erased change move; `Erased.moved` returns the new ones.

Source: PostgreSQL documentation, "Logical Replication Message Formats" (Message).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

from pgoutput_etl.errors import FramingError
from pgoutput_etl.identifiers import bytes_of
from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.framing import Frame, Framing, frame_at
from pgoutput_etl.protocol.messages import Delete, Insert, Message, PgoutputMessage, Update

# The prefix of the Message that replaces an erased change
ERASED_PREFIX = "pgoutput_etl.erased"

_LENGTH = struct.Struct(">i")

_LENGTH_OF_COPYDATA_AT = 1  # from its beginning; the length counts itself


@dataclass(frozen=True, slots=True)
class Erased:
    """A decompressed file without some changes. ends: where their frames ended, in order; shifts: by how many bytes the
    file is longer (or shorter, if negative) from there on."""

    data: bytes
    ends: tuple[int, ...] = ()
    shifts: tuple[int, ...] = ()

    def moved(self, offset: int) -> int:
        """The new offset of a byte. offset: not within an erased frame."""
        before = bisect_right(self.ends, offset)
        return offset + (self.shifts[before - 1] if before else 0)


def erase(data: bytes, framing: Framing, changes: Mapping[int, bool]) -> Erased:
    """data: a decompressed file. changes: offsets of the frames to erase; True if the frame is in a stream segment. For
    a Message, only the content is erased.

    Raises FramingError if there is no such message at an offset.
    """
    parts: list[bytes] = []
    ends: list[int] = []
    shifts: list[int] = []
    position = shift = 0
    for offset, in_stream in sorted(changes.items()):
        frame = frame_at(data, framing, offset, in_stream)
        content = data[frame.start : frame.end]
        rest = _encoded(_rest_of(decode(content, in_stream), frame))
        head = _head(data[frame.offset : frame.start], framing, len(rest))
        parts += (data[position : frame.offset], head, rest, data[frame.end : frame.next])
        position, shift = frame.next, shift + len(rest) - len(content)
        ends.append(position)
        shifts.append(shift)
    return Erased(b"".join([*parts, data[position:]]), tuple(ends), tuple(shifts))


def _rest_of(message: PgoutputMessage, frame: Frame) -> Message:
    match message:
        case Insert() | Update() | Delete():
            return Message(message.xid, True, frame.lsn or 0, ERASED_PREFIX, b"")
        case Message():
            return Message(message.xid, message.transactional, message.lsn, message.prefix, b"")
        case _:
            raise FramingError(f"offset {frame.offset}: expected a change to erase, found {type(message).__name__}")


def _encoded(message: Message) -> bytes:
    xid = b"" if message.xid is None else struct.pack(">I", message.xid)
    fixed = struct.pack(">BQ", message.transactional, message.lsn)
    prefix = bytes_of(message.prefix) + b"\0"
    return b"M" + xid + fixed + prefix + _LENGTH.pack(len(message.content)) + message.content


def _head(head: bytes, framing: Framing, size: int) -> bytes:
    """A frame's bytes before its message, for a message of another size."""
    match framing:
        case Framing.COPYDATA:
            at = _LENGTH_OF_COPYDATA_AT
            return head[:at] + _LENGTH.pack(len(head) - at + size) + head[at + _LENGTH.size :]
        case Framing.PGCOPY | Framing.LENGTH_PREFIXED:
            return head[: -_LENGTH.size] + _LENGTH.pack(size)
        case _:
            return head
