"""A cursor over a value in the binary form of a type that is made of other values: all lengths are checked."""

from __future__ import annotations

import struct
from collections.abc import Callable

from pgoutput_etl.types.column import RefusedError

_UINT8 = struct.Struct(">B")
_UINT16 = struct.Struct(">H")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")


class SentValue:
    """Reads big-endian fields in order. RefusedError(expected) for every value that is cut, or has bytes left over."""

    __slots__ = ("_bytes", "_expected", "_position")

    def __init__(self, value: bytes, expected: str) -> None:
        self._bytes = value
        self._expected = expected
        self._position = 0

    def refused(self) -> RefusedError:
        return RefusedError(self._expected)

    def uint8(self) -> int:
        return self._number(_UINT8)

    def uint16(self) -> int:
        return self._number(_UINT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def uint32(self) -> int:
        return self._number(_UINT32)

    def count(self, least_size: int) -> int:
        """An int32 that says how many items follow, each of at least so many bytes."""
        count = self.int32()
        if count < 0 or count * least_size > len(self._bytes) - self._position:
            raise self.refused()
        return count

    def take(self, size: int) -> bytes:
        begin = self._position
        if size < 0 or size > len(self._bytes) - begin:
            raise self.refused()
        self._position = begin + size
        return self._bytes[begin : self._position]

    def sized(self) -> bytes | None:
        """An int32 length and as many bytes; length -1 is NULL."""
        size = self.int32()
        return None if size == -1 else self.take(size)

    def required(self) -> bytes:
        return self.take(self.int32())

    def end(self) -> None:
        if self._position != len(self._bytes):
            raise self.refused()

    def _number(self, form: struct.Struct) -> int:
        number: int = form.unpack(self.take(form.size))[0]
        return number


def quoted(text: bytes, must_quote: Callable[[bytes], object]) -> bytes:
    """As range_out and record_out do it: in double quotes where it must be, with quotes and backslashes doubled."""
    if not must_quote(text):
        return text
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'""') + b'"'
