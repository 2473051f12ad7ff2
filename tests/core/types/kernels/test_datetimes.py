"""Dates and times from text, compared with Python's calendar: each field with all values of two digits."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from pgoutput_etl import jit
from pgoutput_etl.types import ValueTextError, column_type, load_text
from pgoutput_etl.types.kernels import datetimes
from pgoutput_etl.types.kernels.numbers import ODD

pytestmark = pytest.mark.skipif(not jit.AVAILABLE, reason="kernels need numba")

TIMESTAMPTZ = 1184
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
YEARS = (0, 1, 3, 4, 99, 100, 400, 1582, 1899, 1900, 1970, 2000, 2023, 2024, 2100, 9996, 9999)


def read(texts: list[str], *with_zone: bool) -> list[int | None]:
    """The kernel's results; None for the values that it leaves to the loaders."""
    head = b"1234567"
    data = np.frombuffer(b"".join(head + text.encode() for text in texts), np.uint8)
    size = np.array([len(text) for text in texts], np.int32)
    at = (np.cumsum(size + len(head)) - size).astype(np.uint32)
    chosen = np.arange(len(texts), dtype=np.int32)
    states = np.empty(len(texts), np.uint8)
    if with_zone:
        out = np.empty(len(texts), np.int64)
        datetimes.timestamps(data, at, size, chosen, with_zone[0], out, states)
    else:
        out = np.empty(len(texts), np.int32)
        datetimes.dates(data, at, size, chosen, out, states)
    assert states.all()
    return [None if state == ODD else int(number) for number, state in zip(out, states, strict=True)]


def days(year: int, month: int, day: int) -> int | None:
    try:
        return (date(year, month, day) - EPOCH.date()).days
    except ValueError:
        return None


def test_every_day_of_the_calendar_and_no_other() -> None:
    parts = [*product(YEARS, range(100), range(100))]
    texts = [f"{year:04}-{month:02}-{day:02}" for year, month, day in parts]
    expected = [days(*date_parts) for date_parts in parts]
    assert read(texts) == expected
    midnights = read([f"{text} 00:00:00" for text in texts], False)
    assert midnights == [None if number is None else number * 86_400_000_000 for number in expected]


def test_every_year_has_the_right_length() -> None:
    ends = [(year, month, day) for year in range(1, 10_000) for month, day in ((1, 1), (2, 28), (2, 29), (12, 31))]
    assert read([f"{year:04}-{month:02}-{day:02}" for year, month, day in ends]) == [days(*end) for end in ends]


def micros(instant: datetime) -> int:
    return (instant - EPOCH) // timedelta(microseconds=1)


def test_times_of_day_with_fractions() -> None:
    times = [*product((12,), range(100), (34,)), *product((12,), (34,), range(100)), *product(range(100), (0,), (59,))]
    fractions = ("", ".", ".1", ".12", ".123456", ".000001", ".1234567", ".1x", ",123")
    for fraction in fractions:
        instants = read([f"2024-02-29 {h:02}:{m:02}:{s:02}{fraction}" for h, m, s in times], False)
        for (hour, minute, second), instant in zip(times, instants, strict=True):
            is_valid = hour < 24 and minute < 60 and second < 60 and fraction not in (".", ".1234567", ".1x", ",123")
            microsecond = int(fraction[1:].ljust(6, "0")) if is_valid and fraction else 0
            expected = datetime(2024, 2, 29, hour, minute, second, microsecond, UTC) if is_valid else None
            assert instant == (None if expected is None else micros(expected)), (hour, minute, second, fraction)


def test_zones_with_hours_and_minutes() -> None:
    offsets = [*product(range(100), (0, 30)), *product((3,), range(100))]
    zones = [(sign, *offset) for sign in "+- x" for offset in offsets]
    for fraction, microsecond in (("", 0), (".5", 500_000), (".123456", 123_456)):
        local = micros(datetime(2024, 1, 1, 2, 3, 4, microsecond, UTC))
        instants = read([f"2024-01-01 02:03:04{fraction}{sign}{h:02}:{m:02}" for sign, h, m in zones], True)
        short = read([f"2024-01-01 02:03:04{fraction}{sign}{h:02}" for sign, h, _ in zones], True)
        for (sign, hours, minutes), instant, of_hours in zip(zones, instants, short, strict=True):
            east = (hours * 60 + minutes) * 60_000_000 * (-1 if sign == "-" else 1)
            is_zone = sign in "+-"
            assert instant == (local - east if is_zone and minutes < 60 else None), (sign, hours, minutes)
            if is_zone:
                assert of_hours == local - hours * 3_600_000_000 * (-1 if sign == "-" else 1), (sign, hours)
            else:
                assert of_hours is None


@pytest.mark.parametrize("at", range(29))
def test_a_wrong_character_is_never_accepted(at: int) -> None:
    text = "2024-02-29 12:34:56.123456+03"
    for character in map(chr, range(128)):
        changed = text[:at] + character + text[at + 1 :]
        (instant,) = read([changed], True)
        try:
            loaded = load_text(column_type(TIMESTAMPTZ, -1), [changed.encode()])
        except ValueTextError:
            assert instant is None, changed
        else:
            assert instant == loaded.array.cast(pa.int64())[0].as_py(), changed


def test_a_local_time_has_no_zone() -> None:
    assert read(["2024-02-29 12:34:56+00"], False) == [None]
    assert read(["2024-02-29 12:34:56", "2024-02-29 12:34:56.123"], True) == [None, None]
