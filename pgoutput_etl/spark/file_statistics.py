"""The statistics of a data file, as stored in a Delta table's log (Delta's protocol, *Per-file Statistics*)."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# Delta's defaults: the number of columns with statistics, and the number of characters kept of a text.
INDEXED_COLUMNS = 32
_CHARACTERS = 32

_GREATEST = "\U0010ffff"  # the last Unicode character

# Instants and days with a four-digit year: years 1 to 9999.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
_MICROSECONDS_OF_A_DAY = 86_400_000_000


def statistics_of(rows: pa.Table, columns: int = INDEXED_COLUMNS) -> dict[str, Any]:
    """The row count and, for the first `columns` columns, the number of NULLs and the least and the greatest value,
    where JSON can represent it exactly. rows: with the column names of the file."""
    found: dict[str, Any] = {"numRecords": rows.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}}
    for name in rows.column_names[:columns]:
        values = rows.column(name)
        found["nullCount"][name] = values.null_count
        limits = _limits(values)
        if limits is not None:
            found["minValues"][name], found["maxValues"][name] = limits
    return found


def _limits(values: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """The least and the greatest value. None without values, or if JSON can't represent them as Delta does."""
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
    """The text, or a short text that is not less."""
    short = text[:_CHARACTERS]
    while len(text) > len(short) and text[len(short)] == _GREATEST:
        short += _GREATEST
    return short if len(text) == len(short) else short + _GREATEST


def _printed(limit: pa.Scalar) -> str:
    """Truncates an instant to milliseconds: readers allow for the lost fraction in a maximum."""
    value = limit.as_py()
    if pa.types.is_date(limit.type):
        return str(value.isoformat())
    zone = "Z" if limit.type.tz else ""
    return f"{value.replace(tzinfo=None).isoformat(timespec='milliseconds')}{zone}"
