"""Ranges and multiranges as PostgreSQL's text, independent of the sender's settings.

Dates and timestamps in bounds must be in DateStyle ISO, like such values elsewhere. The bounds of a tstzrange arrive in
the sender's time zone, and are kept in UTC.

Text: range_out, multirange_out, "8.17.5. Range Input/Output". Binary: range_send, multirange_send
(src/backend/utils/adt/rangetypes.c, multirangetypes.c).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.types import datetimes, numbers, numeric
from pgoutput_etl.types.binary import ValueReader
from pgoutput_etl.types.column import (
    BinaryText,
    ColumnType,
    LoadedColumn,
    RefusedError,
    TypeTable,
    ValueTextError,
    always,
    binary_array,
    bounded,
)
from pgoutput_etl.types.composites import quoted
from pgoutput_etl.types.strings import load_string, string_type

_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _LOWER_INFINITE, _UPPER_INFINITE = 1, 2, 4, 8, 16

_KNOWN_FLAGS = _EMPTY | _LOWER_INCLUSIVE | _UPPER_INCLUSIVE | _LOWER_INFINITE | _UPPER_INFINITE

EXPECTED = "a range as PostgreSQL prints it"

EXPECTED_BINARY = "a range as range_send writes it"

# Bounds that are dates or timestamps may be quoted, but contain no characters that need escaping.
_BOUND = rb'(?:"[^"\\]+"|[^\[\]"\\(),\s]+)'

_FULL_RANGE = rb"[\[(]%b?,%b?[\])]" % (_BOUND, _BOUND)

_RANGE = re.compile(rb"(?P<open>[\[(])(?P<lower>%b)?,(?P<upper>%b)?(?P<close>[\])])" % (_BOUND, _BOUND))

_RANGE_FORM = re.compile(rb"empty|" + _FULL_RANGE)

_MULTIRANGE_FORM = re.compile(rb"\{(?:%b(?:,%b)*)?\}" % (_FULL_RANGE, _FULL_RANGE))

_PLAIN_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"

_PLAIN_TIMESTAMP = f"{_PLAIN_DAY} {datetimes.PLAIN_TIME}"

# From a bound's text to its canonical text; raises RefusedError.
Canonical = Callable[[bytes], bytes]


def canonical_date(text: bytes) -> bytes:
    datetimes.careful_date(text, pa.date32())
    return text


def canonical_timestamp(text: bytes) -> bytes:
    datetimes.careful_timestamp(text, pa.timestamp("us"))
    return text


def _with_canonical_bounds(canonical: Canonical, parts: re.Match[bytes]) -> bytes:
    lower, upper = (
        b"" if bound is None else _bound(canonical(bound.strip(b'"'))) for bound in parts.group("lower", "upper")
    )
    return parts["open"] + lower + b"," + upper + parts["close"]


_must_quote_bound = re.compile(rb'^$|["\\()\[\],\s]').search


def _bound(text: bytes) -> bytes:
    return quoted(text, _must_quote_bound)


@dataclass(frozen=True, slots=True)
class CanonicalRange:
    """Makes the bounds in a range's or multirange's text canonical."""

    form: re.Pattern[bytes]
    canonical: Canonical

    def __call__(self, text: bytes) -> bytes:
        if not self.form.fullmatch(text):
            raise RefusedError(EXPECTED)
        return _RANGE.sub(partial(_with_canonical_bounds, self.canonical), text)


@dataclass(frozen=True, slots=True)
class RangeLoader:
    """Loads texts in the plain form unchanged, and canonicalizes all others."""

    plain: str
    canonical: CanonicalRange

    def __call__(self, column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
        texts = binary_array(values)
        not_plain = pc.invert(pc.fill_null(pc.match_substring_regex(texts, self.plain), True))
        if not pc.any(not_plain).as_py():
            return load_string(column_type, values)
        canonical = list(values)
        for index in pc.indices_nonzero(not_plain).to_pylist():
            try:
                canonical[index] = self.canonical(values[index] or b"")
            except RefusedError as refused:
                raise ValueTextError(index, column_type.name, refused.expected) from None
        return load_string(column_type, canonical)


@dataclass(frozen=True, slots=True)
class RangeText:
    """Prints a range in binary form as range_out does. range_send: a byte of flags, then each finite bound with its
    size."""

    bound_text: BinaryText

    def __call__(self, value: bytes) -> bytes:
        reader = ValueReader(value, EXPECTED_BINARY)
        flags = reader.uint8()
        if flags & ~_KNOWN_FLAGS or (flags & _EMPTY and flags != _EMPTY):
            raise reader.refusal()
        if flags & _EMPTY:
            reader.end()
            return b"empty"
        lower = b"" if flags & _LOWER_INFINITE else _bound(self.bound_text(reader.required()))
        upper = b"" if flags & _UPPER_INFINITE else _bound(self.bound_text(reader.required()))
        reader.end()
        opening = b"[" if flags & _LOWER_INCLUSIVE else b"("
        return opening + lower + b"," + upper + (b"]" if flags & _UPPER_INCLUSIVE else b")")


@dataclass(frozen=True, slots=True)
class MultirangeText:
    """Prints a multirange in binary form as multirange_out does. multirange_send: int32 count, then each range with its
    size."""

    range_text: RangeText

    def __call__(self, value: bytes) -> bytes:
        reader = ValueReader(value, EXPECTED_BINARY)
        ranges = list(bounded(self.range_text(reader.required()) for _ in range(reader.count(5))))
        reader.end()
        return b"{" + b",".join(ranges) + b"}"


# For types of bounds that depend on the sender's settings: their plain form, and the function for all other texts.
_WITH_SETTINGS: Mapping[pa.DataType, tuple[str, Canonical]] = {
    pa.date32(): (_PLAIN_DAY, canonical_date),
    pa.timestamp("us"): (f'"{_PLAIN_TIMESTAMP}"', canonical_timestamp),
    pa.timestamp("us", "UTC"): (rf'"{_PLAIN_TIMESTAMP}\+00"', datetimes.text_in_utc),
}


def range_type(name: str, bound: ColumnType) -> ColumnType:
    return _type(name, bound, RangeText(bound.binary_text), "^(?:empty|{0})$", _RANGE_FORM)


def multirange_type(name: str, bound: ColumnType) -> ColumnType:
    binary_text = MultirangeText(RangeText(bound.binary_text))
    return _type(name, bound, binary_text, r"^\{{(?:{0}(?:,{0})*)?\}}$", _MULTIRANGE_FORM)


def _type(
    name: str, bound: ColumnType, binary_text: BinaryText, plain_form: str, form: re.Pattern[bytes]
) -> ColumnType:
    """plain_form: the RE2 pattern of the plain form, with {0} for a single range."""
    if bound.arrow not in _WITH_SETTINGS:
        return string_type(name, binary_text)
    plain_bound, canonical = _WITH_SETTINGS[bound.arrow]
    plain = plain_form.format(rf"[\[(](?:{plain_bound})?,(?:{plain_bound})?[\])]")
    loader = RangeLoader(plain, CanonicalRange(form, canonical))
    return ColumnType(name, pa.string(), False, loader, binary_text, to_utc=loader.canonical if bound.to_utc else None)


# No message contains the subtype of a user-defined range. These are PostgreSQL's documented examples ("8.17.8. Defining
# New Range Types"), known by name; bounds of another type are rejected.
EXAMPLES: Mapping[str, str] = {
    "floatrange": "range(float8)",
    "floatmultirange": "multirange(float8)",
    "timerange": "range(time)",
    "timemultirange": "multirange(time)",
}


def _types(oid: int, multirange_oid: int, name: str, bound: Callable[[int], ColumnType]) -> TypeTable:
    return {
        oid: always(range_type(f"{name}range", bound(-1))),
        multirange_oid: always(multirange_type(f"{name}multirange", bound(-1))),
    }


TYPES: TypeTable = {
    **_types(3904, 4451, "int4", numbers.TYPES[23]),
    **_types(3926, 4536, "int8", numbers.TYPES[20]),
    **_types(3906, 4532, "num", numeric.TYPES[1700]),
    **_types(3912, 4535, "date", datetimes.TYPES[1082]),
    **_types(3908, 4533, "ts", datetimes.TYPES[1114]),
    **_types(3910, 4534, "tstz", datetimes.TYPES[1184]),
}
