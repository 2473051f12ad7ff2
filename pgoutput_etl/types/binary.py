"""What send functions build values of: big-endian numbers, strings with a NUL behind them, and columns of numbers."""

from __future__ import annotations

import struct
import sys
from array import array
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.types.column import RefusedError

INT16 = struct.Struct(">h")

INT32 = struct.Struct(">i")

INT64 = struct.Struct(">q")

UINT8 = struct.Struct(">B")

UINT16 = struct.Struct(">H")

UINT32 = struct.Struct(">I")

UINT64 = struct.Struct(">Q")

FLOAT4 = struct.Struct(">f")

FLOAT8 = struct.Struct(">d")


def unpacked(form: struct.Struct, value: bytes, expected: str) -> tuple[Any, ...]:
    """The numbers that the whole value is made of; RefusedError if it has another length."""
    if len(value) != form.size:
        raise RefusedError(expected)
    return form.unpack(value)


def number(form: struct.Struct, value: bytes, expected: str) -> int:
    """The one integer that is the whole value."""
    found: int = unpacked(form, value, expected)[0]
    return found


class ValueReader:
    """Goes through a value of no fixed length; RefusedError where it ends too early or too late."""

    __slots__ = ("_at", "_expected", "_value")

    def __init__(self, value: bytes, expected: str) -> None:
        self._value = value
        self._expected = expected
        self._at = 0

    def numbers(self, form: struct.Struct) -> tuple[Any, ...]:
        try:
            found = form.unpack_from(self._value, self._at)
        except struct.error:
            raise self.refusal() from None
        self._at += form.size
        return found

    def number(self, form: struct.Struct) -> int:
        found: int = self.numbers(form)[0]
        return found

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

    def string(self) -> bytes:
        """Up to the NUL that pq_sendstring writes behind it."""
        end = self._value.find(b"\0", self._at)
        if end < 0:
            raise self.refusal()
        found = self._value[self._at : end]
        self._at = end + 1
        return found

    def left(self) -> int:
        return len(self._value) - self._at

    def end(self) -> None:
        if self._at != len(self._value):
            raise self.refusal()

    def refusal(self) -> RefusedError:
        return RefusedError(self._expected)


def number_column(sent: pa.Array, typecode: str, arrow: pa.DataType) -> pa.Array:
    """A column of big-endian numbers; NULL where a value has another length.

    ``typecode`` is that of an array.array whose items are as wide as the Arrow type's.
    """
    numbers = array(typecode)
    of_this_width = pc.equal(pc.binary_length(sent), numbers.itemsize)
    filled = pc.if_else(pc.fill_null(of_this_width, False), sent, bytes(numbers.itemsize))
    numbers.frombytes(_data(filled, numbers.itemsize))
    if sys.byteorder == "little":
        numbers.byteswap()
    found = pa.Array.from_buffers(arrow, len(sent), [None, pa.py_buffer(numbers)])
    return pc.if_else(of_this_width, found, pa.scalar(None, arrow))


def _data(values: pa.Array, width: int) -> bytes | memoryview:
    """All values of this width, one after the other."""
    if len(values) == 0:
        return b""
    _, offsets, data = values.buffers()
    first = memoryview(offsets).cast("i")[values.offset]
    return memoryview(data)[first : first + width * len(values)]
