"""numeric, and money as text.

numeric(p,s) becomes DECIMAL(p,s) if Delta supports that (p <= 38, 0 <= s <= p), and otherwise its exact text.

NaN, infinities, and numbers with more digits than (p,s) allows (PostgreSQL wouldn't send any) are unrepresentable: a
decimal is never rounded.

Binary form (numeric_send), in 16-bit numbers: count of base-10000 digits, weight of the first digit, sign, number of
decimals to print, digits.

The text of money follows the sender's lc_monetary. Its binary form is an integer that counts the smallest unit of an
unknown currency, printed here as with lc_monetary C: ``$1,234.56`` and ``-$1.00``. Use the text form for senders with
another lc_monetary.
"""

from __future__ import annotations

import re
import struct
from decimal import Decimal

import pyarrow as pa

from pgoutput_etl.types.binary import INT64, number
from pgoutput_etl.types.column import ColumnType, RefusedError, TwoPathLoader, TypeTable, always, cast_plain
from pgoutput_etl.types.strings import string_type

_NUMBER = re.compile(rb"-?([0-9]+)(?:\.([0-9]+))?")

_MAX_PRECISION = 38

_HEADER = struct.Struct(">HhHH")

_MAX_DECIMALS = 0x3FFF

_NEGATIVE = 0x4000

_SPECIAL = {  # an infinity's number of decimals is a leftover of its storage format
    _HEADER.pack(0, 0, 0xC000, 0): b"NaN",
    _HEADER.pack(0, 0, 0xD000, 0x20): b"Infinity",
    _HEADER.pack(0, 0, 0xF000, 0x20): b"-Infinity",
}

_EXPECTED = "a numeric as numeric_send writes it"


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


load_decimal = TwoPathLoader(fast_decimal, careful_decimal)


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


def money_text(value: bytes) -> bytes:
    cents = number(INT64, value, "an amount of money of 8 bytes")
    whole, fraction = divmod(abs(cents), 100)
    return f"{'-' if cents < 0 else ''}${whole:,}.{fraction:02d}".encode("ascii")


TYPES: TypeTable = {
    790: always(string_type("money", money_text)),
    1700: numeric_type,
}
