"""Building blocks of binary values, as written by send functions: big-endian numbers, sized and NUL-terminated text."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.types.column import RefusedError

INT32 = struct.Struct(">i")

INT64 = struct.Struct(">q")

UINT8 = struct.Struct(">B")

UINT16 = struct.Struct(">H")

UINT32 = struct.Struct(">I")

UINT64 = struct.Struct(">Q")

FLOAT4 = struct.Struct(">f")

FLOAT8 = struct.Struct(">d")


def unpacked(form: struct.Struct, value: bytes, expected: str) -> tuple[Any, ...]:
    """The numbers that make up the whole value. Raises RefusedError if its length differs."""
    if len(value) != form.size:
        raise RefusedError(expected)
    return form.unpack(value)


def number(form: struct.Struct, value: bytes, expected: str) -> int:
    """The integer that is the whole value."""
    integer: int = unpacked(form, value, expected)[0]
    return integer


@dataclass(frozen=True, slots=True)
class IntegerText:
    """Prints an integer in binary form as decimal digits. size: in bytes."""

    expected: str
    size: int
    is_signed: bool = False

    def __call__(self, value: bytes) -> bytes:
        if len(value) != self.size:
            raise RefusedError(self.expected)
        return b"%d" % int.from_bytes(value, "big", signed=self.is_signed)


class ValueReader:
    """Reads a value of variable length. Raises RefusedError if the value is too short or too long."""

    __slots__ = ("_at", "_expected", "_value")

    def __init__(self, value: bytes, expected: str) -> None:
        self._value = value
        self._expected = expected
        self._at = 0

    def numbers(self, form: struct.Struct) -> tuple[Any, ...]:
        try:
            numbers = form.unpack_from(self._value, self._at)
        except struct.error:
            raise self.refusal() from None
        self._at += form.size
        return numbers

    def number(self, form: struct.Struct) -> int:
        integer: int = self.numbers(form)[0]
        return integer

    def uint8(self) -> int:
        return self.number(UINT8)

    def uint16(self) -> int:
        return self.number(UINT16)

    def int32(self) -> int:
        return self.number(INT32)

    def uint32(self) -> int:
        return self.number(UINT32)

    def count(self, min_size: int) -> int:
        """An int32 count of the items that follow, each at least `min_size` bytes."""
        count = self.int32()
        if count < 0 or count * min_size > self.left():
            raise self.refusal()
        return count

    def take(self, size: int) -> bytes:
        begin = self._at
        if size < 0 or size > self.left():
            raise self.refusal()
        self._at = begin + size
        return self._value[begin : self._at]

    def sized(self) -> bytes | None:
        """An int32 length followed by that many bytes; length -1 is NULL."""
        size = self.int32()
        return None if size == -1 else self.take(size)

    def required(self) -> bytes:
        return self.take(self.int32())

    def string(self) -> bytes:
        """The bytes before the NUL that pq_sendstring writes."""
        end = self._value.find(b"\0", self._at)
        if end < 0:
            raise self.refusal()
        text = self._value[self._at : end]
        self._at = end + 1
        return text

    def left(self) -> int:
        return len(self._value) - self._at

    def end(self) -> None:
        if self._at != len(self._value):
            raise self.refusal()

    def refusal(self) -> RefusedError:
        return RefusedError(self._expected)


def number_column(values: pa.Array, form: str, arrow: pa.DataType) -> pa.Array:
    """A column of big-endian numbers; NULL where a value's length differs.

    form: numpy's, such as "i4"; as wide as the Arrow type.
    """
    sent = np.dtype(f">{form}")
    has_width = pc.equal(pc.binary_length(values), sent.itemsize)
    filled = pc.if_else(pc.fill_null(has_width, False), values, bytes(sent.itemsize))
    _, data = filled.cast(pa.binary(sent.itemsize)).buffers()
    numbers = np.frombuffer(data, sent, len(values)).astype(form)
    column = pa.Array.from_buffers(arrow, len(values), [None, pa.py_buffer(numbers)])
    return pc.if_else(has_width, column, pa.scalar(None, arrow))
