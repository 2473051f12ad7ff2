"""Splits archived bytes into messages, with their offsets and, if the framing has them, their LSNs.

| framing | bytes | written by |
| --- | --- | --- |
| recvlogical | messages, each followed by a newline | pg_recvlogical |
| pgcopy | COPY BINARY with the columns (lsn pg_lsn, xid xid, data bytea) | psql |
| copydata | CopyData with XLogData or a keepalive, as on the wire | a receiver that stores the bytes it receives |
| length_prefixed | messages, each after its length as an Int32 | small custom receivers |

Every FramingError names an offset in the decompressed file. No length is used before the file is known to have that
many bytes.

Source: PostgreSQL documentation, "Streaming Replication Protocol" (XLogData, Primary keepalive message), "Message
Formats" (CopyData), and COPY's "Binary Format".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from pgoutput_etl.errors import FramingError, WireError
from pgoutput_etl.protocol.decoder import MESSAGE_TAGS, message_end


class Framing(Enum):
    """How a file separates messages. AUTO: detect it."""

    AUTO = "auto"
    RECVLOGICAL = "recvlogical"
    PGCOPY = "pgcopy"
    COPYDATA = "copydata"
    LENGTH_PREFIXED = "length_prefixed"


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: data[start:end]. Its frame is data[offset:next].

    lsn: None if the framing has none. Keepalives and COPY's trailer are frames without a message.
    """

    offset: int
    lsn: int | None
    start: int
    end: int
    next: int

    @property
    def has_message(self) -> bool:
        return self.start < self.end


DETECTED_FROM = 16  # frames at the beginning of a file

FRAMINGS = (Framing.RECVLOGICAL, Framing.PGCOPY, Framing.COPYDATA, Framing.LENGTH_PREFIXED)

_MAX_MESSAGE_SIZE = 1 << 30  # PostgreSQL doesn't build larger messages


_INT16 = struct.Struct(">h")

_INT32 = struct.Struct(">i")

_UINT64 = struct.Struct(">Q")


_STREAM_START = ord("S")

_STREAM_ABORT = ord("A")

_STREAM_ABORT_SIZES = (9, 25)  # the longer one has LSN and time: protocol version 4, if requested

# Messages that end a segment: Stream Stop, and those that begin or end a transaction after the receiver reconnected.
_OUTSIDE_SEGMENTS = frozenset(b"EBbcAKrpP")


COPY_SIGNATURE = b"PGCOPY\n\xff\r\n\0"

_COPY_HEADER = len(COPY_SIGNATURE) + 4 + 4

_COPY_HAS_OIDS = 1 << 16

_COPY_CRITICAL_FLAGS = 0xFFFF0000

_COPY_COLUMNS = 3

_COPY_ROW_HEAD = 2 + (4 + 8) + (4 + 4) + 4  # field count, lsn, xid, length of data

_ANY_LSN, _ANY_XID = (None,) * 8, (None,) * 4

_COPY_ROW = (*b"\0\3", *b"\0\0\0\x08", *_ANY_LSN, *b"\0\0\0\x04", *_ANY_XID)


_COPYDATA, _XLOGDATA, _KEEPALIVE = b"dwk"

_XLOGDATA_HEAD = 1 + 8 + 8 + 8

_KEEPALIVE_SIZE = 1 + 8 + 8 + 1


def detect(data: bytes, fits: Framing | None = None) -> Framing:
    """Detects the framing of a decompressed file from its first DETECTED_FROM messages. fits: a framing that is known
    to fit.

    Raises FramingError if no framing or more than one fits; its `short` is true if further bytes may decide. A framing
    fits if the first message is whole; frames() reports later messages that are not.
    """
    if not data:
        return Framing.COPYDATA  # any framing fits an empty file
    if data.startswith(COPY_SIGNATURE):
        return Framing.PGCOPY
    trials = [_Trial(framing, 1, None) if framing is fits else _try(data, framing) for framing in FRAMINGS]
    fitting = [t for t in trials if t.refusal is None] or [t for t in trials if t.read]
    if len(fitting) == 1:
        return fitting[0].framing
    if fitting:
        names = ", ".join(t.framing.value for t in fitting)
        raise FramingError(f"offset 0: expected one framing that fits, found {names}; set source.framing")
    if first_framing(data) is not None:
        raise FramingError(
            "offset 0: expected one of the known framings, found less than a message: fetch the whole file", short=True
        )
    raise FramingError(
        "offset 0: expected one of the known framings, found none that fits: this is no archive of pgoutput, or its "
        "beginning is missing. Move the file out of the landing folder"
    )


def may_become_frame(data: bytes, framing: Framing, begins_file: bool = True) -> bool:
    """True if the bytes, less than a frame, can be the first part of one that a receiver is still writing. If in doubt,
    returns True: further bytes will decide.

    begins_file: the bytes are at offset 0, where PGCOPY has its header.
    """
    if not data:
        return True
    match framing:
        case Framing.RECVLOGICAL:
            return _may_become_message(data, 0, None)
        case Framing.PGCOPY:
            return _may_become_pgcopy(data, begins_file)
        case Framing.COPYDATA:
            return _may_become_copydata(data)
        case Framing.LENGTH_PREFIXED:
            size = _claimed(data, 0, 1)
            return size is not None and _may_become_message(data, 4, size)
        case Framing.AUTO:
            raise ValueError("detect() finds the framing")


