"""time, timetz, and interval, as PostgreSQL's text, because Delta has no types for them.

A time may be 24:00:00. An interval is three independent numbers: months, days, and microseconds. Its text depends on
the sender's IntervalStyle, which must be postgres: any other text is rejected, so that equal intervals have equal
texts. (Some texts, such as 04:05:06, occur in several styles, always with the same value.)

Since PostgreSQL 17, the largest and smallest intervals are infinity and -infinity; before, they were 178956970 years
and so on. The binary form doesn't show which one is meant, and is read as infinity.
"""

from __future__ import annotations

import math
import re
import struct

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.types.binary import INT64, number, unpacked
from pgoutput_etl.types.column import ColumnType, RefusedError, TwoPathLoader, TypeTable
from pgoutput_etl.types.datetime_format import DAY_US, time_of_day
from pgoutput_etl.types.strings import string_with_modifier

_TIMETZ = struct.Struct(">qi")

_INTERVAL = struct.Struct(">qii")  # microseconds, days, months

_OFFSET_LIMIT = 16 * 3600  # TZDISP_LIMIT

_INFINITIES = {
    (2**63 - 1, 2**31 - 1, 2**31 - 1): b"infinity",
    (-(2**63), -(2**31), -(2**31)): b"-infinity",
}

_EXPECTED = "an interval in the form 1 year 2 mons 3 days 04:05:06.789; the sender's IntervalStyle must be postgres"

# The fast path: nothing negative, with a time.
_PLAIN = (
    "^(?:(?:1 year|(?:[2-9]|[1-9][0-9]{1,7}) years) )?(?:(?:1 mon|(?:[2-9]|1[01]) mons) )?"
    "(?:(?:1 day|(?:[2-9]|[1-9][0-9]{1,8}) days) )?"
    r"(?:[0-9]{2}|[1-9][0-9]{2,8}):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{0,5}[1-9])?$"
)

_ZERO_TIME = " 00:00:00$"  # not printed after years, months, or days

_NUMBER = rb"[+-]?[0-9]{1,10}"

_INTERVAL_TEXT = re.compile(
    rb"(?:(?P<years>" + _NUMBER + rb") years?)? ?(?:(?P<months>" + _NUMBER + rb") mons?)? ?"
    rb"(?:(?P<days>" + _NUMBER + rb") days?)? ?"
    rb"(?:(?P<sign>[+-]?)(?P<hours>[0-9]{2,10}):(?P<minutes>[0-9]{2}):(?P<seconds>[0-9]{2})"
    rb"(?:\.(?P<fraction>[0-9]{1,6}))?)?"
)


def fast_interval(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    plain = pc.and_not(pc.match_substring_regex(texts, _PLAIN), pc.match_substring_regex(texts, _ZERO_TIME))
    return pc.if_else(plain, texts, None).cast(arrow)


def careful_interval(text: bytes, _arrow: pa.DataType) -> str:
    """The text. Raises RefusedError unless PostgreSQL prints the parsed interval as exactly this text."""
    if text not in _INFINITIES.values():
        parts = _INTERVAL_TEXT.fullmatch(text)
        if parts is None or not _is_printed(text, *_parse(parts)):
            raise RefusedError(_EXPECTED)
    return text.decode("ascii")


def _parse(parts: re.Match[bytes]) -> tuple[int, int, int]:
    """The interval's microseconds, days, and months, as PostgreSQL stores it."""
    months = 12 * int(parts["years"] or 0) + int(parts["months"] or 0)
    seconds = (int(parts["hours"] or 0) * 60 + int(parts["minutes"] or 0)) * 60 + int(parts["seconds"] or 0)
    microseconds = seconds * 1_000_000 + int((parts["fraction"] or b"0").ljust(6, b"0"))
    return -microseconds if parts["sign"] == b"-" else microseconds, int(parts["days"] or 0), months


def _is_printed(text: bytes, microseconds: int, days: int, months: int) -> bool:
    in_range = -(2**63) <= microseconds < 2**63 and all(-(2**31) <= count < 2**31 for count in (days, months))
    return in_range and _print(microseconds, days, months) == text


load_interval = TwoPathLoader(fast_interval, careful_interval)


def interval_text(value: bytes) -> bytes:
    microseconds, days, months = unpacked(_INTERVAL, value, "an interval of 16 bytes")
    infinite = _INFINITIES.get((microseconds, days, months))
    return infinite or _print(microseconds, days, months)


def _print(microseconds: int, days: int, months: int) -> bytes:
    """EncodeInterval in style postgres: after a negative field, a positive one also has a sign."""
    years, months = int(months / 12), int(math.fmod(months, 12))  # rounded toward zero, as in C
    text = ""
    plus = ""
    for count, unit in ((years, "year"), (months, "mon"), (days, "day")):
        if count:
            text += f"{' ' if text else ''}{plus if count > 0 else ''}{count} {unit}{'' if count == 1 else 's'}"
            plus = "+" if count < 0 else ""
    if microseconds or not text:
        sign = "-" if microseconds < 0 else plus
        text += f"{' ' if text else ''}{sign}{time_of_day(abs(microseconds))}"
    return text.encode("ascii")


def time_text(value: bytes) -> bytes:
    return _time(number(INT64, value, "a time of 8 bytes")).encode("ascii")


def timetz_text(value: bytes) -> bytes:
    """timetz_send: int64 microseconds, int32 seconds west of UTC. The text counts east."""
    microseconds, west = unpacked(_TIMETZ, value, "a time with time zone of 12 bytes")
    if abs(west) >= _OFFSET_LIMIT:
        raise RefusedError("a time with a UTC offset of less than 16 hours")
    minutes, second = divmod(abs(west), 60)
    hour, minute = divmod(minutes, 60)
    offset = f"{'-' if west > 0 else '+'}{hour:02d}"
    offset += f":{minute:02d}" if minute or second else ""
    offset += f":{second:02d}" if second else ""
    return f"{_time(microseconds)}{offset}".encode("ascii")


def _time(microseconds: int) -> str:
    if not 0 <= microseconds <= DAY_US:
        raise RefusedError("a time from 00:00:00 to 24:00:00")
    return time_of_day(microseconds)


# Bits in the typmod's upper half, numbered as in INTERVAL_MASK.
_FIELDS = (
    (1 << 2, "year"),
    (1 << 1, "month"),
    (1 << 3, "day"),
    (1 << 10, "hour"),
    (1 << 11, "minute"),
    (1 << 12, "second"),
)

_ALL_FIELDS = 0x7FFF

_FULL_PRECISION = 0xFFFF


def interval_type(typmod: int) -> ColumnType:
    """typmod: a mask of fields in the upper half, and the precision in the lower half."""
    name = "interval"
    if typmod >= 0:
        mask, precision = typmod >> 16 & _ALL_FIELDS, typmod & 0xFFFF
        fields = [] if mask == _ALL_FIELDS else [field for bit, field in _FIELDS if mask & bit]
        name += "".join(f" {field}" for field in fields[:1]) + "".join(f" to {field}" for field in fields[1:][-1:])
        name += "" if precision == _FULL_PRECISION else f"({precision})"
    return ColumnType(name, pa.string(), False, load_interval, interval_text)


TYPES: TypeTable = {
    1083: string_with_modifier("time", time_text),
    1186: interval_type,
    1266: string_with_modifier("timetz", timetz_text),
}
