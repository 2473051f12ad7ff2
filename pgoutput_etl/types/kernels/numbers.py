"""Kernels: cells of one column to numbers, from text and binary form.

All of them take the same: `data`, the bytes of tuples; for each tuple `at`, where the column's value begins in them,
and `size`, how long it is, with the bit BINARY if it is in binary form, or less than 0 if there is none; for each value
that is wanted, `chosen`, its tuple, or -1 for NULL. They give numbers in `out`, 1 for a value and 0 for NULL in
`valid`, and in `odd` the values that they leave to the families' loaders: whatever they are not sure of. They return
how many these are. As a value stands behind its length and a tuple's head, the seven bytes before it may be read, too.
"""

from __future__ import annotations

from typing import Any

import numpy

from pgoutput_etl.jit import compiled, load_word
from pgoutput_etl.types.kernels.digits import NO_DIGITS, digits_at_end, in_network_order, wide_product

np: Any = numpy  # its stubs know nothing of numba's scalars


BINARY = np.int32(1 << 30)  # this bit of a size says that the value is in binary form

LENGTH = np.int32(BINARY - 1)

_MINUS, _POINT, _ZERO = np.uint8(0x2D), np.uint8(0x2E), np.uint8(0x30)

_TRUE, _FALSE = np.uint8(0x74), np.uint8(0x66)

_0, _1, _8 = (np.uint64(number) for number in (0, 1, 8))

_TEN = np.uint64(10)

_TEN_8 = np.uint64(10**8)

_TEN_16 = np.uint64(10**16)


@compiled
def integers(
    data: Any, at: Any, size: Any, chosen: Any, wide: Any, least: Any, most: Any, out: Any, valid: Any, odd: Any
) -> int:
    """wide: bytes in binary form. least: the lowest value's amount, 0 of an unsigned type; most: the highest value."""
    odds = 0
    for i in range(chosen.shape[0]):
        t = chosen[i]
        length = np.int64(size[t]) if t >= 0 else np.int64(-1)
        valid[i] = length >= 0
        out[i] = 0
        if length < 0:
            continue
        end = np.uint64(at[t]) + np.uint64(length & LENGTH)
        if length & BINARY:
            if length & LENGTH == wide:
                bits = np.uint64(64 - 8 * wide)
                number = in_network_order(load_word(data, end - _8)) << bits
                out[i] = np.int64(number) >> np.int64(bits) if least else np.int64(number >> bits)
            else:
                odd[odds] = i
                odds += 1
            continue
        negative = length > 0 and data[np.uint64(at[t])] == _MINUS
        count = length - 1 if negative else length
        if count < 1 or count > 19 or (negative and least == _0):
            odd[odds] = i
            odds += 1
            continue
        amount = digits_at_end(load_word(data, end - _8), np.uint64(min(count, 8)))
        is_number = amount != NO_DIGITS
        if count > 8:
            upper = digits_at_end(load_word(data, end - _8 - _8), np.uint64(min(count, 16) - 8))
            is_number = is_number and upper != NO_DIGITS
            amount += upper * _TEN_8
            if count > 16:
                # of three digits at most, so that the sum stays below 2**64
                upper = digits_at_end(load_word(data, end - _8 - _8 - _8), np.uint64(count - 16))
                is_number = is_number and upper != NO_DIGITS
                amount += upper * _TEN_16
        if not is_number or amount > (least if negative else most):
            odd[odds] = i
            odds += 1
        else:
            out[i] = -np.int64(amount) if negative else np.int64(amount)
    return odds


