"""Kernels for integer, boolean, and decimal columns, in text and binary form.

All column kernels share these arguments:

    data    the bytes of the tuples; the seven bytes before a value must also be readable (a length and a tuple's head)
    at      per tuple: the offset of the column's value in data
    size    per tuple: the value's length, with the bit BINARY if it is in binary form; negative if absent
    chosen  per requested value: its tuple, or -1 for NULL
    out     output: the numbers
    states  output: 0 for NULL, 1 for a value, ODD for a value that the kernel leaves to the type's loaders
"""

from __future__ import annotations

from typing import Any

from pgoutput_etl.jit import compiled, inlined, load_word, np
from pgoutput_etl.types.kernels.digits import NO_DIGITS, byte_swapped, digits_at_end, wide_product

BINARY = np.int32(1 << 30)  # flag in `size`: the value is in binary form

LENGTH = np.int32(BINARY - 1)

ODD = np.uint8(2)  # in `states`: the kernel is not certain of the value

_MINUS, _POINT, _ZERO = np.uint8(0x2D), np.uint8(0x2E), np.uint8(0x30)

_TRUE, _FALSE = np.uint8(0x74), np.uint8(0x66)

_0, _1, _8 = (np.uint64(number) for number in (0, 1, 8))

_TEN = np.uint64(10)

_TEN_8 = np.uint64(10**8)

_TEN_16 = np.uint64(10**16)


@inlined
def _digits_before(data: Any, end: Any, count: Any) -> Any:
    """The number in the `count` digits (1 to 19) before `end`, or NO_DIGITS."""
    number = digits_at_end(load_word(data, end - _8), np.uint64(min(count, 8)))
    is_number = number != NO_DIGITS
    if count > 8:
        upper = digits_at_end(load_word(data, end - _8 - _8), np.uint64(min(count, 16) - 8))
        is_number = is_number and upper != NO_DIGITS
        number += upper * _TEN_8
        if count > 16:
            # at most three digits, so the sum stays below 2**64
            upper = digits_at_end(load_word(data, end - _8 - _8 - _8), np.uint64(count - 16))
            is_number = is_number and upper != NO_DIGITS
            number += upper * _TEN_16
    return number if is_number else NO_DIGITS


@compiled
def integers(
    data: Any, at: Any, size: Any, chosen: Any, width: Any, low: Any, high: Any, out: Any, states: Any
) -> None:
    """width: bytes in binary form. low: magnitude of the lowest value; 0 for unsigned types. high: highest value."""
    for i in range(chosen.shape[0]):
        t = chosen[i]
        length = np.int64(size[t]) if t >= 0 else np.int64(-1)
        states[i] = length >= 0
        out[i] = 0
        if length < 0:
            continue
        end = np.uint64(at[t]) + np.uint64(length & LENGTH)
        if length & BINARY:
            if length & LENGTH == width:
                bits = np.uint64(64 - 8 * width)
                number = byte_swapped(load_word(data, end - _8)) << bits
                out[i] = np.int64(number) >> np.int64(bits) if low else np.int64(number >> bits)
            else:
                states[i] = ODD
            continue
        negative = length > 0 and data[np.uint64(at[t])] == _MINUS
        count = length - 1 if negative else length
        if count < 1 or count > 19 or (negative and low == _0):
            states[i] = ODD
            continue
        amount = _digits_before(data, end, count)
        if amount > (low if negative else high):  # NO_DIGITS always is
            states[i] = ODD
        else:
            out[i] = -np.int64(amount) if negative else np.int64(amount)


@compiled
def booleans(data: Any, at: Any, size: Any, chosen: Any, out: Any, states: Any) -> None:
    for i in range(chosen.shape[0]):
        t = chosen[i]
        length = size[t] if t >= 0 else np.int32(-1)
        states[i] = length >= 0
        out[i] = 0
        if length < 0:
            continue
        byte = data[np.uint64(at[t])] if length & LENGTH == 1 else np.uint8(255)
        # without a branch, because the outcome is unpredictable
        is_true = byte == (_TRUE if length == 1 else np.uint8(1))
        is_false = byte == (_FALSE if length == 1 else np.uint8(0))
        out[i] = is_true
        states[i] = ODD - np.uint8(is_true) - np.uint8(is_false)


_TENS = np.array([10**power for power in range(20)], np.uint64)