def first_framing(data: bytes) -> Framing | None:
    """The first framing in which a file's bytes may become a frame."""
    return next((framing for framing in FRAMINGS if may_become_frame(data, framing)), None)


def _may_become_pgcopy(data: bytes, begins_file: bool) -> bool:
    if begins_file:
        try:
            data = data[pgcopy_header(data) :]
        except FramingError as error:
            return error.short
    if data[:1] == b"\xff":
        return len(data) == 1  # with its second byte, COPY's trailer is complete
    if any(expected is not None and byte != expected for byte, expected in zip(data, _COPY_ROW, strict=False)):
        return False
    size = _claimed(data, _COPY_ROW_HEAD - 4, 1)
    return size is not None and _may_become_message(data, _COPY_ROW_HEAD, size)


def _may_become_copydata(data: bytes) -> bool:
    length = _claimed(data, 1, 5)
    if data[:1] not in (b"", b"d") or length is None:
        return False
    kind, size = data[5:6], length - 4
    if kind in (b"", b"k") and size == _KEEPALIVE_SIZE:
        return len(data) < 5 + size
    is_message = kind in (b"", b"w") and size > _XLOGDATA_HEAD
    return is_message and _may_become_message(data, 5 + _XLOGDATA_HEAD, size - _XLOGDATA_HEAD)


def _claimed(data: bytes, at: int, least: int) -> int | None:
    """The Int32 at data[at] or, if bytes of it are missing, the largest that it can become. None if no message has such
    a length."""
    known = data[at : at + 4]
    low, high = (int.from_bytes(known.ljust(4, fill), "big") for fill in (b"\0", b"\xff"))
    return high if low <= _MAX_MESSAGE_SIZE and high >= least else None


def _may_become_message(data: bytes, start: int, size: int | None) -> bool:
    """size: the message's length; None if the framing has no lengths, but a newline after each message."""
    if size is not None and len(data) >= start + size:
        return False
    if len(data) <= start:
        return True
    if size is not None and data[start] == _STREAM_ABORT:
        return size in _STREAM_ABORT_SIZES
    for in_stream in (False, True):
        try:
            if message_end(data, start, in_stream) == len(data) and size is None:
                return True
        except WireError as error:
            if error.short:
                return True
    return False


def frames(data: bytes, framing: Framing, begins_in_stream: bool = False, start: int = 0) -> Iterator[Frame]:
    """The messages of a decompressed file from `start` on, in order, without keepalives and COPY's trailer.

    begins_in_stream: data[start] is inside a stream segment. Only recvlogical needs this, because it finds the end of a
    message by decoding it. Raises FramingError for a frame that is incomplete or invalid.
    """
    position = start if start or framing is not Framing.PGCOPY else pgcopy_header(data)
    in_stream, ended = begins_in_stream, framing is not Framing.PGCOPY
    while position < len(data):
        frame = frame_at(data, framing, position, in_stream)
        if frame.has_message:
            yield frame
            in_stream = stands_in_stream(data[frame.start], in_stream)
        elif framing is Framing.PGCOPY:
            ended = True
        position = frame.next
    if not ended:
        _require(data, position, 2, "a row or the trailer")


def frame_at(data: bytes, framing: Framing, position: int, in_stream: bool) -> Frame:
    """The complete frame that begins at data[position]. Raises FramingError."""
    match framing:
        case Framing.RECVLOGICAL:
            return _recvlogical(data, position, in_stream)
        case Framing.PGCOPY:
            return _pgcopy(data, position)
        case Framing.COPYDATA:
            return _copydata(data, position)
        case Framing.LENGTH_PREFIXED:
            return _length_prefixed(data, position)
        case Framing.AUTO:
            raise ValueError("detect() finds the framing first")


def stands_in_stream(tag: int, in_stream: bool) -> bool:
    """True if the message after one with this tag is inside a stream segment."""
    return tag == _STREAM_START or (in_stream and tag not in _OUTSIDE_SEGMENTS)


@dataclass(frozen=True, slots=True)
class _Trial:
    """The result of reading a file's beginning in one framing."""

    framing: Framing
    read: int  # messages and keepalives
    refusal: FramingError | None

    @property
    def progress(self) -> tuple[bool, int, bool]:
        return self.refusal is None, self.read, self.refusal is None or self.refusal.short


def _try(data: bytes, framing: Framing) -> _Trial:
    outside = _try_from(data, framing, begins_in_stream=False)
    if outside.refusal is None or framing is not Framing.RECVLOGICAL:
        return outside
    inside = _try_from(data, framing, begins_in_stream=True)
    return inside if inside.progress > outside.progress else outside


