"""int2, int4, int8, and the unsigned oid and xid: an optional minus sign and ASCII digits, nothing else.

oid and xid become int64, because neither Delta nor Java has unsigned integers. The binary forms are big-endian.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa

from pgoutput_etl.types.binary import INT16, INT32, INT64, UINT32, number, number_column
from pgoutput_etl.types.column import (
    ColumnType,
    LoadedColumn,
    RefusedError,
    TypeTable,
    always,
    cast_plain,
    load_fast_then_careful,
)

_SIGNED = re.compile(rb"-?[0-9]+")

_UNSIGNED = re.compile(rb"[0-9]+")

_UNSIGNED_MAX = 2**32 - 1


def load_signed(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    return load_fast_then_careful(column_type, values, fast_signed, careful_signed)


def fast_signed(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    return cast_plain(texts, r"^-?[0-9]+$", arrow)


def careful_signed(text: bytes, arrow: pa.DataType) -> int:
    limit = 2 ** (arrow.bit_width - 1)
    return _integer_between(text, _SIGNED, -limit, limit - 1)


def load_unsigned(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    return load_fast_then_careful(column_type, values, fast_unsigned, careful_unsigned)


def fast_unsigned(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    return cast_plain(texts, r"^[0-9]+$", pa.uint32()).cast(arrow)


def careful_unsigned(text: bytes, _arrow: pa.DataType) -> int:
    return _integer_between(text, _UNSIGNED, 0, _UNSIGNED_MAX)


def _integer_between(text: bytes, form: re.Pattern[bytes], low: int, high: int) -> int:
    # every int8 fits in 20 characters; a longer text could exceed the limit of int()
    if len(text) <= 20 and form.fullmatch(text):
        value = int(text)
        if low <= value <= high:
            return value
    raise RefusedError(f"an integer from {low} to {high} in decimal digits")


def int2_text(value: bytes) -> bytes:
    return b"%d" % number(INT16, value, "an int2 of 2 bytes")


def int4_text(value: bytes) -> bytes:
    return b"%d" % number(INT32, value, "an int4 of 4 bytes")


def int8_text(value: bytes) -> bytes:
    return b"%d" % number(INT64, value, "an int8 of 8 bytes")


def unsigned_text(value: bytes) -> bytes:
    return b"%d" % number(UINT32, value, "an unsigned integer of 4 bytes")


def fast_binary_signed(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    return number_column(values, {16: "h", 32: "i", 64: "q"}[arrow.bit_width], arrow)


def fast_binary_unsigned(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    return number_column(values, "I", pa.uint32()).cast(arrow)


TYPES: TypeTable = {
    20: always(ColumnType("int8", pa.int64(), False, load_signed, int8_text, fast_binary_signed)),
    21: always(ColumnType("int2", pa.int16(), False, load_signed, int2_text, fast_binary_signed)),
    23: always(ColumnType("int4", pa.int32(), False, load_signed, int4_text, fast_binary_signed)),
    26: always(ColumnType("oid", pa.int64(), False, load_unsigned, unsigned_text, fast_binary_unsigned)),
    28: always(ColumnType("xid", pa.int64(), False, load_unsigned, unsigned_text, fast_binary_unsigned)),
}
