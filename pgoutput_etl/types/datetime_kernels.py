"""Kernels: cells of one column to dates and timestamps. They take and give what those of number_kernels.py do."""

from __future__ import annotations

from typing import Any

import numpy

from pgoutput_etl.compiled import compiled, load_word
from pgoutput_etl.types.digits import (
    NO_DIGITS,
    days_in_month,
    days_since_1970,
    digits_at_end,
    in_network_order,
    is_like,
    two_digits,
)
from pgoutput_etl.types.number_kernels import BINARY

np: Any = numpy  # its stubs know nothing of numba's scalars
_8, _16, _32, _40, _48, _56 = (np.uint64(number) for number in (8, 16, 32, 40, 48, 56))
_0 = np.uint64(0)


def _form(text: str) -> tuple[Any, Any]:
    """A form for is_like, with 0 where it has a digit: its own word, and its slack."""
    slack = bytes(0x76 if character == "0" else 0x7F for character in text)
    return np.uint64(int.from_bytes(text.encode(), "little")), np.uint64(int.from_bytes(slack, "little"))


_YEAR_MONTH, _YEAR_MONTH_SLACK = _form("0000-00-")
_MONTH_DAY, _MONTH_DAY_SLACK = _form("00-00-00")
_DAY_HOUR, _DAY_HOUR_SLACK = _form("00 00:00")
_TIME, _TIME_SLACK = _form("00:00:00")
_EPOCH_2000 = 10_957  # days from 1970
_DAY_US = 86_400_000_000
_EPOCH_2000_US = _EPOCH_2000 * _DAY_US
# Of the years 1 to 9999, since 1970.
_LEAST_DAY, _MOST_DAY = -719_162, 2_932_896
_LEAST_US, _MOST_US = _LEAST_DAY * _DAY_US, (_MOST_DAY + 1) * _DAY_US - 1
_POINT, _COLON, _PLUS, _MINUS = np.uint8(0x2E), np.uint8(0x3A), np.uint8(0x2B), np.uint8(0x2D)
_TENS = np.array([10**power for power in range(7)], np.int64)


@compiled
def dates(data: Any, at: Any, size: Any, chosen: Any, out: Any, valid: Any, odd: Any) -> int:
    odds = 0
    for i in range(chosen.shape[0]):
        t = chosen[i]
        length = size[t] if t >= 0 else np.int32(-1)
        valid[i] = length >= 0
        out[i] = 0
        if length < 0:
            continue
        p = np.uint64(at[t])
        days = np.int64(_MOST_DAY + 1)
        if length == 10:
            first = load_word(data, p) ^ _YEAR_MONTH
            last = load_word(data, p + np.uint64(2)) ^ _MONTH_DAY
            if is_like(first, _YEAR_MONTH_SLACK) and is_like(last, _MONTH_DAY_SLACK):
                year = two_digits(first, _0) * 100 + two_digits(first, _16)
                month, day = two_digits(first, _40), two_digits(last, _48)
                if year >= 1 and 1 <= month <= 12 and 1 <= day <= days_in_month(year, month):
                    days = days_since_1970(year, month, day)
        elif length == BINARY | 4:
            number = in_network_order(load_word(data, p - np.uint64(4)))
            days = np.int64(np.int32(number & np.uint64(0xFFFFFFFF))) + _EPOCH_2000
        if _LEAST_DAY <= days <= _MOST_DAY:
            out[i] = days
        else:
            odd[odds] = i
            odds += 1
    return odds


@compiled
def timestamps(data: Any, at: Any, size: Any, chosen: Any, with_zone: Any, out: Any, valid: Any, odd: Any) -> int:
    odds = 0
    for i in range(chosen.shape[0]):
        t = chosen[i]
        length = np.int64(size[t]) if t >= 0 else np.int64(-1)
        valid[i] = length >= 0
        out[i] = 0
        if length < 0:
            continue
        p = np.uint64(at[t])
        instant = np.int64(_MOST_US + 1)
        if length == BINARY | 8:
            sent = np.int64(in_network_order(load_word(data, p)))
            if _LEAST_US - _EPOCH_2000_US <= sent <= _MOST_US - _EPOCH_2000_US:
                instant = sent + _EPOCH_2000_US
        elif 19 <= length <= 32:
            # what stands before the zone, and how many microseconds east of UTC the zone is
            local, east, is_read = length, np.int64(0), True
            if with_zone:
                is_read = False
                sign = data[p + np.uint64(length - 3)]
                if sign == _PLUS or sign == _MINUS:
                    local = length - 3
                    hours = digits_at_end(load_word(data, p + np.uint64(length) - _8), np.uint64(2))
                    is_read = hours != NO_DIGITS
                    east = np.int64(hours) * 3_600_000_000
                elif sign == _COLON:
                    local = length - 6
                    sign = data[p + np.uint64(local)]
                    minutes = digits_at_end(load_word(data, p + np.uint64(length) - _8), np.uint64(2))
                    hours = digits_at_end(load_word(data, p + np.uint64(length) - _8 - np.uint64(3)), np.uint64(2))
                    is_read = (sign == _PLUS or sign == _MINUS) and hours != NO_DIGITS and minutes <= np.uint64(59)
                    east = (np.int64(hours) * 60 + np.int64(minutes)) * 60_000_000
                if sign == _MINUS:
                    east = -east
            fraction = np.int64(0)
            if is_read and local > 19:
                decimals = local - 20
                is_read = 1 <= decimals <= 6 and data[p + np.uint64(19)] == _POINT
                if is_read:
                    digits = digits_at_end(load_word(data, p + np.uint64(local) - _8), np.uint64(decimals))
                    is_read = digits != NO_DIGITS
                    fraction = np.int64(digits) * _TENS[6 - decimals]
            if is_read and local >= 19:
                first = load_word(data, p) ^ _YEAR_MONTH
                middle = load_word(data, p + _8) ^ _DAY_HOUR
                last = load_word(data, p + np.uint64(11)) ^ _TIME
                if (
                    is_like(first, _YEAR_MONTH_SLACK)
                    and is_like(middle, _DAY_HOUR_SLACK)
                    and is_like(last, _TIME_SLACK)
                ):
                    year = two_digits(first, _0) * 100 + two_digits(first, _16)
                    month, day = two_digits(first, _40), two_digits(middle, _0)
                    hour, minute, second = two_digits(last, _0), two_digits(last, np.uint64(24)), two_digits(last, _48)
                    is_day = year >= 1 and 1 <= month <= 12 and 1 <= day <= days_in_month(year, month)
                    if is_day and hour <= 23 and minute <= 59 and second <= 59:
                        seconds = (hour * 60 + minute) * 60 + second
                        days = days_since_1970(year, month, day)
                        instant = days * _DAY_US + seconds * 1_000_000 + fraction - east
        if _LEAST_US <= instant <= _MOST_US:
            out[i] = instant
        else:
            odd[odds] = i
            odds += 1
    return odds