def _try_from(data: bytes, framing: Framing, begins_in_stream: bool) -> _Trial:
    read, in_stream = 0, begins_in_stream
    refusal = None
    try:
        position = pgcopy_header(data) if framing is Framing.PGCOPY else 0
        while position < len(data) and read < DETECTED_FROM:
            frame = frame_at(data, framing, position, in_stream)
            if frame.has_message:
                if data[frame.start] not in MESSAGE_TAGS:
                    raise _refusal(frame.start, "a pgoutput message type", _byte(data, frame.start))
                in_stream = stands_in_stream(data[frame.start], in_stream)
            read += 1
            position = frame.next
    except FramingError as error:
        refusal = error
    return _Trial(framing, read, refusal)


def _recvlogical(data: bytes, position: int, in_stream: bool) -> Frame:
    try:
        end = message_end(data, position, in_stream)
    except WireError as error:
        raise FramingError(
            f"offset {position + error.offset}: expected {error.expected}, found {error.found}"
            f" ({error.message}.{error.field})",
            error.short,
            error.scanned_to,
        ) from None
    if data[end : end + 1] != b"\n":
        refusal = _refusal(end, "a newline after the message", _byte(data, end), end == len(data))
        refusal.scanned_to = end
        raise refusal
    return Frame(position, None, position, end, end + 1)


def _pgcopy(data: bytes, position: int) -> Frame:
    _require(data, position, 2, "a row or the trailer")
    fields = _INT16.unpack_from(data, position)[0]
    if fields == -1:
        if left := len(data) - position - 2:
            raise _refusal(position + 2, "the end of the file after COPY's trailer", f"{left} bytes more")
        return Frame(position, None, position + 2, position + 2, position + 2)
    if fields != _COPY_COLUMNS:
        raise _refusal(position, f"{_COPY_COLUMNS} fields (lsn, xid, data)", str(fields))
    _require(data, position, _COPY_ROW_HEAD, "a row")
    for at, size, name in ((position + 2, 8, "lsn"), (position + 14, 4, "xid")):
        length = _INT32.unpack_from(data, at)[0]
        if length != size:
            raise _refusal(at, f"{size} as the length of {name}", "NULL" if length == -1 else str(length))
    start = position + _COPY_ROW_HEAD
    end = start + _length(data, start - 4, 1, "data")
    return Frame(position, _UINT64.unpack_from(data, position + 6)[0], start, end, end)


def pgcopy_header(data: bytes) -> int:
    """The offset of the first row."""
    if not data.startswith(COPY_SIGNATURE[: max(len(data), 1)]):
        raise _refusal(0, "COPY BINARY's signature", "other bytes")
    _require(data, 0, _COPY_HEADER, "COPY BINARY's header")
    flags_at = len(COPY_SIGNATURE)
    flags = _INT32.unpack_from(data, flags_at)[0] & 0xFFFFFFFF
    if flags & _COPY_HAS_OIDS:
        raise _refusal(flags_at, "rows without OIDs", "the flag for OIDs")
    if flags & _COPY_CRITICAL_FLAGS:
        raise _refusal(flags_at, "no critical flags", f"flags 0x{flags:08X}")
    return _COPY_HEADER + _length(data, flags_at + 4, 0, "the header extension")


def _copydata(data: bytes, position: int) -> Frame:
    if data[position] != _COPYDATA:
        raise _refusal(position, "'d' (CopyData)", _byte(data, position))
    _require(data, position, 5, "CopyData")
    body = position + 5
    end = body + _length(data, position + 1, 5, "CopyData", counted=4)
    kind = data[body]
    if kind == _XLOGDATA:
        start = body + _XLOGDATA_HEAD
        if end <= start:
            raise _refusal(body, f"more than {_XLOGDATA_HEAD} bytes of XLogData", str(end - body))
        return Frame(position, _UINT64.unpack_from(data, body + 1)[0], start, end, end)
    if kind != _KEEPALIVE:
        raise _refusal(body, "'w' (XLogData) or 'k' (keepalive) from the server", _byte(data, body))
    if end - body != _KEEPALIVE_SIZE:
        raise _refusal(body, f"{_KEEPALIVE_SIZE} bytes of keepalive", str(end - body))
    return Frame(position, None, end, end, end)


def _length_prefixed(data: bytes, position: int) -> Frame:
    _require(data, position, 4, "a message's length")
    start = position + 4
    end = start + _length(data, position, 1, "message")
    return Frame(position, None, start, end, end)


def _length(data: bytes, at: int, least: int, name: str, counted: int = 0) -> int:
    """The Int32 at data[at], reduced by its own bytes if it counts them (`counted`). That many bytes must follow."""
    length: int = _INT32.unpack_from(data, at)[0]
    if length < least:
        raise _refusal(at, f"a length of {name} of {least} or more", str(length))
    _require(data, at + 4, length - counted, name)
    return length - counted


def _require(data: bytes, at: int, size: int, name: str) -> None:
    left = len(data) - at
    if size > left:
        raise _refusal(at, f"{size} bytes of {name}", f"{left} before the end of the file", True)


def _refusal(offset: int, expected: str, found: str, short: bool = False) -> FramingError:
    return FramingError(f"offset {offset}: expected {expected}, found {found}", short)


def _byte(data: bytes, at: int) -> str:
    return f"byte 0x{data[at]:02X}" if at < len(data) else "the end of the file"
