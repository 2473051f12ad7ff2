"""Two tables' rows told apart: as texts, by digests of ranges of their keys, and by what is equal in another spelling.

Either side prints a row as PostgreSQL's text of each value. A row's texts, each with its length before it, have an MD5;
a range of keys has the number of its rows and the sums of the two halves of these MD5s, which depend on no order. A
PostgreSQL server computes the same by itself (server_queries.py), so that of ranges that agree nothing is fetched.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from pgoutput_etl.types import ColumnType, Storage, ValueTextError, load_text
from pgoutput_etl.types.arrays import map_elements
from pgoutput_etl.types.column import RefusedError
from pgoutput_etl.types.printing import print_text

Text = str | None

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
    if of.storage is not Storage.PLAIN or of.printer is not None or of.to_utc is not None:
        return True
    return bool(pa.types.is_floating(of.arrow))


def texts_of(of: ColumnType, array: pa.Array) -> list[Text]:
    """Stored values as PostgreSQL prints them."""
    if pa.types.is_string(of.arrow) and of.printer is None:
        texts: list[Text] = array.to_pylist()
        return texts
    if of.arrow in _INTEGERS and of.printer is None:
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
        turned = map_elements(
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
