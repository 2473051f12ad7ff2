"""Commit times: microseconds since 2000-01-01 UTC (protocol chapter, TimestampTz), and ISO 8601."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone

EPOCH = datetime(2000, 1, 1, tzinfo=timezone.utc)


def time_of(microseconds: int) -> datetime:
    """Raises OverflowError after the year 9999."""
    return EPOCH + timedelta(microseconds=microseconds)


def microseconds_of(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def parse_time(text: str) -> datetime:
    """Parses ISO 8601; the time is UTC if it has no time zone. Raises ValueError."""
    try:
        time = datetime.fromisoformat(text.removesuffix("Z") + ("+00:00" if text.endswith("Z") else ""))
    except ValueError:
        raise ValueError(f"not a time: {text!r} (expected ISO 8601, such as 2026-03-01T02:13:00Z)") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def parse_duration(text: str) -> timedelta:
    """Parses 60s, 90m, 36h, or 2d. Raises ValueError."""
    match = re.fullmatch(r"([0-9]{1,5})([smhd])", text)
    if match is None:
        raise ValueError(f"not a duration: {text!r} (expected seconds, minutes, hours or days, such as 60s, 36h or 2d)")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


POSTGRES_EPOCH_MICROSECONDS = int(EPOCH.timestamp()) * 1_000_000
