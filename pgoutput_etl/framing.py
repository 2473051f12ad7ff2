"""Archived bytes cut into messages, with their offset and, where the framing has it, their LSN.

| framing | bytes | written by |
| --- | --- | --- |
| recvlogical | message, then a new line; again | pg_recvlogical |
| pgcopy | COPY BINARY with the columns (lsn pg_lsn, xid xid, data bytea) | psql |
| copydata | CopyData with XLogData or a keepalive, as on the wire | a receiver that stores what it receives |
| length_prefixed | Int32 length of the message, message; again | small home-made receivers |

Every refusal is a FramingError that names the offset in the decompressed file. No length is trusted before the file
has been seen to hold that many bytes.

Source: PostgreSQL documentation, "Streaming Replication Protocol" (XLogData, Primary keepalive message), "Message
Formats" (CopyData) and COPY's "Binary Format".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import PurePosixPath

import pyarrow as pa

from pgoutput_etl.decode import MESSAGE_TAGS, message_end
from pgoutput_etl.errors import FramingError, WireError


class Framing(Enum):
    """How messages stand in a file; AUTO finds out."""

    AUTO = "auto"
    RECVLOGICAL = "recvlogical"
    PGCOPY = "pgcopy"
    COPYDATA = "copydata"
    LENGTH_PREFIXED = "length_prefixed"


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: data[start:end]. Its frame begins at `offset`, and the next one at `next`.

    `lsn` is None where the framing has none. A keepalive and COPY's trailer are frames without a message.
    """

    offset: int
    lsn: int | None
    start: int
    end: int
    next: int

    @property
    def has_message(self) -> bool:
        return self.start < self.end


@dataclass(frozen=True, slots=True)
class Content:
    """A file's decompressed bytes; `cut_off`: what the compression says of its end, if that isn't there; `remark`: what
    is odd about its name."""

    data: bytes
    cut_off: str | None = None
    remark: str | None = None


_CODECS = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4", ".bz2": "bz2"}
# zstd and lz4 files may begin with a skippable frame; a name tells which. Begin may look like bzip2's first 4 bytes,
# but not like the number of a block or of the end behind them.
_SKIPPABLE = tuple(bytes((kind, 0x2A, 0x4D, 0x18)) for kind in range(0x50, 0x60))
_MAGIC = {
    "gzip": (b"\x1f\x8b",),
    "zstd": (b"\x28\xb5\x2f\xfd",),
    "lz4": (b"\x04\x22\x4d\x18",),
    "bz2": tuple(b"BZh%d" % level + number for level in range(1, 10) for number in (b"1AY&SY", b"\x17rE8P\x90")),
}
_TRUNCATED = "Truncated compressed stream"  # Arrow's words
_BUNZIP2_BYTES = 1 << 16  # what follows a member is copied: not the whole file for each
_SALVAGED_BYTES = 1 << 10  # at once, from a stream that is cut off
_DETECTED_FROM = 16  # leading messages

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_UINT64 = struct.Struct(">Q")

_STREAM_START = ord("S")
# Stream Stop ends a segment; these, if the receiver connected again inside one, and the server began anew.
_OUTSIDE_SEGMENTS = frozenset(b"EBbcAKrp")

_COPY_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_COPY_HEADER = len(_COPY_SIGNATURE) + 4 + 4
_COPY_HAS_OIDS = 1 << 16
_COPY_CRITICAL_FLAGS = 0xFFFF0000
_COPY_COLUMNS = 3
_COPY_ROW_HEAD = 2 + (4 + 8) + (4 + 4) + 4  # field count, lsn, xid, length of data

_COPYDATA, _XLOGDATA, _KEEPALIVE = b"dwk"
_XLOGDATA_HEAD = 1 + 8 + 8 + 8
_KEEPALIVE_SIZE = 1 + 8 + 8 + 1


def decompress(data: bytes, path: str) -> bytes:
    """A file's bytes, decompressed if they are compressed (gzip, zstd, lz4, bzip2), whatever its name says.

    Several compressed members or frames one after another are one file. Raises FramingError for a compressed file
    that is cut off or damaged.
    """
    content = read_content(data, path)
    if content.cut_off is not None:
        raise FramingError(content.cut_off, short=True)
    return content.data


def read_content(data: bytes, path: str) -> Content:
    """As decompress; of a compressed file that is cut off, what is there. Raises FramingError for a damaged one."""
    suffix = PurePosixPath(path).suffix.lower()
    named = _CODECS.get(suffix)
    codec = _codec(data, named)
    if codec is None:
        if named is not None and any(magic.startswith(data) for magic in _MAGIC[named]):
            return Content(b"", f"offset 0: expected {named} data, as {suffix} says, found {len(data)} bytes")
        return Content(data, None, None if named is None else f"{suffix} says {named}, but it is not compressed")
    remark = None if named == codec else f"it is {codec} data, which its name doesn't say"
    try:
        return Content(_bunzip2(data) if codec == "bz2" else _decompress_with_arrow(data, codec), None, remark)
    except (OSError, pa.ArrowException) as error:
        refusal = f"offset 0: expected {len(data)} bytes of {codec} data, found: {error}"
        if _TRUNCATED not in str(error):
            raise FramingError(refusal) from None
    return Content(_salvaged(data, codec), refusal, remark)


