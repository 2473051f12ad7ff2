"""date, timestamp, and timestamptz in DateStyle ISO, for the years 0001 to 9999 that Spark and Python share.

Any other DateStyle is rejected: only the sender knows whether 03/04/2026 is in March or April. Infinity, years BC, and
years after 9999 are unrepresentable. For a timestamptz, the year in UTC decides, not the year in its text; an
unrepresentable one is returned as text in UTC, regardless of the sender's TimeZone. The binary forms count days or
microseconds since 2000-01-01, with infinities at the ends of the integer range.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.types.binary import INT32, INT64, number, number_column
from pgoutput_etl.types.column import (
    ColumnType,
    LoadedColumn,
    RefusedError,
    TwoPathLoader,
    TypeTable,
    always,
    cast_plain,
    with_modifier,
)
from pgoutput_etl.types.datetime_format import (
    DAY_US,
    date_text,
    is_date,
    is_timestamp,
    timestamp_text,
    timestamptz_text,
)

# RE2 patterns for the fast path: four digits, but not 0000
_PLAIN_DATE = r"(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-[0-9]{2}-[0-9]{2}"

PLAIN_TIME = r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"

_PLAIN_OFFSET = r"[+-][0-9]{2}(?::[0-9]{2})?"

_DATE = rb"(?P<year>[0-9]{4}|[1-9][0-9]{4,6})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"

_TIME = rb"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]{1,6}))?"

_OFFSET = rb"(?P<sign>[+-])(?P<hours>[0-9]{2,3})(?::(?P<minutes>[0-9]{2})(?::(?P<seconds>[0-9]{2}))?)?"

_ERA = rb"(?P<bc> BC)?"

_DATE_TEXT = re.compile(_DATE + _ERA)

_TIMESTAMP_TEXT = re.compile(_DATE + b" " + _TIME + _ERA)

_TIMESTAMPTZ_TEXT = re.compile(_DATE + b" " + _TIME + _OFFSET + _ERA)

INFINITIES = (b"infinity", b"-infinity")

_EPOCH = datetime.date(1970, 1, 1).toordinal()

EPOCH_2000 = datetime.date(2000, 1, 1).toordinal() - _EPOCH  # in days since 1970

EPOCH_2000_US = EPOCH_2000 * DAY_US

# The years 1 to 9999, in days and microseconds since 1970
MIN_DAY = datetime.date.min.toordinal() - _EPOCH

MAX_DAY = datetime.date.max.toordinal() - _EPOCH

MIN_US = MIN_DAY * DAY_US

MAX_US = (MAX_DAY + 1) * DAY_US - 1


def fast_date(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    return cast_plain(texts, f"^{_PLAIN_DATE}$", arrow)


def careful_date(text: bytes, _arrow: pa.DataType) -> int | None:
    if text in INFINITIES:
        return None
    parts = _DATE_TEXT.fullmatch(text)
    if parts is None:
        raise RefusedError("a date in the form YYYY-MM-DD; the sender's DateStyle must be ISO")
    day = _day(parts)
    return day if MIN_DAY <= day <= MAX_DAY else None


def fast_timestamp(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    return cast_plain(texts, f"^{_PLAIN_DATE} {PLAIN_TIME}$", arrow)


def careful_timestamp(text: bytes, _arrow: pa.DataType) -> int | None:
    if text in INFINITIES:
        return None
    parts = _TIMESTAMP_TEXT.fullmatch(text)
    if parts is None:
        raise RefusedError("a timestamp in the form YYYY-MM-DD HH:MM:SS[.ffffff]; the sender's DateStyle must be ISO")
    microsecond = _local_microsecond(parts)
    return microsecond if MIN_US <= microsecond <= MAX_US else None


def text_in_utc(text: bytes) -> bytes:
    """The timestamptz's text in UTC. Raises RefusedError if the text is not a timestamptz."""
    if text in INFINITIES:
        return text
    return timestamptz_text(_instant(text) - EPOCH_2000_US)


