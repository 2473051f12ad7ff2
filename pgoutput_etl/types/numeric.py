"""numeric(p,s) as DECIMAL(p,s) where Delta has it (p <= 38, 0 <= s <= p), otherwise as its exact text.

NaN, infinities, and numbers with more digits than (p,s) allows (PostgreSQL wouldn't send one) are unrepresentable: a
decimal is never rounded.

Binary form (numeric_send), in 16-bit numbers: count of base-10000 digits, weight of the first digit, sign, number of
decimals to print, digits.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from decimal import Decimal

import pyarrow as pa

from pgoutput_etl.types.column import (
    ColumnType,
    LoadedColumn,
    RefusedError,
    TypeTable,
    cast_plain,
    load_fast_then_careful,
)
from pgoutput_etl.types.strings import string_type

_NUMBER = re.compile(rb"-?([0-9]+)(?:\.([0-9]+))?")

_MAX_PRECISION = 38

_HEADER = struct.Struct(">HhHH")

_MAX_DECIMALS = 0x3FFF

_NEGATIVE = 0x4000

_SPECIAL = {  # an infinity's number of decimals is left over from its storage format
    _HEADER.pack(0, 0, 0xC000, 0): b"NaN",
    _HEADER.pack(0, 0, 0xD000, 0x20): b"Infinity",
    _HEADER.pack(0, 0, 0xF000, 0x20): b"-Infinity",
}

_EXPECTED = "a numeric as numeric_send writes it"


def load_decimal(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    return load_fast_then_careful(column_type, values, fast_decimal, careful_decimal)


def fast_decimal(texts: pa.Array, arrow: pa.Decimal128Type) -> pa.Array:
    before, after = arrow.precision - arrow.scale, arrow.scale
    integer = f"(?:0|[1-9][0-9]{{0,{before - 1}}})" if before else "0"
    fraction = rf"\.[0-9]{{{after}}}" if after else ""
    return cast_plain(texts, f"^-?{integer}{fraction}$", arrow)


def careful_decimal(text: bytes, arrow: pa.Decimal128Type) -> Decimal | None:
    if text in (b"NaN", b"Infinity", b"-Infinity"):
        return None
    parts = _NUMBER.fullmatch(text)
    if parts is None:
        raise RefusedError("a number in decimal digits, NaN, Infinity or -Infinity")
    integer, fraction = parts[1].lstrip(b"0"), parts[2] or b""
    fits = len(integer) <= arrow.precision - arrow.scale and len(fraction) <= arrow.scale
    return Decimal(text.decode("ascii")) if fits else None


def numeric_text(value: bytes) -> bytes:
    if value in _SPECIAL:
        return _SPECIAL[value]
    if len(value) < _HEADER.size:
        raise RefusedError(_EXPECTED)
    count, weight, sign, decimals = _HEADER.unpack_from(value)
    if len(value) != _HEADER.size + 2 * count or sign not in (0, _NEGATIVE) or decimals > _MAX_DECIMALS:
        raise RefusedError(_EXPECTED)
    groups = struct.unpack_from(f">{count}H", value, _HEADER.size)
    largest = max(groups, default=0)
    if largest > 9999 or (sign and not largest):
        raise RefusedError(_EXPECTED)
    digits = "%04d" * count % groups
    before = 4 * (weight + 1)  # digits before the decimal point
    integer = digits[:before].ljust(before, "0") if before > 0 else ""
    fraction = digits[before:] if before > 0 else "0" * -before + digits
    if fraction[decimals:].strip("0"):
        raise RefusedError(_EXPECTED)  # digits that the text would drop
    fraction = fraction[:decimals].ljust(decimals, "0")
    text = f"{'-' if sign else ''}{integer.lstrip('0') or '0'}{'.' if decimals else ''}{fraction}"
    return text.encode("ascii")


def numeric_type(typmod: int) -> ColumnType:
    """typmod: ((p << 16) | (s & 0x7ff)) + 4, with s signed since PostgreSQL 15; -1 if absent."""
    if typmod < 4:
        return string_type("numeric", numeric_text)
    precision = (typmod - 4) >> 16 & 0xFFFF
    scale = ((typmod - 4 & 0x7FF) ^ 0x400) - 0x400
    name = f"numeric({precision},{scale})"
    if 1 <= precision <= _MAX_PRECISION and 0 <= scale <= precision:
        return ColumnType(name, pa.decimal128(precision, scale), True, load_decimal, numeric_text)
    return string_type(name, numeric_text)


TYPES: TypeTable = {
    1700: numeric_type,
}
