"""Two tables' rows told apart: as texts, by digests of ranges of their keys, and by what is equal in another spelling.

Either side prints a row as PostgreSQL's text of each value. A row's texts, each with its length before it, have an MD5;
a range of keys has the number of its rows and the sums of the two halves of these MD5s, which depend on no order. A
PostgreSQL server computes the same by itself (server_queries.py), so that of ranges that agree nothing is fetched.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from hashlib import md5
from typing import Any

import pyarrow as pa

from pgoutput_etl.types import ColumnType, Storage, ValueTextError, load_text
from pgoutput_etl.types.arrays import with_elements
from pgoutput_etl.types.column import RefusedError
from pgoutput_etl.types.printing import print_text

Text = str | None
HALF_BITS = 60  # of a half of an MD5 that counts: what a bigint holds of whole hexadecimal digits
_MODULUS = 1 << HALF_BITS
HALF_DIGITS = HALF_BITS // 4
BUCKETS = 256
ROWS_IN_RANGE = 50_000
MAX_RANGES = 256
LEAST, GREATEST = -(2**63), 2**63 - 1
_INTEGERS = (pa.int16(), pa.int32(), pa.int64())


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A column that both sides have. by_value: one value may be spelled in several ways."""

    name: str
    type: ColumnType

    @property
    def by_value(self) -> bool:
        return compares_by_value(self.type)


def compares_by_value(of: ColumnType) -> bool:
    """Whether texts may differ and mean one value: floats (fewer digits before PostgreSQL 12), timestamptz (another
    TimeZone), documents in a VARIANT, hstore, vector and geometry."""
    if of.element is not None and compares_by_value(of.element):
        return True
    if of.storage is not Storage.PLAIN or of.prints is not None or of.in_utc is not None:
        return True
    return bool(pa.types.is_floating(of.arrow))


def texts_of(of: ColumnType, array: pa.Array) -> list[Text]:
    """Stored values as PostgreSQL prints them."""
    if pa.types.is_string(of.arrow) and of.prints is None:
        texts: list[Text] = array.to_pylist()
        return texts
    if of.arrow in _INTEGERS and of.prints is None:
        return [None if value is None else str(value) for value in array.to_pylist()]
    return [None if text is None else text.decode() for text in print_text(of, array)]


def canonical(of: ColumnType, texts: Sequence[Text]) -> list[Text]:
    """Of texts of one value, one; a text that is none of the type's is left as it is."""
    if not compares_by_value(of):
        return list(texts)
    if of.holds_variant:
        return [None if text is None else _canonical_document(of, text) for text in texts]
    try:
        return _respelled(of, texts)
    except ValueTextError:
        return [_respelled_alone(of, text) for text in texts]


def _respelled(of: ColumnType, texts: Sequence[Text]) -> list[Text]:
    loaded = load_text(of, [None if text is None else text.encode() for text in texts])
    found = texts_of(of, loaded.array)
    for i, text in loaded.unrepresentable.items():
        found[i] = text
    return found


def _respelled_alone(of: ColumnType, text: Text) -> Text:
    try:
        return _respelled(of, [text])[0]
    except ValueTextError:
        return text


def _canonical_document(of: ColumnType, text: str) -> str:
    try:
        if of.element is None:
            return _document(text)
        turned = with_elements(
            text.encode(), of.delimiter, lambda element: _document(element.decode()).encode(), of.delimiter
        )
    except (ValueError, RefusedError, RecursionError):
        return text
    return text if turned is None else turned.decode()


class _Number(str):
    """Of any size, without rounding; one spelling for each."""

    __slots__ = ()


def _document(text: str) -> str:
    return _spelled(json.loads(text, parse_float=_number, parse_int=_number, parse_constant=str))


def _spelled(value: Any) -> str:
    match value:
        case _Number():
            return str(value)
        case dict():
            return "{" + ",".join(f"{json.dumps(key)}:{_spelled(value[key])}" for key in sorted(value)) + "}"
        case list():
            return "[" + ",".join(map(_spelled, value)) + "]"
        case _:
            return json.dumps(value)


def _number(text: str) -> _Number:
    sign, digits, exponent = Decimal(text).as_tuple()
    if not any(digits):
        return _Number("0")
    shown = "".join(map(str, digits)).lstrip("0")
    kept = shown.rstrip("0")
    assert isinstance(exponent, int)
    return _Number(f"{'-' if sign else ''}{kept}e{exponent + len(shown) - len(kept)}")