_NEGATIVE = np.uint64(0x4000)

_MYRIAD = np.uint64(10_000)


@compiled
def _binary_amount(head: Any, digits: Any, count: Any, precision: Any, scale: Any) -> tuple[Any, bool]:
    """The unscaled amount of a numeric in binary form, and True if it is certain.

    head: count of base-10000 digits, weight of the first digit, sign, decimals. digits: the last four digits.
    """
    sign = head >> np.uint64(16) & np.uint64(0xFFFF)
    if head >> np.uint64(48) != np.uint64(count) or np.int64(head & np.uint64(0xFFFF)) != scale:
        return _0, False
    amount = _0
    for k in range(count):
        digit = digits >> np.uint64(16 * (count - 1 - k)) & np.uint64(0xFFFF)
        if digit >= _MYRIAD:
            return _0, False
        amount = amount * _MYRIAD + digit
    if (sign != _0 and sign != _NEGATIVE) or (amount != _0) != (count > 0):
        return _0, False
    if amount == _0:
        return _0, sign == _0
    weight = np.int64(head << np.uint64(16)) >> np.int64(48)
    zeros = scale - 4 * (count - 1 - weight)  # to append to the last digit; if negative, to cut off
    if zeros < 0:
        divisor = _TENS[min(-zeros, 19)]
        if amount % divisor != _0:
            return _0, False
        amount //= divisor
    elif zeros > 18 or amount >= _TENS[18] // _TENS[zeros]:
        return _0, False
    else:
        amount *= _TENS[zeros]
    return amount, precision > 19 or amount < _TENS[min(precision, 19)]


@compiled
def _long_amount(data: Any, begin: Any, before: Any, scale: Any) -> tuple[Any, Any, Any]:
    """Lower and upper half of the amount, and its number of significant digits; 99 if the text isn't a number."""
    p = begin
    low, high, significant = _0, _0, 0
    for k in range(before + scale):
        if k == before:
            p += _1
        digit = np.uint64(data[p]) - np.uint64(_ZERO)
        p += _1
        if digit > np.uint64(9):
            return low, high, 99
        if significant or digit:
            significant += 1
        low, carry = wide_product(low, _TEN)
        high = high * _TEN + carry
        low += digit
        if low < digit:
            high += _1
    return low, high, significant


@compiled
def decimals(data: Any, at: Any, size: Any, chosen: Any, precision: Any, scale: Any, out: Any, states: Any) -> None:
    """out: per value, the lower and upper half of 128 bits."""
    point = np.uint64(scale + 1 if scale else 0)  # distance from the end of the text
    for i in range(chosen.shape[0]):
        t = chosen[i]
        length = np.int64(size[t]) if t >= 0 else np.int64(-1)
        states[i] = length >= 0
        out[2 * i] = _0
        out[2 * i + 1] = _0
        if length < 0:
            continue
        p = np.uint64(at[t])
        end = p + np.uint64(length & LENGTH)
        low, high, negative, is_number = _0, _0, False, False
        if length & BINARY:
            count = (length & LENGTH) // 2 - 4
            if length & 1 == 0 and 0 <= count <= 4:
                head = byte_swapped(load_word(data, p))
                negative = head >> np.uint64(16) & _NEGATIVE != _0
                low, is_number = _binary_amount(head, byte_swapped(load_word(data, end - _8)), count, precision, scale)
        else:
            negative = length > 0 and data[p] == _MINUS
            count = length - 1 if negative else length
            before = count - scale - 1 if scale else count
            is_number = before >= 1 and count <= 40 and (scale == 0 or data[end - point] == _POINT)
            if is_number and before + scale <= 16:
                low = _digits_before(data, end - point, before)
                is_number = low != NO_DIGITS
                if scale:
                    fraction = _digits_before(data, end, scale)
                    is_number = is_number and fraction != NO_DIGITS
                    low = low * _TENS[scale] + fraction
                is_number = is_number and (precision >= 16 or low < _TENS[precision])
            elif is_number:
                low, high, significant = _long_amount(data, p + _1 if negative else p, before, scale)
                is_number = significant <= precision
        if not is_number:
            states[i] = ODD
        elif negative:
            out[2 * i] = ~low + _1
            out[2 * i + 1] = ~high + (_1 if low == _0 else _0)
        else:
            out[2 * i] = low
            out[2 * i + 1] = high
