"""Prints dates and times as PostgreSQL does with DateStyle ISO, from its internal numbers.

Dates are days, and timestamps are microseconds, since 2000-01-01, in any year; the ends of the integer types are the
infinities. Times of day are microseconds.
"""

from __future__ import annotations

import datetime

DAY_US = 86_400_000_000

_EPOCH = datetime.date(2000, 1, 1).toordinal()

_DAYS_OF_400_YEARS = 146_097

_INFINITE_DAYS = {2**31 - 1: b"infinity", -(2**31): b"-infinity"}

_INFINITE_US = {2**63 - 1: b"infinity", -(2**63): b"-infinity"}


def is_date(days: int) -> bool:
    """PostgreSQL's IS_VALID_DATE: 4714-11-24 BC to 5874897-12-31, or infinite."""
    return -2_451_545 <= days < 2_145_031_949 or days in _INFINITE_DAYS


def is_timestamp(microseconds: int) -> bool:
    """PostgreSQL's IS_VALID_TIMESTAMP: 4714-11-24 BC to the end of 294276, or infinite.

    The end itself is not valid, but PostgreSQL rounds a timestamp(3) to it after its check.
    """
    return -211_813_488_000_000_000 <= microseconds <= 9_223_371_331_200_000_000 or microseconds in _INFINITE_US


def date_text(days: int) -> bytes:
    if days in _INFINITE_DAYS:
        return _INFINITE_DAYS[days]
    date, era = _date(days)
    return f"{date}{era}".encode("ascii")


def timestamp_text(microseconds: int) -> bytes:
    return _timestamp_text(microseconds, "")


def timestamptz_text(microseconds: int) -> bytes:
    """The text under TimeZone UTC."""
    return _timestamp_text(microseconds, "+00")


def _timestamp_text(microseconds: int, offset: str) -> bytes:
    if microseconds in _INFINITE_US:
        return _INFINITE_US[microseconds]
    days, time = divmod(microseconds, DAY_US)
    date, era = _date(days)
    return f"{date} {time_of_day(time)}{offset}{era}".encode("ascii")


def time_of_day(microseconds: int) -> str:
    """HH:MM:SS and as many decimals as needed; the hours may exceed 24."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    decimals = f".{fraction:06d}".rstrip("0") if fraction else ""
    return f"{hour:02d}:{minute:02d}:{second:02d}{decimals}"


def _date(days: int) -> tuple[str, str]:
    """Date and era. The calendar repeats every 400 years."""
    cycle, day_of_cycle = divmod(days + _EPOCH - 1, _DAYS_OF_400_YEARS)
    same_day = datetime.date.fromordinal(day_of_cycle + 1)
    year = same_day.year + 400 * cycle
    era = "" if year > 0 else " BC"
    return f"{year if year > 0 else 1 - year:04d}-{same_day.month:02d}-{same_day.day:02d}", era