def _codec(data: bytes, named: str | None) -> str | None:
    for codec, magic in _MAGIC.items():
        if data.startswith(magic):
            return codec
    return named if named in ("zstd", "lz4") and data.startswith(_SKIPPABLE) else None


def _decompress_with_arrow(data: bytes, codec: str) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        content: bytes = stream.read()
    return content


def _salvaged(data: bytes, codec: str) -> bytes:
    """What can be had of a stream that is cut off."""
    parts = []
    with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
        try:
            while part := stream.read(_SALVAGED_BYTES):
                parts.append(part)
        except OSError:
            pass
    return b"".join(parts)


def _bunzip2(data: bytes) -> bytes:
    """Arrow's bz2 fails on an empty member before others; Python's bz2.decompress ignores bytes behind the last one."""
    import bz2  # not every build of Python has it

    parts = []
    member = bz2.BZ2Decompressor()
    for begin in range(0, len(data), _BUNZIP2_BYTES):
        rest = data[begin : begin + _BUNZIP2_BYTES]
        while rest:
            if member.eof:
                member = bz2.BZ2Decompressor()
            parts.append(member.decompress(rest))
            rest = member.unused_data
    if not member.eof:
        raise OSError(_TRUNCATED)
    return b"".join(parts)


def detect(data: bytes) -> Framing:
    """Which framing a decompressed file has, from its first messages. Raises FramingError if that can't be told; it is
    short if more of the file may tell it.

    A file whose first message is whole and a later one isn't has a framing: frames() then says what is wrong where.
    """
    if not data:
        return Framing.COPYDATA  # as good as any: there is nothing to cut
    if data.startswith(_COPY_SIGNATURE):
        return Framing.PGCOPY
    trials = [_try(data, f) for f in (Framing.RECVLOGICAL, Framing.PGCOPY, Framing.COPYDATA, Framing.LENGTH_PREFIXED)]
    fits = [t for t in trials if t.refusal is None] or [t for t in trials if t.messages]
    if len(fits) == 1:
        return fits[0].framing
    if fits:
        names = ", ".join(t.framing.value for t in fits)
        raise FramingError(f"offset 0: expected one framing that fits, found {names}; source.framing can say which")
    refusals = "; ".join(f"as {t.framing.value}, {t.refusal}" for t in trials)
    short = any(t.refusal.short and _may_begin(data, t.framing) for t in trials if t.refusal is not None)
    raise FramingError(f"offset 0: expected one of the known framings, found none that fits: {refusals}", short=short)


def _may_begin(data: bytes, framing: Framing) -> bool:
    """Whether less than a message is likely to become one: most bytes could begin a long one."""
    match framing:
        case Framing.RECVLOGICAL:
            return data[0] in MESSAGE_TAGS
        case Framing.PGCOPY:
            return data.startswith(_COPY_SIGNATURE[: len(data)])
        case Framing.COPYDATA:
            tag = data[5 + _XLOGDATA_HEAD : 6 + _XLOGDATA_HEAD]
            return data[5:6] in (b"", b"k") or (data[5] == _XLOGDATA and (not tag or tag[0] in MESSAGE_TAGS))
        case Framing.LENGTH_PREFIXED:
            return len(data) <= 4 or data[4] in MESSAGE_TAGS
        case Framing.AUTO:
            raise ValueError("detect() finds the framing")


def frames(data: bytes, framing: Framing, begins_in_stream: bool = False, start: int = 0) -> Iterator[Frame]:
    """The messages of a decompressed file from `start` on, in order; keepalives and COPY's trailer are left out.

    `begins_in_stream`: data[start] stands inside a stream segment. Only recvlogical looks at it: there a message's end
    is found by decoding it. Raises FramingError where a frame is cut off or can't be.
    """
    position = start if start or framing is not Framing.PGCOPY else _pgcopy_header(data)
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
        _whole(data, position, 2, "a row or the trailer")


def frame_at(data: bytes, framing: Framing, position: int, in_stream: bool) -> Frame:
    """The frame that begins at a position within the data, whole. Raises FramingError."""
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
    """Whether what follows a message stands inside a stream segment."""
    if tag == _STREAM_START:
        return True
    return in_stream and tag not in _OUTSIDE_SEGMENTS


