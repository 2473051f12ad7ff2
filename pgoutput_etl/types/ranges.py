"""Ranges and multiranges, as PostgreSQL's text, one and the same text whatever the sender's settings are.

Bounds that are dates or timestamps must be of DateStyle ISO, as such values themselves must. Those of a tstzrange
come in the sender's time zone, and are kept in UTC.

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

from pgoutput_etl.types import datetimes, integers, numeric
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
from pgoutput_etl.types.quoting import quoted
from pgoutput_etl.types.strings import load_string, string_type

_EMPTY, _LOWER_INCLUSIVE, _UPPER_INCLUSIVE, _LOWER_INFINITE, _UPPER_INFINITE = 1, 2, 4, 8, 16

_KNOWN_FLAGS = _EMPTY | _LOWER_INCLUSIVE | _UPPER_INCLUSIVE | _LOWER_INFINITE | _UPPER_INFINITE

EXPECTED = "a range as PostgreSQL prints it"

EXPECTED_SENT = "a range as range_send writes it"


# A bound of a date or timestamp has no character that would be escaped, so it is quoted or it isn't.
_BOUND = rb'(?:"[^"\\]+"|[^\[\]"\\(),\s]+)'

_FULL_RANGE = rb"[\[(]%b?,%b?[\])]" % (_BOUND, _BOUND)

_RANGE = re.compile(rb"(?P<open>[\[(])(?P<lower>%b)?,(?P<upper>%b)?(?P<close>[\])])" % (_BOUND, _BOUND))

_RANGE_FORM = re.compile(rb"empty|" + _FULL_RANGE)

_MULTIRANGE_FORM = re.compile(rb"\{(?:%b(?:,%b)*)?\}" % (_FULL_RANGE, _FULL_RANGE))

_PLAIN_DAY = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"

_PLAIN_TIME = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"

_PLAIN_TIMESTAMP = f"{_PLAIN_DAY} {_PLAIN_TIME}"


# A bound's text -> the same bound as it is kept; or raises RefusedError.
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
    """A range's or multirange's text -> the same with the canonical text of each bound."""

    form: re.Pattern[bytes]
    canonical: Canonical

    def __call__(self, text: bytes) -> bytes:
        if not self.form.fullmatch(text):
            raise RefusedError(EXPECTED)
        return _RANGE.sub(partial(_with_canonical_bounds, self.canonical), text)


@dataclass(frozen=True, slots=True)
class RangeLoader:
    """Loads texts of the plain form as they are, and makes the others canonical."""

    plain: str
    canonical: CanonicalRange

    def __call__(self, column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
        texts = binary_array(values)
        odd = pc.invert(pc.fill_null(pc.match_substring_regex(texts, self.plain), True))
        if not pc.any(odd).as_py():
            return load_string(column_type, values)
        kept = list(values)
        for index in pc.indices_nonzero(odd).to_pylist():
            try:
                kept[index] = self.canonical(values[index] or b"")
            except RefusedError as refused:
                raise ValueTextError(index, column_type.name, refused.expected) from None
        return load_string(column_type, kept)


@dataclass(frozen=True, slots=True)
class RangeText:
    """A range in binary form -> what range_out prints: a byte of flags, then each bound that is there, sized."""

    bound_text: BinaryText

    def __call__(self, value: bytes) -> bytes:
        sent = ValueReader(value, EXPECTED_SENT)
        flags = sent.uint8()
        if flags & ~_KNOWN_FLAGS or (flags & _EMPTY and flags != _EMPTY):
            raise sent.refusal()
        if flags & _EMPTY:
            sent.end()
            return b"empty"
        lower = b"" if flags & _LOWER_INFINITE else _bound(self.bound_text(sent.required()))
        upper = b"" if flags & _UPPER_INFINITE else _bound(self.bound_text(sent.required()))
        sent.end()
        opening = b"[" if flags & _LOWER_INCLUSIVE else b"("
        return opening + lower + b"," + upper + (b"]" if flags & _UPPER_INCLUSIVE else b")")


@dataclass(frozen=True, slots=True)
class MultirangeText:
    """A multirange in binary form -> what multirange_out prints: an int32 count of ranges, each sized."""

    range_text: RangeText

    def __call__(self, value: bytes) -> bytes:
        sent = ValueReader(value, EXPECTED_SENT)
        ranges = list(bounded(self.range_text(sent.required()) for _ in range(sent.count(5))))
        sent.end()
        return b"{" + b",".join(ranges) + b"}"


# Bounds of these types, by what their columns are -> their plain form, and what makes others canonical.
_WITH_SETTINGS: Mapping[pa.DataType, tuple[str, Canonical]] = {
    pa.date32(): (_PLAIN_DAY, canonical_date),
    pa.timestamp("us"): (f'"{_PLAIN_TIMESTAMP}"', canonical_timestamp),
    pa.timestamp("us", "UTC"): (rf'"{_PLAIN_TIMESTAMP}\+00"', datetimes.text_in_utc),
}


def range_type(name: str, bound: ColumnType) -> ColumnType:
    if bound.arrow not in _WITH_SETTINGS:
        return string_type(name, RangeText(bound.binary_text))
    plain, canonical = _WITH_SETTINGS[bound.arrow]
    loader = RangeLoader(rf"^(?:empty|[\[(](?:{plain})?,(?:{plain})?[\])])$", CanonicalRange(_RANGE_FORM, canonical))
    return _type_with_settings(name, bound, loader, RangeText(bound.binary_text))


def multirange_type(name: str, bound: ColumnType) -> ColumnType:
    binary_text = MultirangeText(RangeText(bound.binary_text))
    if bound.arrow not in _WITH_SETTINGS:
        return string_type(name, binary_text)
    plain, canonical = _WITH_SETTINGS[bound.arrow]
    one = rf"[\[(](?:{plain})?,(?:{plain})?[\])]"
    loader = RangeLoader(rf"^\{{(?:{one}(?:,{one})*)?\}}$", CanonicalRange(_MULTIRANGE_FORM, canonical))
    return _type_with_settings(name, bound, loader, binary_text)


def _type_with_settings(name: str, bound: ColumnType, loader: RangeLoader, binary_text: BinaryText) -> ColumnType:
    in_utc = loader.canonical if bound.in_utc else None
    return ColumnType(name, pa.string(), False, loader, binary_text, in_utc=in_utc)


# What users' ranges are made of is in no message. These are PostgreSQL's own examples ("8.17.8. Defining New Range
# Types"), known by their names; a bound that is none is refused.
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
    **_types(3904, 4451, "int4", integers.TYPES[23]),
    **_types(3926, 4536, "int8", integers.TYPES[20]),
    **_types(3906, 4532, "num", numeric.TYPES[1700]),
    **_types(3912, 4535, "date", datetimes.TYPES[1082]),
    **_types(3908, 4533, "ts", datetimes.TYPES[1114]),
    **_types(3910, 4534, "tstz", datetimes.TYPES[1184]),
}
