"""Values as PostgreSQL prints them, and a canonical spelling for values that it may print in several ways."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

import pyarrow as pa

from pgoutput_etl.types import ColumnType, Storage, ValueTextError, printing
from pgoutput_etl.types.arrays import map_elements
from pgoutput_etl.types.column import RefusedError

Text = str | None

_EXACT = Context(MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)

INTEGERS = (pa.int16(), pa.int32(), pa.int64())


@dataclass(frozen=True, slots=True)
class ComparedColumn:
    """A column that both sides have. by_value: the same value may have several spellings."""

    name: str
    type: ColumnType

    @property
    def by_value(self) -> bool:
        return compares_by_value(self.type)


def compares_by_value(column_type: ColumnType) -> bool:
    """True if different texts may represent the same value: floats (fewer digits before PostgreSQL 12), timestamptz
    (another TimeZone), documents in a VARIANT, hstore, vector, and geometry."""
    if column_type.element is not None and compares_by_value(column_type.element):
        return True
    if column_type.storage is not Storage.PLAIN or column_type.printer is not None or column_type.to_utc is not None:
        return True
    return bool(pa.types.is_floating(column_type.arrow))


def texts_of(column_type: ColumnType, array: pa.Array) -> list[Text]:
    """Stored values as PostgreSQL prints them."""
    if pa.types.is_string(column_type.arrow) and column_type.printer is None:
        texts: list[Text] = array.to_pylist()
        return texts
    if column_type.arrow in INTEGERS and column_type.printer is None:
        return [None if value is None else str(value) for value in array.to_pylist()]
    return [None if text is None else text.decode() for text in printing.print_text(column_type, array)]


def canonical_texts(column_type: ColumnType, texts: Sequence[Text]) -> list[Text]:
    """A single spelling for each value. A text that the type can't parse is unchanged."""
    if not compares_by_value(column_type):
        return list(texts)
    if column_type.holds_variant:
        return [None if text is None else _canonical_document(column_type, text) for text in texts]
    try:
        return _reprint(column_type, texts)
    except ValueTextError:
        return [_reprint_one(column_type, text) for text in texts]


def printed_text(column_type: ColumnType, text: Text) -> Text:
    """A value's text as PostgreSQL prints it, such as 30.00 for 30; unchanged if the type can't parse it."""
    return text if column_type.holds_variant else _reprint_one(column_type, text)


def _reprint(column_type: ColumnType, texts: Sequence[Text]) -> list[Text]:
    sent = [None if text is None else text.encode() for text in texts]
    return [None if text is None else text.decode() for text in printing.canonical_texts(column_type, sent, False)]


def _reprint_one(column_type: ColumnType, text: Text) -> Text:
    try:
        return _reprint(column_type, [text])[0]
    except ValueTextError:
        return text


def _canonical_document(column_type: ColumnType, text: str) -> str:
    delimiter = column_type.delimiter
    try:
        if column_type.element is None:
            return _canonical_json(text)
        array = map_elements(
            text.encode(), delimiter, lambda element: _canonical_json(element.decode()).encode(), delimiter
        )
    except (ValueError, ArithmeticError, RefusedError, RecursionError):
        return text
    return text if array is None else array.decode()


class _Number(str):
    """A JSON number of any size in its canonical spelling, not rounded."""

    __slots__ = ()


def _canonical_json(text: str) -> str:
    return _print_json(json.loads(text, parse_float=_parse_number, parse_int=_parse_number, parse_constant=str))


def _print_json(value: Any) -> str:
    match value:
        case _Number():
            return str(value)
        case dict():
            return "{" + ",".join(f"{json.dumps(key)}:{_print_json(value[key])}" for key in sorted(value)) + "}"
        case list():
            return "[" + ",".join(map(_print_json, value)) + "]"
        case _:
            return json.dumps(value)


def _parse_number(text: str) -> _Number:
    return _Number(Decimal(text).normalize(_EXACT) or 0)
