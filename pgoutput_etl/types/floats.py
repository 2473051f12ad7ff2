"""float4 and float8, exact to the bit: -0, NaN, infinities, denormals, shortest decimals.

Arrow parses text directly into the target type, correctly rounded. Parsing a float4 through a double would round twice
and miss some decimals by one unit, so neither Python's float() nor numpy.float32() is used here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.types.binary import FLOAT4, FLOAT8, number_column, unpacked
from pgoutput_etl.types.column import (
    ColumnType,
    LoadedColumn,
    RefusedError,
    TypeTable,
    always,
    cast_plain,
    load_fast_then_careful,
)
from pgoutput_etl.types.shortest_float import shortest_float4, shortest_float8

_FORM = r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]+)?|NaN|-?Infinity"

_FORM_BYTES = re.compile(_FORM.encode())

_INFINITIES = pa.array([b"Infinity", b"-Infinity"], pa.binary())


def load_float(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    return load_fast_then_careful(column_type, values, fast_float, careful_float)


def fast_float(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    array = cast_plain(texts, f"^(?:{_FORM})$", arrow)
    # the cast turns numbers that are too large or too small for the type into infinity or zero
    overflowed = pc.and_not(pc.is_inf(array), pc.is_in(texts, _INFINITIES))
    vanished = pc.and_(pc.equal(array, pa.scalar(0, arrow)), pc.match_substring_regex(texts, "^[^e]*[1-9]"))
    return pc.if_else(pc.or_(overflowed, vanished), pa.scalar(None, arrow), array)


def careful_float(text: bytes, _arrow: pa.DataType) -> None:
    """None: PostgreSQL 11 and older print 15 digits, so the largest float8 arrives as a number too large for float8."""
    if not _FORM_BYTES.fullmatch(text):
        raise RefusedError("a number in decimal digits, NaN, Infinity or -Infinity")


def float4_text(value: bytes) -> bytes:
    return shortest_float4(unpacked(FLOAT4, value, "a float4 of 4 bytes")[0]).encode("ascii")


def float8_text(value: bytes) -> bytes:
    return shortest_float8(unpacked(FLOAT8, value, "a float8 of 8 bytes")[0]).encode("ascii")


def fast_binary_float(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    array = number_column(values, {32: "I", 64: "Q"}[arrow.bit_width], arrow)
    # text doesn't carry a NaN's sign and payload, which depend on the sender's processor
    return pc.if_else(pc.is_nan(array), pa.scalar(math.nan, arrow), array)


TYPES: TypeTable = {
    700: always(ColumnType("float4", pa.float32(), True, load_float, float4_text, fast_binary_float)),
    701: always(ColumnType("float8", pa.float64(), True, load_float, float8_text, fast_binary_float)),
}
