"""Kernel for float columns. Its arguments are described in numbers.py.

Decimals are parsed with Lemire's algorithm ("Number Parsing at a Gigabyte per Second", 2021): the digits, as a 64-bit
integer, are multiplied by the power of ten, in 128 bits of which the leading ones are exact.
"""

from __future__ import annotations

from typing import Any

from pgoutput_etl.jit import compiled, load_word, np
from pgoutput_etl.types.kernels.digits import byte_swapped, wide_product
from pgoutput_etl.types.kernels.numbers import BINARY, LENGTH, ODD

_MINUS, _POINT, _ZERO, _E, _PLUS = (np.uint8(byte) for byte in b"-.0e+")

_0, _1, _2, _8, _9 = (np.uint64(number) for number in (0, 1, 2, 8, 9))

_TEN = np.uint64(10)

_ALL = np.uint64(2**64 - 1)

_LEAST_POWER, _MOST_POWER = -342, 308


def _first_128_bits(power: int) -> int:
    """The leading bits of 5**power, truncated; rounded up for powers from -27 to -1."""
    five: int = 5 ** abs(power)
    if power < 0:
        bits = (five - 1).bit_length()
        five = (1 << (bits + 127 if power >= -27 else 2 * bits + 128)) // five + 1
    bits = five.bit_length()
    return five << (128 - bits) if bits <= 128 else five >> (bits - 128)


_FIRST_BITS = (divmod(_first_128_bits(power), 2**64) for power in range(_LEAST_POWER, _MOST_POWER + 1))

_FIVES = np.array([half for both in _FIRST_BITS for half in both], np.uint64)

_UNCERTAIN = np.uint64(0x1FF)

_FRACTION = np.uint64(52)

_HIDDEN = np.uint64(1 << 52)


@compiled
def _leading_zeros(number: Any) -> Any:
    zeros = 0
    for bits in (32, 16, 8, 4, 2, 1):
        if number >> np.uint64(64 - bits) == _0:
            zeros += bits
            number <<= np.uint64(bits)
    return zeros


@compiled
def nearest_float8(digits: Any, power: Any) -> tuple[Any, bool]:
    """The bits of the float8 nearest to digits * 10**power, and True if they are certain."""
    if digits == _0:
        return _0, True
    if power < _LEAST_POWER or power > _MOST_POWER:
        return _0, False
    zeros = _leading_zeros(digits)
    digits <<= np.uint64(zeros)
    index = 2 * (power - _LEAST_POWER)
    low, high = wide_product(digits, _FIVES[index])
    if high & _UNCERTAIN == _UNCERTAIN:
        _low, more = wide_product(digits, _FIVES[index + 1])
        low += more
        if low < more:
            high += _1
    if low == _ALL:
        return _0, False
    upper = high >> np.uint64(63)
    shift = upper + _9
    mantissa = high >> shift
    exponent = (217706 * power >> 16) + 63 + np.int64(upper) - zeros + 1023
    # halfway between two floats: round to even
    if low <= _1 and -4 <= power <= 23 and mantissa & np.uint64(3) == _1 and mantissa << shift == high:
        mantissa -= _1
    mantissa = (mantissa + (mantissa & _1)) >> _1
    if mantissa >= _HIDDEN << _1:
        mantissa = _HIDDEN
        exponent += 1
    if exponent <= 0 or exponent >= 2047:
        return _0, False
    return mantissa & ~_HIDDEN | np.uint64(exponent) << _FRACTION, True


_HALF_A_UNIT = np.uint64(1 << 28)

_BELOW_FLOAT4 = np.uint64((1 << 29) - 1)

_LEAST_FLOAT4, _MOST_FLOAT4 = 2.0**-126, 3.4028234663852886e38


@compiled
def floats(
    data: Any,
    at: Any,
    size: Any,
    chosen: Any,
    width: Any,
    out: Any,
    bits: Any,
    as_float: Any,
    as_bits: Any,
    states: Any,
) -> None:
    """width: 8 or 4 bytes. bits: `out` viewed as unsigned integers. as_float, as_bits: two views of the same float64.

    Rounding the nearest float8 results in the nearest float4, unless the float8 is halfway between two.
    """
    for i in range(chosen.shape[0]):
        t = chosen[i]
        length = np.int64(size[t]) if t >= 0 else np.int64(-1)
        states[i] = length >= 0
        bits[i] = 0
        if length < 0:
            continue
        begin = np.uint64(at[t])
        end = begin + np.uint64(length & LENGTH)
        if length & BINARY:
            if length & LENGTH == width:
                bits[i] = byte_swapped(load_word(data, end - _8)) & (~_0 >> np.uint64(64 - 8 * width))
                if out[i] != out[i]:
                    out[i] = np.nan
            else:
                states[i] = ODD
            continue
        p = begin
        negative = p < end and data[p] == _MINUS
        if negative:
            p += _1
        mantissa, digits, before, after = _0, 0, 0, 0
        while p < end and np.uint64(data[p]) - np.uint64(_ZERO) <= _9:
            digit = np.uint64(data[p]) - np.uint64(_ZERO)
            mantissa = mantissa * _TEN + digit
            digits += digits > 0 or digit != _0
            before += 1
            p += _1
        is_number = before > 0
        if p < end and data[p] == _POINT:
            p += _1
            while p < end and np.uint64(data[p]) - np.uint64(_ZERO) <= _9:
                digit = np.uint64(data[p]) - np.uint64(_ZERO)
                mantissa = mantissa * _TEN + digit
                digits += digits > 0 or digit != _0
                after += 1
                p += _1
            is_number = is_number and after > 0
        power = 0
        if end - p >= np.uint64(3) and end - p <= np.uint64(5) and data[p] == _E:
            sign = data[p + _1]
            is_number = is_number and (sign == _PLUS or sign == _MINUS)
            p += _2
            while p < end and np.uint64(data[p]) - np.uint64(_ZERO) <= _9:
                power = power * 10 + np.int64(data[p] - _ZERO)
                p += _1
            if sign == _MINUS:
                power = -power
        if is_number and p == end and digits <= 19:
            as_bits[0], is_number = nearest_float8(mantissa, power - after)
            if is_number and width == 4 and mantissa != _0:
                is_halfway = as_bits[0] & _BELOW_FLOAT4 == _HALF_A_UNIT
                is_number = _LEAST_FLOAT4 <= as_float[0] <= _MOST_FLOAT4 and not is_halfway
        else:
            is_number = False
        if is_number:
            out[i] = -as_float[0] if negative else as_float[0]
        else:
            states[i] = ODD
