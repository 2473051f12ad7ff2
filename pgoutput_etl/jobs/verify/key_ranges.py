"""Ranges of keys that are compared by digest, and the arithmetic of those digests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Any

from pgoutput_etl.jobs.verify.canonical_text import (
    _INTEGERS,
    ComparedColumn,
    Text,
)

HALF_BITS = 60  # of a half of an MD5 that counts: what a bigint holds of whole hexadecimal digits

_MODULUS = 1 << HALF_BITS

HALF_DIGITS = HALF_BITS // 4

BUCKETS = 256

ROWS_IN_RANGE = 50_000

MAX_RANGES = 256

LEAST, GREATEST = -(2**63), 2**63 - 1


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
