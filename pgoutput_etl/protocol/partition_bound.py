"""The bound of a partition, parsed from pg_get_expr's output: determines which rows of the table it contains."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_VALUE = r"(?:E?'(?:[^']|'')*'|[0-9][0-9.]*|NULL|true|false|MINVALUE|MAXVALUE)"
_LISTED = rf"\(({_VALUE}(?:, {_VALUE})*)\)"
_LIST = re.compile(rf"FOR VALUES IN {_LISTED}", re.DOTALL)
_RANGE = re.compile(rf"FOR VALUES FROM {_LISTED} TO {_LISTED}", re.DOTALL)

_WORDS = {"NULL": None, "true": "t", "false": "f"}


@dataclass(frozen=True, slots=True)
class Edge:
    """values: the texts of the first columns' values. is_within: rows with these values are in the range."""

    values: tuple[str, ...] = field(repr=False)
    is_within: bool


@dataclass(frozen=True, slots=True)
class PartitionBound:
    """columns: names. listed: texts of the only column's values; None for NULL. lower, upper: of a range."""

    columns: tuple[str, ...]
    listed: tuple[str | None, ...] = field(default=(), repr=False)
    lower: Edge | None = field(default=None, repr=False)
    upper: Edge | None = field(default=None, repr=False)


def read_bound(text: str, columns: Sequence[str]) -> PartitionBound | None:
    """None for other kinds of bounds: DEFAULT, or a hash."""
    listed, ranged = _LIST.fullmatch(text), _RANGE.fullmatch(text)
    if listed is not None and len(columns) == 1:
        words = _values(listed[1])
        return None if {"MINVALUE", "MAXVALUE"} & {*words} else PartitionBound((columns[0],), _texts(words))
    if ranged is None:
        return None
    lower, upper = _values(ranged[1]), _values(ranged[2])
    if "NULL" in (*lower, *upper) or not len(lower) == len(upper) == len(columns):
        return None
    return PartitionBound(tuple(columns), (), _edge(lower, "MINVALUE"), _edge(upper, "MAXVALUE"))


def _values(listed: str) -> list[str]:
    return re.findall(_VALUE, listed, re.DOTALL)


def _texts(words: Sequence[str]) -> tuple[str | None, ...]:
    return tuple(_WORDS[word] if word in _WORDS else _unquoted(word) for word in words)


def _unquoted(word: str) -> str:
    if word.startswith("E"):
        return word[2:-1].replace("''", "'").replace("\\\\", "\\")
    return word[1:-1].replace("''", "'") if word.startswith("'") else word


def _edge(words: Sequence[str], outermost: str) -> Edge:
    """Cuts off the edge at its first MINVALUE or MAXVALUE: nothing lies beyond them, so later columns don't matter."""
    count = next((n for n, word in enumerate(words) if word in ("MINVALUE", "MAXVALUE")), len(words))
    is_within = words[count] == outermost if count < len(words) else outermost == "MINVALUE"
    return Edge(tuple(text for text in _texts(words[:count]) if text is not None), is_within)
