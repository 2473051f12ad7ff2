"""Shell patterns for tables: which names they match, which one is more specific, and whether two of them overlap."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import translate
from functools import cache
from itertools import takewhile
from typing import NamedTuple


def matches(pattern: str, name: str) -> bool:
    """Like fnmatchcase, which would compile the patterns of many rules again for every name."""
    return _compiled(pattern).match(name) is not None


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


class _Piece(NamedTuple):
    """A part of a pattern: `*`, `?`, a set in brackets, or, if literal, a single character."""

    text: str
    is_literal: bool = False


_ANY, _ONE = _Piece("*"), _Piece("?")


@cache
def _pieces(pattern: str) -> tuple[_Piece, ...]:
    pieces, at = [], 0
    while at < len(pattern):
        char = pattern[at]
        end = pattern.find("]", at + (3 if pattern[at + 1 : at + 2] == "!" else 2)) if char == "[" else -1
        if end == at + 2:
            pieces.append(_Piece(pattern[at + 1], is_literal=True))
        elif end > 0:
            pieces.append(_Piece(pattern[at : end + 1]))
        else:
            pieces.append(_Piece(char, is_literal=char not in (_ANY.text, _ONE.text)))
        at = max(at, end) + 1
    return tuple(pieces)


@cache
def only_name(pattern: str) -> str | None:
    """The name that the pattern matches, if it matches only one."""
    pieces = _pieces(pattern)
    return "".join(piece.text for piece in pieces) if all(piece.is_literal for piece in pieces) else None


def is_name(pattern: str) -> bool:
    return only_name(pattern) is not None


@cache
def _prefix(pattern: str) -> str:
    """The literal characters before the first wildcard."""
    return "".join(piece.text for piece in takewhile(lambda piece: piece.is_literal, _pieces(pattern)))


class Specificity(NamedTuple):
    """Greater for a more specific pattern. prefix: number of literal characters before the first wildcard."""

    is_name: bool
    literal_characters: int
    prefix: int


@cache
def specificity(pattern: str) -> Specificity:
    pieces = _pieces(pattern)
    return Specificity(is_name(pattern), sum(piece.is_literal for piece in pieces), len(_prefix(pattern)))


def covers(pattern: str, other: str) -> bool:
    """True if a pattern, whose only wildcard is `*`, obviously matches every name that another pattern matches."""
    return "[" not in other and matches(pattern, other)


def overlap(one: str, other: str) -> bool:
    """True if some name matches both patterns. Two sets in brackets are assumed to have a common character."""
    begins = sorted((_prefix(one), _prefix(other)), key=len)
    if not begins[1].startswith(begins[0]):
        return False
    left, right = _pieces(one), _pieces(other)
    if _ANY in left and _ANY in right:  # a `*` matches all that the other has in its middle
        return _share_beginning(left, right) and _share_beginning(left[::-1], right[::-1])
    reached, seen = [(0, 0)], {(0, 0)}  # the numbers of pieces that the beginning of a name has matched
    while reached:
        i, j = reached.pop()
        if i == len(left) and j == len(right):
            return True
        for step in _steps(left, right, i, j):
            if step not in seen:
                seen.add(step)
                reached.append(step)
    return False


def _share_beginning(left: Sequence[_Piece], right: Sequence[_Piece]) -> bool:
    """True if some text matches the pieces of both before the first `*`."""
    return all(_share(*pair) for pair in takewhile(lambda pair: _ANY not in pair, zip(left, right, strict=False)))


def _steps(left: Sequence[_Piece], right: Sequence[_Piece], i: int, j: int) -> Sequence[tuple[int, int]]:
    mine, other = left[i] if i < len(left) else None, right[j] if j < len(right) else None
    if mine == _ANY:
        return [(i + 1, j)] if other is None else [(i + 1, j), (i, j + 1)]
    if other == _ANY:
        return [(i, j + 1)] if mine is None else [(i, j + 1), (i + 1, j)]
    return [(i + 1, j + 1)] if mine is not None and other is not None and _share(mine, other) else []


def _share(one: _Piece, other: _Piece) -> bool:
    """True if some character matches both; neither is `*`."""
    if one.is_literal and other.is_literal:
        return one.text == other.text
    if one.is_literal or other.is_literal:
        literal, pattern = (one, other) if one.is_literal else (other, one)
        return matches(pattern.text, literal.text)
    return True
