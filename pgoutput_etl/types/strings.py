"""Types stored as PostgreSQL's text, exactly as sent: a char(n) with its padding, json with its spaces.

These are the text types, and all types with values that no Delta type can hold: a time of 24:00:00, an interval of
months and days, a network. Types with binary forms of their own are in other modules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from pgoutput_etl.types.column import (
    BinaryText,
    ColumnType,
    FastBinary,
    LoadedColumn,
    TypeTable,
    ValueTextError,
    always,
    binary_array,
    no_binary_form,
)


def load_string(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    texts = binary_array(values)
    try:
        return LoadedColumn(texts.cast(pa.string()), {})
    except pa.ArrowInvalid:
        first = next(index for index, text in enumerate(values) if not _is_utf8(text or b""))
        raise ValueTextError(first, column_type.name, "valid UTF-8") from None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def string_type(
    name: str, binary_text: BinaryText = no_binary_form, fast_binary: FastBinary | None = None
) -> ColumnType:
    return ColumnType(name, pa.string(), False, load_string, binary_text, fast_binary)


def sent_as_text(value: bytes) -> bytes:
    """textsend and others: the binary form is the text."""
    return value


def fast_binary_string(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    try:
        return values.cast(arrow)
    except pa.ArrowInvalid:
        return pa.nulls(len(values), arrow)  # the detour through text finds the value that is not UTF-8


def text_type(name: str) -> ColumnType:
    return string_type(name, sent_as_text, fast_binary_string)


def _named(name: str) -> Callable[[int], ColumnType]:
    return always(string_type(name))


def _text(name: str) -> Callable[[int], ColumnType]:
    return always(text_type(name))


def _sized_text(name: str, bare: str) -> Callable[[int], ColumnType]:
    """A type whose modifier is its size plus VARHDRSZ, 4."""
    return lambda typmod: text_type(f"{name}({typmod - 4})" if typmod >= 4 else bare)


TYPES: TypeTable = {
    19: _text("name"),
    25: _text("text"),
    1033: _named("aclitem"),  # has no send function: sent as text even among binary values
    1042: _sized_text("char", "bpchar"),
    1043: _sized_text("varchar", "varchar"),
    1790: _text("refcursor"),
}
