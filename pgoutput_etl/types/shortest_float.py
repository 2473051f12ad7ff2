"""Prints floats as float4out and float8out do: the fewest digits that identify the number.

Both use the Ryu algorithm with a restriction (STRICTLY_SHORTEST in ryu_common.h): they never print a decimal exactly
halfway between two floats, because a reader may round it the wrong way. Python's repr does print such decimals.
"""

from __future__ import annotations

import math
from fractions import Fraction

from pgoutput_etl.types.binary import FLOAT4, UINT32

# float8out switches to scientific notation at 1e15, float4out at 1e6, and both below 1e-4
_FLOAT8_SCIENTIFIC = 15

_FLOAT4_SCIENTIFIC = 6

# A shortest decimal can only be halfway between two doubles in this range: below it, half a unit has too many decimals;
# above it, a power of ten has too many factors of five.
_HALFWAY_FROM, _HALFWAY_TO = 2.0**53, 1e41

_LEAST_NORMAL_FLOAT4 = 2.0**-126


def shortest_float8(number: float) -> str:
    size = abs(number)
    if 1e-4 <= size < 1e15 or not number:
        return repr(number).removesuffix(".0")
    if not math.isfinite(number):
        return _print_not_finite(number)
    if size < 1e-4 or size >= _HALFWAY_TO:
        return repr(number)
    text = repr(size)
    if size >= _HALFWAY_FROM and _is_halfway(text, size):
        digits = len(text.partition("e")[0].replace(".", ""))
        longer = (f"{size:.{n}e}" for n in range(digits, 17))
        text = next(text for text in longer if float(text) == size and not _is_halfway(text, size))
    return _format(number, text, _FLOAT8_SCIENTIFIC)


def _is_halfway(text: str, size: float) -> bool:
    doubled = 2 * Fraction(text)
    exact = Fraction(size)
    return any(doubled == exact + Fraction(math.nextafter(size, direction)) for direction in (0.0, math.inf))


def shortest_float4(number: float) -> str:
    """Prints a number that is exactly a float4. It has so few digits that all lengths can be tried."""
    if not math.isfinite(number):
        return _print_not_finite(number)
    if not number:
        return repr(number).removesuffix(".0")
    size = abs(number)
    low, high = _midpoints(size)
    # every decimal of 6 digits is preserved by a normal float4, so trying 6 digits first also finds shorter ones
    for decimals in range(5 if size >= _LEAST_NORMAL_FLOAT4 else 0, 9):
        candidates = [text for text in _candidates(size, decimals) if _is_between(low, text, high)]
        if candidates:
            if len(candidates) > 1:
                candidates.sort(key=lambda text: abs(Fraction(text) - Fraction(size)))
            return _format(number, candidates[0], _FLOAT4_SCIENTIFIC)
    raise AssertionError("nine digits identify every float4")


def _midpoints(size: float) -> tuple[float, float]:
    """The midpoints to the adjacent float4s below and above. A double represents both exactly."""
    (bits,) = UINT32.unpack(FLOAT4.pack(size))
    (below,) = FLOAT4.unpack(UINT32.pack(bits - 1))
    unit = size - below
    # the successor of the largest float4 is infinity instead of the next power of two
    above = FLOAT4.unpack(UINT32.pack(bits + 1))[0] if bits < 0x7F7FFFFF else size + unit
    return (size + below) / 2, (size + above) / 2


def _candidates(size: float, decimals: int) -> list[str]:
    """The nearest decimal with this many digits; at a power of two, where the gap below is smaller, also the next
    one."""
    nearest = f"{size:.{decimals}e}"
    if math.frexp(size)[0] != 0.5:
        return [nearest]
    mantissa, _, exponent = nearest.partition("e")
    return [nearest, f"{int(mantissa.replace('.', '')) + 1}e{int(exponent) - decimals}"]


def _is_between(low: float, text: str, high: float) -> bool:
    near = float(text)  # correctly rounded: on the same side of a bound as the decimal, unless equal to the bound
    if low < near < high:
        return True
    return low <= near <= high and Fraction(low) < Fraction(text) < Fraction(high)


def _print_not_finite(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def _format(number: float, text: str, scientific: int) -> str:
    """Formats the digits of `text`, Python's repr of the absolute value, like PostgreSQL."""
    mantissa, _, power = text.partition("e")
    integer, _, fraction = mantissa.partition(".")
    sign = "-" if number < 0 else ""
    exponent = int(power or 0) + len(integer) - 1
    digits = (integer + fraction).rstrip("0")
    if not -4 <= exponent < scientific:
        rest = "." + digits[1:] if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{rest}e{exponent:+03d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    integer = digits[: exponent + 1].ljust(exponent + 1, "0")
    return f"{sign}{integer}{'.' if digits[exponent + 1 :] else ''}{digits[exponent + 1 :]}"
