"""json and jsonb as VARIANT columns, if configured. Events contain the document's text.

A VARIANT keeps a document's values, but not its spelling: it loses spaces, the order of keys, and the last zero of
1.10. A document that it can't represent exactly is unrepresentable and kept as text. Because of how Spark's parse_json
works, these are documents with

- numbers that are neither decimals of 38 digits nor exactly a double (rounded; 1e400 becomes a string),
- duplicate keys, which json allows (an error), or keys longer than 50,000 characters,
- half of a surrogate pair, which json allows in \\u escapes (becomes a question mark),
- more than 500 levels of nesting, or a size that may exceed 16 MiB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NoReturn

import pyarrow as pa

from pgoutput_etl.types.column import ColumnType, LoadedColumn, RefusedError, Storage, ValueTextError

# Spark 4.0's limit; later versions allow more. Its parser, Jackson, allows 1000 levels and keys of 50,000 characters.
# The lower depth here is one that every Python can parse.
_MAX_SIZE = 16 * 1024 * 1024

_MAX_DEPTH = 500

_MAX_KEY = 50_000

_MAX_DIGITS = 38

# Upper bound of a value's bytes beyond its characters: its header, and its entries in its container's tables.
_OVERHEAD = 12

# Also matches an unterminated string; otherwise, scanning for the end from each of its quotes would take quadratic
# time.
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)

_MANTISSA_DIGIT = re.compile("^[^eE]*[1-9]")

EXPECTED = "a JSON document"


class _InexactError(Exception):
    """VARIANT can't hold the value exactly."""


def load_variant(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    texts: list[str | None] = []
    unrepresentable: dict[int, str] = {}
    for index, value in enumerate(values):
        try:
            text = None if value is None else value.decode()
            if value is not None and text is not None and not is_exact(value, text):
                unrepresentable[index] = text
                text = None
        except (ValueError, RefusedError):
            raise ValueTextError(index, column_type.name, EXPECTED) from None
        texts.append(text)
    return LoadedColumn(pa.array(texts, pa.string()), unrepresentable)


def is_exact(value: bytes, text: str) -> bool:
    """True if parse_json keeps all of the document's values. Raises ValueError if the text is not JSON."""
    openings = value.count(b"[") + value.count(b"{")
    if openings > _MAX_DEPTH and _depth(value) > _MAX_DEPTH:
        return False
    if len(value) > _MAX_SIZE // _OVERHEAD:
        items = openings + value.count(b",") + value.count(b":")
        if len(value) + items * _OVERHEAD > _MAX_SIZE:
            return False
    try:
        parsed = _DECODER.decode(text)
        if "\\u" in text:
            json.dumps(parsed, ensure_ascii=False).encode()
    except (_InexactError, UnicodeEncodeError):
        return False
    return True


def _depth(value: bytes) -> int:
    depth = deepest = 0
    for character in _STRINGS.sub(b"", value):
        if character in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in b"]}":
            depth -= 1
    return deepest


def _check_integer(digits: str) -> None:
    if len(digits) > _MAX_DIGITS:
        _check_number(digits)


def _check_number(text: str) -> None:
    """Raises _InexactError unless the number has at most 38 digits or is exactly a double."""
    whole, _point, fraction = text.lstrip("-").partition(".")
    is_decimal = "e" not in text and "E" not in text
    if is_decimal and len((whole + fraction).lstrip("0")) <= _MAX_DIGITS and len(fraction) <= _MAX_DIGITS:
        return
    double = float(text)
    if double == 0:
        exact = not _MANTISSA_DIGIT.match(text)
    else:
        exact = abs(double) != float("inf") and Decimal(double) == Decimal(text)
    if not exact:
        raise _InexactError


def _check_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs) or any(len(key) > _MAX_KEY for key in document):
        raise _InexactError
    return document


def _refuse_constant(_name: str) -> NoReturn:
    """Python accepts NaN and Infinity, which are not JSON."""
    raise RefusedError(EXPECTED)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_check_keys, parse_float=_check_number, parse_int=_check_integer, parse_constant=_refuse_constant
)


def variant_text(value: bytes) -> bytes:
    """jsonb_send writes a byte of 1 and then the text; json_send only the text, which never begins with that byte."""
    return value[1:] if value[:1] == b"\1" else value


def variant_type(name: str) -> ColumnType:
    return ColumnType(name, pa.string(), True, load_variant, variant_text, storage=Storage.VARIANT)
