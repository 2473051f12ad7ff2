"""Composite values (`create type … as (…)`), as PostgreSQL's text of the row.

Text: record_out, "8.16.6. Composite Type Input and Output Syntax". Binary: record_send
(src/backend/utils/adt/rowtypes.c).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from pgoutput_etl.types.binary import ValueReader
from pgoutput_etl.types.column import RefusedError, bounded

EXPECTED = "a row as record_send writes it"


def quoted(text: bytes, must_quote: Callable[[bytes], object]) -> bytes:
    """Quotes like record_out and range_out: double quotes where necessary, with quotes and backslashes doubled."""
    if not must_quote(text):
        return text
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'""') + b'"'


_must_quote = re.compile(rb'^$|["\\(),\s]').search


def _fields(value: bytes) -> list[tuple[int, bytes | None]]:
    """record_send: int32 number of fields; per field its type's OID, int32 length (-1: NULL), and the field's binary
    form. Raises RefusedError if the value is not a row."""
    reader = ValueReader(value, EXPECTED)
    fields = [(reader.uint32(), reader.sized()) for _ in range(reader.count(8))]
    reader.end()
    return fields


def record_text(value: bytes, field_text: Callable[[int, bytes], bytes]) -> bytes:
    """The text of a row in binary form, as record_out prints it. field_text: converts a field with this OID from binary
    form. Raises RefusedError if the value is not a row."""
    fields = _fields(value)
    texts = (b"" if field is None else quoted(field_text(oid, field), _must_quote) for oid, field in fields)
    return b"(" + b",".join(bounded(texts)) + b")"


def may_become(old: str, new: str) -> bool:
    """True if two texts may be the same row before and after attributes were added to or dropped from its type. The
    number of attributes shows this: an added one is last, and NULL in existing rows."""
    before, after = _attributes(old), _attributes(new)
    if not before or not after or len(before) == len(after):
        return False
    if len(before) < len(after):
        return after[: len(before)] == before and not any(after[len(before) :])
    remaining = iter(before)
    return all(text in remaining for text in after)


def with_attributes(row: str, before: Sequence[int], after: Sequence[int]) -> str:
    """A row's text after its type has gained or lost attributes; new ones are NULL in existing rows. before, after: the
    numbers of its attributes."""
    texts = dict(zip(before, _attributes(row), strict=False))
    return f"({','.join(texts.get(number, '') for number in after)})" if len(texts) == len(before) else row


_ATTRIBUTE = r'"(?:[^"\\]|""|\\\\)*"|[^"\\(),]*'

_row = re.compile(rf"\((?:{_ATTRIBUTE})(?:,(?:{_ATTRIBUTE}))*\)").fullmatch

_each_attribute = re.compile(rf"[(,]({_ATTRIBUTE})").findall


def _attributes(row: str) -> list[str]:
    """The attributes as written in a row's text; NULL is an empty text. Empty if the text isn't a row's."""
    return _each_attribute(row) if _row(row) else []


def is_record(value: bytes) -> bool:
    """True if the value's lengths and OIDs are those of a row."""
    try:
        return all(oid for oid, _ in _fields(value))
    except RefusedError:
        return False
