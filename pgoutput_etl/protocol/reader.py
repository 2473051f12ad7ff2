"""A bounded big-endian reader. A short read is an error, never a short value."""

from __future__ import annotations

import struct
from dataclasses import replace

from pgoutput_etl.errors import WireError

_INT32 = struct.Struct(">i")

_UINT16 = struct.Struct(">H")

_UINT32 = struct.Struct(">I")

_INT64 = struct.Struct(">q")

_UINT64 = struct.Struct(">Q")


# Bytes of a name: PostgreSQL has 63 of them (512 of an origin, 199 of a gid); a prefix knows no limit. Without one,
# a long value's bytes would be looked at from each of them anew, in search of what follows torn bytes.
MAX_STRING = 8192


class Reader:
    """Reads one message's fields from data[position:end], in order; `message` names it in errors.

    Errors count offsets from `start`, where the reader began.
    """

    __slots__ = ("data", "end", "message", "position", "start")

    def __init__(self, data: bytes, start: int = 0, end: int | None = None, message: str = "Message") -> None:
        self.data = data
        self.start = start
        self.position = start
        self.end = len(data) if end is None else end
        self.message = message

    def fail(self, field: str, expected: str, found: str, offset: int | None = None) -> WireError:
        """The error for a field at `offset` (by default the reader's position), for the caller to raise."""
        at = self.position if offset is None else offset
        return WireError(at - self.start, self.message, field, expected, found)

    def cut_short(self, field: str, expected: str, found: str) -> WireError:
        return replace(self.fail(field, expected, found), short=True)

    def take(self, size: int, field: str) -> int:
        """Moves past `size` bytes and returns where they began."""
        begin = self.position
        left = self.end - begin
        if size > left:
            raise self.cut_short(field, f"{size} bytes", f"{left} before the end of the message")
        self.position = begin + size
        return begin

    def uint8(self, field: str) -> int:
        return self.data[self.take(1, field)]

    def uint16(self, field: str) -> int:
        value: int = _UINT16.unpack_from(self.data, self.take(2, field))[0]
        return value

    def int32(self, field: str) -> int:
        value: int = _INT32.unpack_from(self.data, self.take(4, field))[0]
        return value

    def uint32(self, field: str) -> int:
        value: int = _UINT32.unpack_from(self.data, self.take(4, field))[0]
        return value

    def int64(self, field: str) -> int:
        value: int = _INT64.unpack_from(self.data, self.take(8, field))[0]
        return value

    def uint64(self, field: str) -> int:
        value: int = _UINT64.unpack_from(self.data, self.take(8, field))[0]
        return value

    def raw(self, size: int, field: str) -> bytes:
        begin = self.take(size, field)
        return self.data[begin : begin + size]

    def length(self, field: str) -> int:
        """An Int32 that counts bytes to follow."""
        begin = self.position
        size = self.int32(field)
        if size < 0:
            raise self.fail(field, "a length of 0 or more", str(size), begin)
        return size

    def string(self, field: str) -> str:
        """A String of the protocol: UTF-8 up to and without a NUL byte."""
        begin = self.position
        end = min(self.end, begin + MAX_STRING)
        nul = self.data.find(b"\0", begin, end)
        if nul < 0 and end < self.end:
            raise self.fail(field, f"a NUL byte that ends the string within {MAX_STRING:,}", "none")
        if nul < 0:
            raise self.cut_short(field, "a NUL byte that ends the string", "the end of the message")
        self.position = nul + 1
        return self.text(begin, nul, field)

    def text(self, begin: int, end: int, field: str) -> str:
        try:
            return self.data[begin:end].decode()
        except UnicodeDecodeError as error:
            raise self.fail(field, "UTF-8 text", "another byte sequence", begin + error.start) from None

    def done(self) -> None:
        """Asserts that the message has been read to its last byte."""
        if self.position != self.end:
            raise self.fail("end", "the end of the message", f"{self.end - self.position} bytes left over")
