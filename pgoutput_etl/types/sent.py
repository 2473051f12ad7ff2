"""Values in binary form that are made of other values, and the quotes that their texts have in common."""

from __future__ import annotations

from collections.abc import Callable

from pgoutput_etl.types.binary import INT32, UINT8, UINT16, UINT32, Reader


class SentValue(Reader):
    """Goes through a value whose parts have their lengths before them; RefusedError where these can't be so."""

    __slots__ = ()

    def uint8(self) -> int:
        return self.number(UINT8)

    def uint16(self) -> int:
        return self.number(UINT16)

    def int32(self) -> int:
        return self.number(INT32)

    def uint32(self) -> int:
        return self.number(UINT32)

    def count(self, least_size: int) -> int:
        """An int32 that says how many items follow, each of at least so many bytes."""
        count = self.int32()
        if count < 0 or count * least_size > self.left():
            raise self.refusal()
        return count

    def take(self, size: int) -> bytes:
        begin = self._at
        if size < 0 or size > self.left():
            raise self.refusal()
        self._at = begin + size
        return self._value[begin : self._at]

    def sized(self) -> bytes | None:
        """An int32 length and as many bytes; length -1 is NULL."""
        size = self.int32()
        return None if size == -1 else self.take(size)

    def required(self) -> bytes:
        return self.take(self.int32())


def quoted(text: bytes, must_quote: Callable[[bytes], object]) -> bytes:
    """As range_out and record_out do it: in double quotes where it must be, with quotes and backslashes doubled."""
    if not must_quote(text):
        return text
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'""') + b'"'