def fast_timestamptz(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    array = cast_plain(texts, f"^{_PLAIN_DATE} {PLAIN_TIME}{_PLAIN_OFFSET}$", arrow)
    # 0001-01-01 00:00:00+01 is in the plain form, but its instant is in 1 BC
    return _between(array, pa.scalar(MIN_US, arrow), pa.scalar(MAX_US, arrow))


def _between(array: pa.Array, low: pa.Scalar, high: pa.Scalar) -> pa.Array:
    inside = pc.and_(pc.greater_equal(array, low), pc.less_equal(array, high))
    return pc.if_else(inside, array, pa.scalar(None, array.type))


def careful_timestamptz(text: bytes, _arrow: pa.DataType) -> int | None:
    if text in INFINITIES:
        return None
    microsecond = _instant(text)
    return microsecond if MIN_US <= microsecond <= MAX_US else None


load_date = TwoPathLoader(fast_date, careful_date)

load_timestamp = TwoPathLoader(fast_timestamp, careful_timestamp)

_load_instant = TwoPathLoader(fast_timestamptz, careful_timestamptz)


def load_timestamptz(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    loaded = _load_instant(column_type, values)
    in_utc = {i: text_in_utc(text.encode("ascii")).decode("ascii") for i, text in loaded.unrepresentable.items()}
    return LoadedColumn(loaded.array, in_utc)


def _day(parts: re.Match[bytes]) -> int:
    """Days since 1970-01-01, in any year: the calendar repeats every 400 years, or 146097 days."""
    year = int(parts["year"])
    if year == 0:
        raise RefusedError("a date with a valid year (1 BC is followed by 1 AD)")
    if parts["bc"]:
        year = 1 - year
    cycle, year_of_cycle = divmod(year, 400)
    try:
        same_day = datetime.date(400 + year_of_cycle, int(parts["month"]), int(parts["day"]))
    except ValueError:
        raise RefusedError("a valid calendar date") from None
    return same_day.toordinal() + (cycle - 1) * 146_097 - _EPOCH


def _instant(text: bytes) -> int:
    """Microseconds since 1970-01-01 00:00:00 UTC."""
    parts = _TIMESTAMPTZ_TEXT.fullmatch(text)
    if parts is None:
        raise RefusedError(
            "a timestamp as YYYY-MM-DD HH:MM:SS[.ffffff]±HH[:MM[:SS]]; the sender's DateStyle must be ISO"
        )
    return _local_microsecond(parts) - _offset_seconds(parts) * 1_000_000


def _local_microsecond(parts: re.Match[bytes]) -> int:
    """Microseconds since 1970-01-01 00:00:00 in local time, ignoring the offset."""
    hour, minute, second = int(parts["hour"]), int(parts["minute"]), int(parts["second"])
    if hour > 23 or minute > 59 or second > 59:
        raise RefusedError("a time of day from 00:00:00 to 23:59:59.999999")
    fraction = int((parts["fraction"] or b"0").ljust(6, b"0"))
    return _day(parts) * DAY_US + (hour * 3600 + minute * 60 + second) * 1_000_000 + fraction


def _offset_seconds(parts: re.Match[bytes]) -> int:
    minutes, seconds = int(parts["minutes"] or 0), int(parts["seconds"] or 0)
    if minutes > 59 or seconds > 59:
        raise RefusedError("a timestamp with a UTC offset in hours, minutes and seconds")
    offset = int(parts["hours"]) * 3600 + minutes * 60 + seconds
    return -offset if parts["sign"] == b"-" else offset


def binary_date_text(value: bytes) -> bytes:
    days = number(INT32, value, "a date of 4 bytes")
    if not is_date(days):
        raise RefusedError("a date in PostgreSQL's range")
    return date_text(days)


def binary_timestamp_text(value: bytes) -> bytes:
    return timestamp_text(_unpack_timestamp(value))


def binary_timestamptz_text(value: bytes) -> bytes:
    return timestamptz_text(_unpack_timestamp(value))


def _unpack_timestamp(value: bytes) -> int:
    microseconds = number(INT64, value, "a timestamp of 8 bytes")
    if not is_timestamp(microseconds):
        raise RefusedError("a timestamp in PostgreSQL's range")
    return microseconds


def fast_binary_date(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    return _from_epoch_2000(number_column(values, "i4", pa.int32()), MIN_DAY, MAX_DAY, EPOCH_2000).cast(arrow)


def fast_binary_timestamp(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    return _from_epoch_2000(number_column(values, "i8", pa.int64()), MIN_US, MAX_US, EPOCH_2000_US).cast(arrow)


def _from_epoch_2000(numbers: pa.Array, low: int, high: int, epoch: int) -> pa.Array:
    """Converts numbers that count from 2000 to count from 1970; NULL unless the result is between low and high."""
    arrow = numbers.type
    inside = _between(numbers, pa.scalar(low - epoch, arrow), pa.scalar(high - epoch, arrow))
    return pc.add(inside, pa.scalar(epoch, arrow))


def timestamp_type(typmod: int) -> ColumnType:
    name = with_modifier("timestamp", typmod)
    return ColumnType(name, pa.timestamp("us"), True, load_timestamp, binary_timestamp_text, fast_binary_timestamp)


def timestamptz_type(typmod: int) -> ColumnType:
    name, arrow, fast = with_modifier("timestamptz", typmod), pa.timestamp("us", "UTC"), fast_binary_timestamp
    return ColumnType(name, arrow, True, load_timestamptz, binary_timestamptz_text, fast, to_utc=text_in_utc)


TYPES: TypeTable = {
    1082: always(ColumnType("date", pa.date32(), True, load_date, binary_date_text, fast_binary_date)),
    1114: timestamp_type,
    1184: timestamptz_type,
}
