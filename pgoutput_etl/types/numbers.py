"""bool, the integers, and the floats: fixed-width types that Arrow also has.

bool is printed as ``t`` or ``f`` and sent as 1 or 0. int2, int4, int8, and the unsigned oid and xid are printed as an
optional minus sign and ASCII digits, nothing else. oid and xid become int64, because neither Delta nor Java has
unsigned integers. The binary forms are big-endian.

float4 and float8 are exact to the bit: -0, NaN, infinities, denormals, and shortest decimals. Arrow parses text
directly to the target type, correctly rounded. Parsing a float4 as a double would round twice and miss some decimals by
one unit, so neither Python's float() nor numpy.float32() is used here.
"""

from __future__ import annotations

import math
import re

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.types.binary import FLOAT4, FLOAT8, IntegerText, number_column, unpacked
from pgoutput_etl.types.column import ColumnType, RefusedError, TwoPathLoader, TypeTable, always, cast_plain
from pgoutput_etl.types.shortest_float import shortest_float4, shortest_float8

_SIGNED = re.compile(rb"-?[0-9]+")

_UNSIGNED = re.compile(rb"[0-9]+")

_UNSIGNED_MAX = 2**32 - 1

_FLOAT = r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]+)?|NaN|-?Infinity"

_FLOAT_BYTES = re.compile(_FLOAT.encode())

_INFINITIES = pa.array([b"Infinity", b"-Infinity"], pa.binary())


def fast_bool(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    return _one_of(texts, b"t", b"f", arrow)


def careful_bool(_text: bytes, _arrow: pa.DataType) -> bool:
    raise RefusedError("t or f")


def bool_text(value: bytes) -> bytes:
    if value not in (b"\0", b"\1"):
        raise RefusedError("a byte of 0 or 1")
    return b"t" if value == b"\1" else b"f"


def fast_binary_bool(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    return _one_of(values, b"\1", b"\0", arrow)


def _one_of(values: pa.Array, true: bytes, false: bytes, arrow: pa.DataType) -> pa.Array:
    false_or_null = pc.if_else(pc.equal(values, false), False, pa.scalar(None, arrow))
    return pc.if_else(pc.equal(values, true), True, false_or_null)


def fast_signed(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    return cast_plain(texts, r"^-?[0-9]+$", arrow)


def careful_signed(text: bytes, arrow: pa.DataType) -> int:
    limit = 2 ** (arrow.bit_width - 1)
    return _integer_between(text, _SIGNED, -limit, limit - 1)


def fast_unsigned(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    return cast_plain(texts, r"^[0-9]+$", pa.uint32()).cast(arrow)


def careful_unsigned(text: bytes, _arrow: pa.DataType) -> int:
    return _integer_between(text, _UNSIGNED, 0, _UNSIGNED_MAX)


def _integer_between(text: bytes, form: re.Pattern[bytes], low: int, high: int) -> int:
    digits = text.lstrip(b"-").lstrip(b"0") or b"0"
    # every int8 fits into 20 digits; more could exceed the limit of int()
    if len(digits) <= 20 and form.fullmatch(text):
        value = -int(digits) if text.startswith(b"-") else int(digits)
        if low <= value <= high:
            return value
    raise RefusedError(f"an integer from {low} to {high} in decimal digits")


def fast_binary_signed(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    return number_column(values, f"i{arrow.bit_width // 8}", arrow)


def fast_binary_unsigned(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    return number_column(values, "u4", pa.uint32()).cast(arrow)


def fast_float(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    array = cast_plain(texts, f"^(?:{_FLOAT})$", arrow)
    # the cast turns numbers that are too large or too small for the type into infinity or zero
    overflowed = pc.and_not(pc.is_inf(array), pc.is_in(texts, _INFINITIES))
    vanished = pc.and_(pc.equal(array, pa.scalar(0, arrow)), pc.match_substring_regex(texts, "^[^e]*[1-9]"))
    return pc.if_else(pc.or_(overflowed, vanished), pa.scalar(None, arrow), array)


def careful_float(text: bytes, _arrow: pa.DataType) -> None:
    """Returns None: PostgreSQL 11 and older print 15 digits, so the largest float8 is printed as a number that is too
    large."""
    if not _FLOAT_BYTES.fullmatch(text):
        raise RefusedError("a number in decimal digits, NaN, Infinity or -Infinity")


def float4_text(value: bytes) -> bytes:
    return shortest_float4(unpacked(FLOAT4, value, "a float4 of 4 bytes")[0]).encode("ascii")


def float8_text(value: bytes) -> bytes:
    return shortest_float8(unpacked(FLOAT8, value, "a float8 of 8 bytes")[0]).encode("ascii")


def fast_binary_float(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    array = number_column(values, f"u{arrow.bit_width // 8}", arrow)
    # text doesn't contain a NaN's sign and payload, which depend on the sender's processor
    return pc.if_else(pc.is_nan(array), pa.scalar(math.nan, arrow), array)


load_bool = TwoPathLoader(fast_bool, careful_bool)

load_signed = TwoPathLoader(fast_signed, careful_signed)

load_unsigned = TwoPathLoader(fast_unsigned, careful_unsigned)

load_float = TwoPathLoader(fast_float, careful_float)


def _signed(name: str, arrow: pa.DataType) -> ColumnType:
    size = arrow.bit_width // 8
    binary_text = IntegerText(f"an {name} of {size} bytes", size, is_signed=True)
    return ColumnType(name, arrow, False, load_signed, binary_text, fast_binary_signed)


def _unsigned(name: str) -> ColumnType:
    binary_text = IntegerText("an unsigned integer of 4 bytes", 4)
    return ColumnType(name, pa.int64(), False, load_unsigned, binary_text, fast_binary_unsigned)


TYPES: TypeTable = {
    16: always(ColumnType("bool", pa.bool_(), False, load_bool, bool_text, fast_binary_bool)),
    20: always(_signed("int8", pa.int64())),
    21: always(_signed("int2", pa.int16())),
    23: always(_signed("int4", pa.int32())),
    26: always(_unsigned("oid")),
    28: always(_unsigned("xid")),
    700: always(ColumnType("float4", pa.float32(), True, load_float, float4_text, fast_binary_float)),
    701: always(ColumnType("float8", pa.float64(), True, load_float, float8_text, fast_binary_float)),
}
