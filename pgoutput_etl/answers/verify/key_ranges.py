"""Ranges of keys, and their digests.

Each row has an MD5, computed from its texts, each preceded by its length. A range's digest is its row count and the
sums of both halves of these MD5s, so it doesn't depend on the rows' order. A PostgreSQL server computes the same
digests itself (server_digest.py), and only the rows of ranges that differ are fetched.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import md5
from typing import Any

from pgoutput_etl.types.canonical_text import INTEGERS, ComparedColumn, Text

HALF_BITS = 60  # bits used of each half of an MD5: as many whole hexadecimal digits as fit into a bigint

_MODULUS = 1 << HALF_BITS

HALF_DIGITS = HALF_BITS // 4

HASH_BITS = 32  # bits of the MD5 that determine the place of a key that isn't an integer

HASH_DIGITS = HASH_BITS // 4

ROWS_IN_RANGE = 50_000

MAX_RANGES = 256

LEAST, GREATEST = -(2**63), 2**63 - 1


def encode_row(texts: Iterable[Text]) -> bytes:
    """A unique encoding of the row: each text after its number of characters; a hyphen for NULL."""
    return "".join("-" if text is None else f"{len(text)}:{text}" for text in texts).encode()


@dataclass(slots=True)
class Digest:
    """A range's digest, independent of the rows' order. first, second: sums of the halves of the rows' MD5s, modulo
    2^60."""

    rows: int = 0
    first: int = 0
    second: int = 0

    def add(self, row: Sequence[Text]) -> None:
        hexadecimal = md5(encode_row(row), usedforsecurity=False).hexdigest()
        self.rows += 1
        self.first = (self.first + int(hexadecimal[:HALF_DIGITS], 16)) % _MODULUS
        self.second = (self.second + int(hexadecimal[HALF_DIGITS : 2 * HALF_DIGITS], 16)) % _MODULUS

    def plus(self, other: Digest) -> Digest:
        first, second = (self.first + other.first) % _MODULUS, (self.second + other.second) % _MODULUS
        return Digest(self.rows + other.rows, first, second)


def differing_ranges(ours: Mapping[int, Digest], theirs: Mapping[int, Digest]) -> list[int]:
    empty = Digest()
    return [i for i in sorted({*ours, *theirs}) if ours.get(i, empty) != theirs.get(i, empty)]


@dataclass(frozen=True, slots=True)
class Ranges:
    """Assigns rows to ranges, in the same way on both sides. columns: positions of the columns that decide.

    starts: the place at which each range but the first begins. A place is the integer in the only column or, if
    is_hashed, the first HASH_BITS of the MD5 of the columns' texts. only: numbers of the ranges to compare; None for
    all.
    """

    columns: tuple[int, ...]
    starts: tuple[int, ...]
    is_hashed: bool = False
    only: tuple[int, ...] | None = None

    @property
    def count(self) -> int:
        return len(self.starts) + 1

    @property
    def numbers(self) -> Sequence[int]:
        return range(self.count) if self.only is None else self.only

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """The least and greatest place of each range."""
        return list(zip((LEAST, *self.starts), (*(start - 1 for start in self.starts), GREATEST), strict=True))

    def divided(self, parts: Mapping[int, int], least: int, greatest: int) -> tuple[Ranges, dict[int, int]]:
        """Splits ranges into equal parts: their numbers, by range. least, greatest: limits of the places. Also returns
        the new numbers of the ranges that are not split."""
        bounds, added = self.bounds, set[int]()
        for number, count in parts.items():
            low, high = bounds[number]
            added.update(between(max(low, least), min(high, greatest), count))
        starts = tuple(sorted({*self.starts, *added}))
        number_of = {low: number for number, low in enumerate((LEAST, *starts))}
        same = {number: number_of[low] for number, (low, _) in enumerate(bounds) if number not in parts}
        skipped = {same[number] for number in set(range(self.count)).difference(self.numbers)}
        only = None if self.only is None else tuple(n for n in range(len(starts) + 1) if n not in skipped)
        return replace(self, starts=starts, only=only), same

    def spans(self) -> list[tuple[int, int]]:
        """The bounds of the compared ranges; adjacent ranges are merged."""
        spans: list[tuple[int, int]] = []
        for low, high in map(self.bounds.__getitem__, self.numbers):
            if spans and spans[-1][1] == low - 1:
                low = spans.pop()[0]
            spans.append((low, high))
        return spans

    def range_of(self, row: Sequence[Text]) -> int:
        """The number of a row's range. A key that isn't an integer (NULL, or a malformed field in a file) is in the
        first range."""
        if not self.starts:
            return 0
        if self.is_hashed:
            encoded = encode_row(row[i] for i in self.columns)
            return bisect_right(self.starts, int(md5(encoded, usedforsecurity=False).hexdigest()[:HASH_DIGITS], 16))
        try:
            number = int(row[self.columns[0]] or "")
        except ValueError:
            return 0
        return bisect_right(self.starts, number)


def plan_ranges(
    columns: Sequence[ComparedColumn],
    key: Sequence[int],
    rows: int,
    limits: tuple[int | None, int | None],
    rows_in_range: int = ROWS_IN_RANGE,
) -> Ranges:
    """key: positions of the key's columns; empty for a bag, where all columns decide. limits: least and greatest value
    of the key's first column, if it holds integers."""
    deciding = tuple(key) or tuple(range(len(columns)))
    if has_integer_key(columns, key):
        count, (least, greatest) = min(-(-rows // rows_in_range), MAX_RANGES), limits
        if count < 2 or least is None or greatest is None:
            return Ranges((key[0],), ())
        return Ranges((key[0],), between(least, greatest, count))
    if any(columns[i].by_value for i in deciding):
        return Ranges(deciding, (), is_hashed=True)
    return Ranges(deciding, tuple(range(_HASH_WIDTH, 1 << HASH_BITS, _HASH_WIDTH)), is_hashed=True)


_HASH_WIDTH = (1 << HASH_BITS) // MAX_RANGES


def has_integer_key(columns: Sequence[ComparedColumn], key: Sequence[int]) -> bool:
    return bool(key) and columns[key[0]].type.arrow in INTEGERS


def between(least: int, greatest: int, count: int) -> tuple[int, ...]:
    """The starts of ranges of equal width, except the first."""
    width = max(-(-(greatest - least + 1) // count), 1)
    return tuple(range(least + width, greatest + 1, width))


def merge_digests(rows: Iterable[Mapping[str, Any]]) -> dict[int, Digest]:
    """Merges rows with partial digests (range, rows, first, second) into digests by range."""
    digests: dict[int, Digest] = {}
    for row in rows:
        part = Digest(int(row["rows"]), int(row["first"]) % _MODULUS, int(row["second"]) % _MODULUS)
        digests[int(row["range"])] = digests.get(int(row["range"]), Digest()).plus(part)
    return {number: digest for number, digest in digests.items() if digest.rows}
