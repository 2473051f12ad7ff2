"""The statistics of a data file in a Delta table's log (Delta's protocol, *Per-file Statistics*)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# As Delta: of so many columns at most, and so many characters of a text.
INDEXED_COLUMNS = 32
_CHARACTERS = 32

_GREATEST = "\U0010ffff"  # the last character there is

# Instants and days that a text with a year of four digits has: from year 1 to year 9999.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_MICROSECONDS_OF_A_DAY = 86_400_000_000


def statistics_of(rows: pa.Table, columns: int = INDEXED_COLUMNS) -> dict[str, Any]:
    """The row count and, of the first columns, the number of NULLs, and the least and the greatest value where it is
    exact in JSON. rows: by the names that the columns have in their file."""
    found: dict[str, Any] = {"numRecords": rows.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in rows.column_names[:columns]:
        values = rows.column(name)
        found["nullCount"][name] = values.null_count
        limits = _limits(values)
        if limits is not None:
            found["minValues"][name], found["maxValues"][name] = limits
    return found


def _limits(values: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """None for types and values that JSON doesn't have as Delta has them, and without values."""
    kind = values.type
    is_time = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    if values.null_count == len(values) or not (pa.types.is_integer(kind) or pa.types.is_string(kind) or is_time):
        return None
    found = pc.min_max(values)
    least, greatest = found["min"], found["max"]
    if pa.types.is_integer(kind):
        return least.as_py(), greatest.as_py()
    if pa.types.is_string(kind):
        return least.as_py()[:_CHARACTERS], _at_least(greatest.as_py())
    days = [
        limit.value if pa.types.is_date(kind) else limit.value // _MICROSECONDS_OF_A_DAY for limit in (least, greatest)
    ]
    if days[0] < _FIRST_DAY or days[1] > _LAST_DAY:
        return None
    return _printed(least), _printed(greatest)


def _at_least(text: str) -> str:
    """The text, or a short one that is not less."""
    short = text[:_CHARACTERS]
    while len(text) > len(short) and text[len(short)] == _GREATEST:
        short += _GREATEST
    return short if len(text) == len(short) else short + _GREATEST


def _printed(limit: pa.Scalar) -> str:
    """Of an instant, the milliseconds: readers take a greatest one for that of the next millisecond."""
    value = limit.as_py()
    if pa.types.is_date(limit.type):
        return str(value.isoformat())
    zone = "Z" if limit.type.tz else ""
    return f"{value.replace(tzinfo=None).isoformat(timespec='milliseconds')}{zone}"
