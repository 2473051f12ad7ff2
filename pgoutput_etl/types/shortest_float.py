"""Prints floats as float4out and float8out do: the fewest digits that identify the number.

Both use the Ryu algorithm with a restriction (STRICTLY_SHORTEST in ryu_common.h): they never print a decimal exactly
halfway between two floats, because a reader may round it the wrong way. Python and numpy do print such decimals.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

# float8out switches to scientific notation at 1e15, float4out at 1e6, and both below 1e-4
_FLOAT8_SCIENTIFIC = 15

_FLOAT4_SCIENTIFIC = 6

# A shortest decimal can only be halfway between two floats in these ranges: below them, half a unit has too many
# decimals; above them, a power of ten has too many factors of five.
_HALFWAY_FLOAT8, _HALFWAY_FLOAT4 = (2.0**53, 1e41), (2.0**24, 1e20)


def shortest_float8(number: float) -> str:
    size = abs(number)
    if 1e-4 <= size < 1e15 or not number:
        return repr(number).removesuffix(".0")
    if not math.isfinite(number):
        return _print_not_finite(number)
    low, high = _HALFWAY_FLOAT8
    if size < 1e-4 or size >= high:
        return repr(number)
    text = repr(size)
    return _format(number, _not_halfway(text, np.float64(size)) if size >= low else text, _FLOAT8_SCIENTIFIC)


def shortest_float4(number: float) -> str:
    """Prints a number that is exactly a float4."""
    if not math.isfinite(number):
        return _print_not_finite(number)
    if not number:
        return repr(number).removesuffix(".0")
    size = np.float32(abs(number))
    text = np.format_float_scientific(size, trim="-")
    low, high = _HALFWAY_FLOAT4
    return _format(number, _not_halfway(text, size) if low <= size < high else text, _FLOAT4_SCIENTIFIC)


def _not_halfway(text: str, size: np.floating[Any]) -> str:
    """The shortest decimal `text`, or a longer one if it is halfway between two floats."""
    adjacent = (np.nextafter(size, type(size)(direction)) for direction in (0.0, math.inf))
    low, high = ((Fraction(float(size)) + Fraction(float(other))) / 2 for other in adjacent)
    digits = len(text.partition("e")[0].replace(".", ""))
    longer = (f"{float(size):.{n}e}" for n in range(digits, 17))
    return next(decimal for decimal in (text, *longer) if low < Fraction(decimal) < high)


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