@dataclass(frozen=True, slots=True)
class _Trial:
    """How far a file's beginning can be read in one framing."""

    framing: Framing
    messages: int
    refusal: FramingError | None

    @property
    def reach(self) -> tuple[bool, int, bool]:
        return self.refusal is None, self.messages, self.refusal is None or self.refusal.short


def _try(data: bytes, framing: Framing) -> _Trial:
    outside = _try_from(data, framing, begins_in_stream=False)
    if outside.refusal is None or framing is not Framing.RECVLOGICAL:
        return outside
    inside = _try_from(data, framing, begins_in_stream=True)
    return inside if inside.reach > outside.reach else outside


def _try_from(data: bytes, framing: Framing, begins_in_stream: bool) -> _Trial:
    messages = 0
    try:
        for frame in islice(frames(data, framing, begins_in_stream), _DETECTED_FROM):
            if data[frame.start] not in MESSAGE_TAGS:
                raise _refusal(frame.start, "a pgoutput message type", _byte(data, frame.start))
            messages += 1
    except FramingError as error:
        return _Trial(framing, messages, error)
    return _Trial(framing, messages, None)


def _recvlogical(data: bytes, position: int, in_stream: bool) -> Frame:
    try:
        end = message_end(data, position, in_stream)
    except WireError as error:
        raise FramingError(
            f"offset {position + error.offset}: expected {error.expected}, found {error.found}"
            f" ({error.message}.{error.field} of the message at offset {position})",
            error.short,
        ) from None
    if data[end : end + 1] != b"\n":
        raise _refusal(end, f"a new line behind the message at offset {position}", _byte(data, end), end == len(data))
    return Frame(position, None, position, end, end + 1)


def _pgcopy(data: bytes, position: int) -> Frame:
    _whole(data, position, 2, "a row or the trailer")
    fields = _INT16.unpack_from(data, position)[0]
    if fields == -1:
        if position + 2 != len(data):
            left = len(data) - position - 2
            raise _refusal(position + 2, "the end of the file behind COPY's trailer", f"{left} bytes more")
        return Frame(position, None, position + 2, position + 2, position + 2)
    if fields != _COPY_COLUMNS:
        raise _refusal(position, f"{_COPY_COLUMNS} fields (lsn, xid, data)", str(fields))
    _whole(data, position, _COPY_ROW_HEAD, "a row")
    for at, size, name in ((position + 2, 8, "lsn"), (position + 14, 4, "xid")):
        length = _INT32.unpack_from(data, at)[0]
        if length != size:
            raise _refusal(at, f"{size} as the length of {name}", "NULL" if length == -1 else str(length))
    start = position + _COPY_ROW_HEAD
    end = start + _length(data, start - 4, 1, "data")
    return Frame(position, _UINT64.unpack_from(data, position + 6)[0], start, end, end)


def _pgcopy_header(data: bytes) -> int:
    """Where the first row begins."""
    if not data.startswith(_COPY_SIGNATURE[: max(len(data), 1)]):
        raise _refusal(0, "COPY BINARY's signature", "other bytes")
    _whole(data, 0, _COPY_HEADER, "COPY BINARY's header")
    flags_at = len(_COPY_SIGNATURE)
    flags = _INT32.unpack_from(data, flags_at)[0] & 0xFFFFFFFF
    if flags & _COPY_HAS_OIDS:
        raise _refusal(flags_at, "rows without OIDs", "the flag for OIDs")
    if flags & _COPY_CRITICAL_FLAGS:
        raise _refusal(flags_at, "no critical flags", f"flags 0x{flags:08X}")
    return _COPY_HEADER + _length(data, flags_at + 4, 0, "the header extension")


def _copydata(data: bytes, position: int) -> Frame:
    if data[position] != _COPYDATA:
        raise _refusal(position, "'d' (CopyData)", _byte(data, position))
    _whole(data, position, 5, "CopyData")
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
    _whole(data, position, 4, "a message's length")
    start = position + 4
    end = start + _length(data, position, 1, "message")
    return Frame(position, None, start, end, end)


def _length(data: bytes, at: int, least: int, what: str, counted: int = 0) -> int:
    """How many bytes follow the Int32 at data[at], all of them there; `counted`: how many of its own it counts."""
    length: int = _INT32.unpack_from(data, at)[0]
    if length < least:
        raise _refusal(at, f"a length of {what} of {least} or more", str(length))
    _whole(data, at + 4, length - counted, what)
    return length - counted


def _whole(data: bytes, at: int, size: int, what: str) -> None:
    left = len(data) - at
    if size > left:
        raise _refusal(at, f"{size} bytes of {what}", f"{left} before the end of the file", True)


def _refusal(offset: int, expected: str, found: str, short: bool = False) -> FramingError:
    return FramingError(f"offset {offset}: expected {expected}, found {found}", short)


def _byte(data: bytes, at: int) -> str:
    return f"byte 0x{data[at]:02X}" if at < len(data) else "the end of the file"
