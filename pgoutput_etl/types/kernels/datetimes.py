"""Kernels for date and timestamp columns. Their arguments are described in numbers.py."""

from __future__ import annotations

from typing import Any

from pgoutput_etl.jit import compiled, inlined, load_word, np
from pgoutput_etl.types.datetime_format import DAY_US
from pgoutput_etl.types.datetimes import EPOCH_2000, EPOCH_2000_US, MAX_DAY, MAX_US, MIN_DAY, MIN_US
from pgoutput_etl.types.kernels.digits import (
    NO_DAY,
    NO_DIGITS,
    byte_swapped,
    days_since_1970,
    digits_at_end,
    has_form,
    pairs,
)
from pgoutput_etl.types.kernels.numbers import BINARY, ODD

_1, _2, _3, _6, _8, _11, _16, _19, _20, _24 = (np.uint64(number) for number in (1, 2, 3, 6, 8, 11, 16, 19, 20, 24))

_23, _40, _48, _59, _60, _99, _100 = (np.uint64(number) for number in (23, 40, 48, 59, 60, 99, 100))

_BYTE = np.uint64(255)


def _form(text: str) -> tuple[Any, Any]:
    """Word and slack for has_form; `text` has 0 for each digit."""
    slack = bytes(0x76 if character == "0" else 0x7F for character in text)
    return np.uint64(int.from_bytes(text.encode(), "little")), np.uint64(int.from_bytes(slack, "little"))


_YEAR_MONTH, _YEAR_MONTH_SLACK = _form("0000-00-")

_MONTH_DAY, _MONTH_DAY_SLACK = _form("00-00-00")

_DAY_HOUR, _DAY_HOUR_SLACK = _form("00 00:00")

_TIME, _TIME_SLACK = _form("00:00:00")

_UTC = np.uint64(int.from_bytes(b"+00", "little"))

_POINT, _COLON, _PLUS, _MINUS = np.uint8(0x2E), np.uint8(0x3A), np.uint8(0x2B), np.uint8(0x2D)

_TENS = np.array([10**power for power in range(7)], np.uint64)

_NO_INSTANT = np.int64(1 << 62)


@compiled
def dates(data: Any, at: Any, size: Any, chosen: Any, out: Any, states: Any) -> None:
    for i in range(chosen.shape[0]):
        t = chosen[i]
        length = size[t] if t >= 0 else np.int32(-1)
        states[i] = length >= 0
        out[i] = 0
        if length < 0:
            continue
        p = np.uint64(at[t])
        days = np.int64(MAX_DAY + 1)
        if length == 10:
            first = load_word(data, p) ^ _YEAR_MONTH
            last = load_word(data, p + _2) ^ _MONTH_DAY
            if has_form(first, _YEAR_MONTH_SLACK) and has_form(last, _MONTH_DAY_SLACK):
                first, last = pairs(first), pairs(last)
                year = (first & _BYTE) * _100 + (first >> _16 & _BYTE)
                days = days_since_1970(year, first >> _40 & _BYTE, last >> _48 & _BYTE)
        elif length == BINARY | 4:
            number = byte_swapped(load_word(data, p - np.uint64(4)))
            days = np.int64(np.int32(number & np.uint64(0xFFFFFFFF))) + EPOCH_2000
        if MIN_DAY <= days <= MAX_DAY:
            out[i] = days
        else:
            states[i] = ODD


@inlined
def _zone(data: Any, end: Any) -> tuple[Any, Any]:
    """Length of the zone that ends at `end`, such as +00 or -03:30, or 0; and its offset east of UTC in
    microseconds."""
    size, sign = _3, data[end - _3]
    last = load_word(data, end - _8)
    if last >> _40 == _UTC:
        return size, np.int64(0)
    hours, minutes = digits_at_end(last, _2), np.uint64(0)
    if sign == _COLON:
        size, sign = _6, data[end - _6]
        hours, minutes = digits_at_end(load_word(data, end - _11), _2), hours
    if hours > _99 or minutes > _59 or (sign != _PLUS and sign != _MINUS):
        return np.uint64(0), np.int64(0)
    east = np.int64((hours * _60 + minutes) * _60) * 1_000_000
    return size, -east if sign == _MINUS else east


@inlined
def _local_time(data: Any, p: Any) -> Any:
    """Microseconds since 1970 from the 19 characters at p, such as 2000-01-01 00:00:00, or _NO_INSTANT."""
    first = load_word(data, p) ^ _YEAR_MONTH
    middle = load_word(data, p + _8) ^ _DAY_HOUR
    last = load_word(data, p + _11) ^ _TIME
    has_digits = has_form(first, _YEAR_MONTH_SLACK) & has_form(middle, _DAY_HOUR_SLACK) & has_form(last, _TIME_SLACK)
    first, middle, last = pairs(first), pairs(middle), pairs(last)
    year = (first & _BYTE) * _100 + (first >> _16 & _BYTE)
    days = days_since_1970(year, first >> _40 & _BYTE, middle & _BYTE)
    hour, minute, second = last & _BYTE, last >> _24 & _BYTE, last >> _48 & _BYTE
    if not (has_digits & (days != NO_DAY) & (hour <= _23) & (minute <= _59) & (second <= _59)):
        return _NO_INSTANT
    return days * DAY_US + np.int64((hour * _60 + minute) * _60 + second) * 1_000_000


@inlined
def _instant(data: Any, p: Any, length: Any, with_zone: Any) -> Any:
    """Microseconds since 1970 from the text at p, whose length is 19 to 32, or _NO_INSTANT."""
    size, east = length, np.int64(0)
    if with_zone:
        zone, east = _zone(data, p + length)
        size = length - zone
        if zone == np.uint64(0) or size < _19:
            return _NO_INSTANT
    fraction = np.int64(0)
    if size > _19:
        decimals = size - _20
        if decimals - _1 >= _6 or data[p + _19] != _POINT:
            return _NO_INSTANT
        digits = digits_at_end(load_word(data, p + size - _8), decimals)
        if digits == NO_DIGITS:
            return _NO_INSTANT
        fraction = np.int64(digits * _TENS[_6 - decimals])
    return _local_time(data, p) + fraction - east


@compiled
def timestamps(data: Any, at: Any, size: Any, chosen: Any, with_zone: Any, out: Any, states: Any) -> None:
    for i in range(chosen.shape[0]):
        t = chosen[i]
        length = np.int64(size[t]) if t >= 0 else np.int64(-1)
        states[i] = length >= 0
        out[i] = 0
        if length < 0:
            continue
        p = np.uint64(at[t])
        instant = _NO_INSTANT
        if length == BINARY | 8:
            sent = np.int64(byte_swapped(load_word(data, p)))
            if MIN_US - EPOCH_2000_US <= sent <= MAX_US - EPOCH_2000_US:
                instant = sent + EPOCH_2000_US
        elif 19 <= length <= 32:
            instant = _instant(data, p, np.uint64(length), with_zone)
        if MIN_US <= instant <= MAX_US:
            out[i] = instant
        else:
            states[i] = ODD
