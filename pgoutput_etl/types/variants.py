"""json and jsonb for a VARIANT column, where the configuration asks for one. Events carry the document's text.

A VARIANT keeps a document's values, not its spelling: spaces, the order of keys, and the zeros at the end of 1.10 go.
A document that it can't keep exactly is unrepresentable, and its text is kept. That is so, by what Spark's parse_json
does with them, for

- numbers that are neither decimals of 38 digits nor doubles to the last bit (it rounds them; 1e400 becomes a string),
- keys that come twice, which json allows (it fails), and keys of more than 50,000 characters,
- half of a surrogate pair, which json allows in \\u escapes (it becomes a question mark),
- documents nested deeper than 500, and those that may need more than 16 MiB.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, NoReturn

import pyarrow as pa

from pgoutput_etl.types.column import ColumnType, LoadedColumn, RefusedError, Storage, ValueTextError

# Spark 4.0's limit; later ones allow more. Jackson, which parses for it, has limits of 1000 levels and 50,000
# characters of a name; here the depth is what any Python can parse, too.
_MAX_SIZE = 16 * 1024 * 1024

_MAX_DEPTH = 500

_MAX_KEY = 50_000

_MAX_DIGITS = 38

# What a value takes at most beside its own characters: its header, and its part in the tables of what it is in.
_OVERHEAD = 12


# Also one that isn't ended: to look for its end from each of its quotes would take the square of its length.
_STRINGS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)

_MANTISSA_DIGIT = re.compile("^[^eE]*[1-9]")

EXPECTED = "a JSON document"


class _InexactError(Exception):
    """VARIANT has no such value."""


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
    """Whether parse_json keeps all there is in the document. ValueError if it isn't one."""
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
    """A decimal of 38 digits before and after the point together, or exactly a double."""
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
    found = dict(pairs)
    if len(found) < len(pairs) or any(len(key) > _MAX_KEY for key in found):
        raise _InexactError
    return found


def _no_constant(_name: str) -> NoReturn:
    """Python reads NaN and Infinity, which are no JSON."""
    raise RefusedError(EXPECTED)


_DECODER = json.JSONDecoder(
    object_pairs_hook=_check_keys, parse_float=_check_number, parse_int=_check_integer, parse_constant=_no_constant
)


def variant_text(value: bytes) -> bytes:
    """jsonb_send writes a byte of 1 and the document's text; json_send the text alone, which never begins so."""
    return value[1:] if value[:1] == b"\1" else value


def variant_type(name: str) -> ColumnType:
    return ColumnType(name, pa.string(), True, load_variant, variant_text, storage=Storage.VARIANT)