def encoded(texts: Iterable[Text]) -> bytes:
    """No two rows have one encoding: each text with the number of its characters before it, NULL as a hyphen."""
    return "".join("-" if text is None else f"{len(text)}:{text}" for text in texts).encode()


@dataclass(slots=True)
class Digest:
    """Of the rows of a range, in any order. first, second: sums of halves of their MD5s, modulo 2^60."""

    rows: int = 0
    first: int = 0
    second: int = 0

    def add(self, row: Sequence[Text]) -> None:
        hexadecimal = md5(encoded(row), usedforsecurity=False).hexdigest()
        self.rows += 1
        self.first = (self.first + int(hexadecimal[:HALF_DIGITS], 16)) % _MODULUS
        self.second = (self.second + int(hexadecimal[HALF_DIGITS : 2 * HALF_DIGITS], 16)) % _MODULUS

    def plus(self, other: Digest) -> Digest:
        first, second = (self.first + other.first) % _MODULUS, (self.second + other.second) % _MODULUS
        return Digest(self.rows + other.rows, first, second)


def differing(ours: Mapping[int, Digest], theirs: Mapping[int, Digest]) -> list[int]:
    """The ranges whose rows are not the same, of all that either side has."""
    nothing = Digest()
    return [i for i in sorted({*ours, *theirs}) if ours.get(i, nothing) != theirs.get(i, nothing)]


@dataclass(frozen=True, slots=True)
class Ranges:
    """How rows are put into ranges, the same way on both sides. columns: positions, in a row, of what decides.

    starts: of a key's integer, where each range but the first begins; None: by the MD5 of the columns' texts, in so
    many buckets.
    """

    columns: tuple[int, ...]
    starts: tuple[int, ...] | None
    buckets: int = 1

    @property
    def count(self) -> int:
        return self.buckets if self.starts is None else len(self.starts) + 1

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """Of ranges of integers: the least and the greatest of each."""
        starts = self.starts or ()
        return list(zip((LEAST, *starts), (*(start - 1 for start in starts), GREATEST), strict=True))

    def range_of(self, row: Sequence[Text]) -> int:
        """A key that is no integer (NULL, or a file's nonsense) is in the first range."""
        if self.starts is None:
            if self.buckets == 1:
                return 0
            texts = encoded(row[i] for i in self.columns)
            return md5(texts, usedforsecurity=False).digest()[0] * self.buckets // 256
        try:
            number = int(row[self.columns[0]] or "")
        except ValueError:
            return 0
        return bisect_right(self.starts, number)


def plan_ranges(
    columns: Sequence[ComparedColumn], key: Sequence[int], rows: int, limits: tuple[int | None, int | None]
) -> Ranges:
    """`key`: its positions; none for a bag, of which all columns decide. `limits`: the least and the greatest of the
    key's first column here, if that is of integers."""
    deciding = tuple(key) or tuple(range(len(columns)))
    if key and columns[key[0]].type.arrow in _INTEGERS:
        return Ranges((key[0],), _starts(rows, *limits))
    if any(columns[i].by_value for i in deciding):
        return Ranges(deciding, None)
    return Ranges(deciding, None, BUCKETS)


def has_integer_key(columns: Sequence[ComparedColumn], key: Sequence[int]) -> bool:
    return bool(key) and columns[key[0]].type.arrow in _INTEGERS


def _starts(rows: int, least: int | None, greatest: int | None) -> tuple[int, ...]:
    """Ranges of one width, as many as rows ask for."""
    wanted = min(-(-rows // ROWS_IN_RANGE), MAX_RANGES)
    if least is None or greatest is None or wanted < 2:
        return ()
    width = max(-(-(greatest - least + 1) // wanted), 1)
    return tuple(range(least + width, greatest + 1, width))


def collected(rows: Iterable[Mapping[str, Any]]) -> dict[int, Digest]:
    """Digests that came in parts: rows with range, rows, first and second."""
    found: dict[int, Digest] = {}
    for row in rows:
        part = Digest(int(row["rows"]), int(row["first"]) % _MODULUS, int(row["second"]) % _MODULUS)
        found[int(row["range"])] = found.get(int(row["range"]), Digest()).plus(part)
    return {number: digest for number, digest in found.items() if digest.rows}