@compiled
def booleans(data: Any, at: Any, size: Any, chosen: Any, out: Any, valid: Any, odd: Any) -> int:
    odds = 0
    for i in range(chosen.shape[0]):
        t = chosen[i]
        length = size[t] if t >= 0 else np.int32(-1)
        valid[i] = length >= 0
        out[i] = 0
        if length < 0:
            continue
        byte = data[np.uint64(at[t])] if length & LENGTH == 1 else np.uint8(255)
        # without a branch, as no processor can guess which of both it is
        is_true = byte == (_TRUE if length == 1 else np.uint8(1))
        is_false = byte == (_FALSE if length == 1 else np.uint8(0))
        out[i] = is_true
        odd[odds] = i
        odds += 1 - (np.int64(is_true) + np.int64(is_false))
    return odds


_TENS = np.array([10**power for power in range(20)], np.uint64)

_NEGATIVE = np.uint64(0x4000)

_MYRIAD = np.uint64(10_000)


@compiled
def _sent_amount(head: Any, digits: Any, count: Any, precision: Any, scale: Any) -> tuple[Any, bool]:
    """The unscaled amount of a numeric in binary form, and whether it is sure.

    head: count of digits to the base of 10000, the first one's weight, sign, decimals; digits: the last four of them.
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
    more = scale - 4 * (count - 1 - weight)  # zeros that the last digit lacks, or has too many
    if more < 0:
        cut = _TENS[min(-more, 19)]
        if amount % cut != _0:
            return _0, False
        amount //= cut
    elif more > 18 or amount >= _TENS[18] // _TENS[more]:
        return _0, False
    else:
        amount *= _TENS[more]
    return amount, precision > 19 or amount < _TENS[min(precision, 19)]


@compiled
def _long_amount(data: Any, begin: Any, before: Any, scale: Any) -> tuple[Any, Any, Any]:
    """Lower and upper half of the amount, and how many digits it has without zeros before it; 99 if it is none."""
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
def decimals(
    data: Any, at: Any, size: Any, chosen: Any, precision: Any, scale: Any, out: Any, valid: Any, odd: Any
) -> int:
    """out: of each value the lower and the upper half of 128 bits."""
    odds = 0
    point = np.uint64(scale + 1 if scale else 0)  # how far before the end it is
    for i in range(chosen.shape[0]):
        t = chosen[i]
        length = np.int64(size[t]) if t >= 0 else np.int64(-1)
        valid[i] = length >= 0
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
                head = in_network_order(load_word(data, p))
                negative = head >> np.uint64(16) & _NEGATIVE != _0
                low, is_number = _sent_amount(
                    head, in_network_order(load_word(data, end - _8)), count, precision, scale
                )
        else:
            negative = length > 0 and data[p] == _MINUS
            count = length - 1 if negative else length
            before = count - scale - 1 if scale else count
            is_number = before >= 1 and count <= 40 and (scale == 0 or data[end - point] == _POINT)
            if is_number and before + scale <= 16:
                low = digits_at_end(load_word(data, end - point - _8), np.uint64(min(before, 8)))
                is_number = low != NO_DIGITS
                if before > 8:
                    upper = digits_at_end(load_word(data, end - point - _8 - _8), np.uint64(before - 8))
                    is_number = is_number and upper != NO_DIGITS
                    low += upper * _TEN_8
                if scale:
                    fraction = digits_at_end(load_word(data, end - _8), np.uint64(min(scale, 8)))
                    is_number = is_number and fraction != NO_DIGITS
                    if scale > 8:
                        upper = digits_at_end(load_word(data, end - _8 - _8), np.uint64(scale - 8))
                        is_number = is_number and upper != NO_DIGITS
                        fraction += upper * _TEN_8
                    low = low * _TENS[scale] + fraction
                is_number = is_number and (precision >= 16 or low < _TENS[precision])
            elif is_number:
                low, high, significant = _long_amount(data, p + _1 if negative else p, before, scale)
                is_number = significant <= precision
        if not is_number:
            odd[odds] = i
            odds += 1
        elif negative:
            out[2 * i] = ~low + _1
            out[2 * i + 1] = ~high + (_1 if low == _0 else _0)
        else:
            out[2 * i] = low
            out[2 * i + 1] = high
    return odds
