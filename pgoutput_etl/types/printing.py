"""Prints stored values as PostgreSQL does (DateStyle ISO, TimeZone UTC, bytea_output hex)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa

from pgoutput_etl.timestamps import EPOCH, microseconds_of
from pgoutput_etl.types.arrays import array_text
from pgoutput_etl.types.column import ColumnType, kept_bytes, load_binary, load_text
from pgoutput_etl.types.datetime_format import date_text, timestamp_text, timestamptz_text
from pgoutput_etl.types.shortest_float import shortest_float4, shortest_float8


def print_text(column_type: ColumnType, array: pa.Array) -> list[bytes | None]:
    """The values' texts; None is NULL. A VARIANT document is printed in the target's spelling, not as it was sent."""
    return [None if value is None else _print(column_type, value) for value in array.to_pylist()]


def _print(column_type: ColumnType, value: Any) -> bytes:
    if column_type.printer is not None:
        return column_type.printer(value)
    match value:
        case bool():
            return b"t" if value else b"f"
        case str():
            return value.encode()
        case bytes():
            return b"\\x" + value.hex().encode()
        case int():
            return str(value).encode()
        case float():
            return (shortest_float4 if column_type.arrow == pa.float32() else shortest_float8)(value).encode()
        case Decimal():
            return format(value, "f").encode()
        case datetime() if value.tzinfo is None:
            return timestamp_text(microseconds_of(value.replace(tzinfo=timezone.utc)))
        case datetime():
            return timestamptz_text(microseconds_of(value))
        case date():
            return date_text((value - EPOCH.date()).days)
        case list() if (element := column_type.element) is not None:
            return array_text([None if v is None else _print(element, v) for v in value], element.delimiter)
        case _:
            raise TypeError(type(value).__name__)


def canonical_texts(column_type: ColumnType, values: Sequence[bytes | None], binary: bool) -> list[bytes | None]:
    """The texts of values that were sent in any form, with any settings; floats with their shortest exact digits.

    Raises ValueTextError for a value that isn't of the type, and OverflowError for more than a column can hold.
    """
    loaded = (load_binary if binary else load_text)(column_type, values)
    is_text = pa.types.is_string(column_type.arrow) and column_type.printer is None
    array = loaded.array
    texts: list[bytes | None] = array.cast(pa.binary()).to_pylist() if is_text else print_text(column_type, array)
    for i, text in loaded.unrepresentable.items():
        texts[i] = kept_bytes(text) or text.encode()
    return texts
