"""float4 and float8, to the bit: -0, NaN, infinities, denormals, the shortest decimal that means this number.

Arrow reads the text straight into the type asked for, correctly rounded. Reading a float4 by way of a double
would round twice and come out one unit off for some decimals, so neither Python's float() nor numpy.float32()
is used here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.types.column import (
    ColumnType,
    LoadedColumn,
    RefusedError,
    TypeTable,
    always,
    cast_plain,
    load_fast_then_careful,
)

_FORM = r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]+)?|NaN|-?Infinity"
_FORM_BYTES = re.compile(_FORM.encode())
_INFINITIES = pa.array([b"Infinity", b"-Infinity"], pa.binary())


def load_float(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    return load_fast_then_careful(column_type, values, fast_float, careful_float)


def fast_float(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    array = cast_plain(texts, f"^(?:{_FORM})$", arrow)
    # a number too large or too small for the type is infinity or zero by now, which its text didn't say
    overflowed = pc.and_not(pc.is_inf(array), pc.is_in(texts, _INFINITIES))
    vanished = pc.and_(pc.equal(array, pa.scalar(0, arrow)), pc.match_substring_regex(texts, "^[^e]*[1-9]"))
    return pc.if_else(pc.or_(overflowed, vanished), pa.scalar(None, arrow), array)


def careful_float(text: bytes, _arrow: pa.DataType) -> None:
    """PostgreSQL 11 and older print 15 digits: the largest float8 comes as a number that no float8 can hold."""
    if not _FORM_BYTES.fullmatch(text):
        raise RefusedError("a number in decimal digits, NaN, Infinity or -Infinity")


TYPES: TypeTable = {
    700: always(ColumnType("float4", pa.float32(), True, load_float)),
    701: always(ColumnType("float8", pa.float64(), True, load_float)),
}
