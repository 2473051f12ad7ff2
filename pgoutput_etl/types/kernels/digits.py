"""Arithmetic for kernels: parses numbers and dates eight bytes of text at a time, without a loop over digits.

A word is eight bytes in little-endian order (jit.load_word). All functions take and return scalars.
"""

from __future__ import annotations

from typing import Any

from pgoutput_etl.jit import inlined, np

_ZEROS = np.uint64(0x3030303030303030)

_HIGH_BITS = np.uint64(0x8080808080808080)

_TO_NINE = np.uint64(0x7676767676767676)  # added to a byte, stays below 0x80 only for 0 to 9

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)

_PAIRS = np.uint64(0x00FF00FF00FF00FF)

_FOURS = np.uint64(0x0000FFFF0000FFFF)

_TEN_AND_ONE = np.uint64(2561)  # 10 * 2**8 + 1

_HUNDRED_AND_ONE = np.uint64(6553601)  # 100 * 2**16 + 1

_MYRIAD_AND_ONE = np.uint64(42949672960001)  # 10000 * 2**32 + 1

_8, _16, _24, _32, _40, _48, _56, _64 = (np.uint64(bits) for bits in (8, 16, 24, 32, 40, 48, 56, 64))

_0, _1 = np.uint64(0), np.uint64(1)

_TEN = np.uint64(10)

_BEFORE_1970 = 719_163

NO_DAY = np.int64(1 << 40)

NO_DIGITS = np.uint64(0xFFFFFFFFFFFFFFFF)

LOW_32 = np.uint64(0xFFFFFFFF)


@inlined
def digits_at_end(word: Any, count: Any) -> Any:
    """The number in the last `count` (a uint64, 1 to 8) bytes of the word, or NO_DIGITS."""
    mask = _ALL << (_64 - count * _8)
    digits = (word ^ _ZEROS) & mask
    if ((digits + _TO_NINE) | digits) & _HIGH_BITS != _0:
        return NO_DIGITS
    digits = (digits * _TEN_AND_ONE >> _8) & _PAIRS
    digits = (digits * _HUNDRED_AND_ONE >> _16) & _FOURS
    return digits * _MYRIAD_AND_ONE >> _32


@inlined
def pairs(digits: Any) -> Any:
    """For a word of digits as bytes of 0 to 9, replaces each byte by the number that it forms with the next byte."""
    return digits * _TEN + (digits >> _8)


@inlined
def byte_swapped(word: Any) -> Any:
    low = np.uint64(255)
    swapped = (word & low) << _56 | (word >> _8 & low) << _48 | (word >> _16 & low) << _40 | (word >> _24 & low) << _32
    return swapped | (word >> _32 & low) << _24 | (word >> _40 & low) << _16 | (word >> _48 & low) << _8 | word >> _56


@inlined
def has_form(difference: Any, slack: Any) -> Any:
    """True if a word matches a form.

    difference: the word XOR the form, in which each digit is "0". slack: 0x76 per digit, 0x7F per other character.
    """
    return ((difference + slack) | difference) & _HIGH_BITS == _0


# Per month of a common year, then of a leap year, indexed by month number (0, 13, and above have no days): the number
# of its days, and of the days before it.
_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31, 0, 0, 0)

_LEAP_LENGTHS = (0, 31, 29, *_LENGTHS[3:])

_IN_MONTH = np.array([*_LENGTHS, *_LEAP_LENGTHS], np.uint64)

_BEFORE_MONTH = np.array([sum(lengths[:m]) for lengths in (_LENGTHS, _LEAP_LENGTHS) for m in range(16)], np.uint64)


@inlined
def days_since_1970(year: Any, month: Any, day: Any) -> Any:
    """Days from 1970-01-01 to a date in the years 1 to 9999, from uint64 parts; NO_DAY for an invalid date."""
    is_leap = np.uint64((year & np.uint64(3) == _0) & ((year % np.uint64(25) != _0) | (year & np.uint64(15) == _0)))
    index = (is_leap << np.uint64(4)) + min(month, np.uint64(15))
    # unsigned: year 0 and day 0 wrap around and are too large
    if (year - _1 >= np.uint64(9999)) | (day - _1 >= _IN_MONTH[index]):
        return NO_DAY
    years = year - _1
    days = years * np.uint64(365) + (years >> np.uint64(2)) - years // np.uint64(100) + years // np.uint64(400)
    return np.int64(days + _BEFORE_MONTH[index] + day) - _BEFORE_1970


@inlined
def wide_product(a: Any, b: Any) -> Any:
    """The lower and upper half of the product of two uint64."""
    a_low, a_high, b_low, b_high = a & LOW_32, a >> _32, b & LOW_32, b >> _32
    low = a_low * b_low
    middle = a_high * b_low + (low >> _32)
    other = a_low * b_high + (middle & LOW_32)
    return other << _32 | low & LOW_32, a_high * b_high + (middle >> _32) + (other >> _32)
