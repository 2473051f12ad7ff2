"""Finds floats that their sender rounded, by the number of their digits.

With extra_float_digits = 0, the default before PostgreSQL 12, float text has at most 15 significant digits (6 for
float4). An exact text has as many as the value needs: prices a few, but computed numbers 16 or 17 (8 or 9), and only
about one of them in seventeen (thirty) fewer. Ten values with all 15 digits, and none with more, are therefore rounded
ones, or were rounded before they came into the database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pgoutput_etl.protocol.messages import Relation, TupleData

# The digits that rounding leaves, by OID: float4, float8, their arrays, and the geometric types, which are of float8.
_LIMITS = dict.fromkeys((700, 1021), 6) | dict.fromkeys((701, 1022, 600, 601, 602, 603, 604, 628, 718), 15)

_LEAST = 10

_NUMBER = re.compile(rb"(\d+(?:\.\d+)?)(e[+-]\d+)?")

_TEXT = ord("t")


@dataclass(slots=True)
class DigitCounts:
    """Numbers of values that have as many digits as rounding leaves, and of values that have more."""

    at_limit: int = 0
    beyond: int = 0

    @property
    def show_rounding(self) -> bool:
        return self.at_limit >= _LEAST and not self.beyond

    def add(self, relation: Relation, new: TupleData) -> None:
        """Counts a row's values. Integers prove nothing: they are exact up to 15 digits."""
        for column, kind, value in zip(relation.columns, new.kinds, new.values, strict=False):
            limit = _LIMITS.get(column.type_oid)
            if limit is None or kind != _TEXT or value is None:
                continue
            for digits, exponent in _NUMBER.findall(value):
                if b"." in digits or exponent:
                    excess = len(digits.replace(b".", b"").strip(b"0")) - limit
                    self.at_limit += excess == 0
                    self.beyond += excess > 0


def has_floats(relation: Relation) -> bool:
    return any(column.type_oid in _LIMITS for column in relation.columns)


def rounding_remark(path: str) -> str:
    return (
        f"{path}: no float has more digits than extra_float_digits = 0 leaves, and many have as many: the sender seems "
        "to round floats, and two keys may have become one. Set extra_float_digits = 3 for the receiver's role, or "
        "PGOPTIONS as in conf/landing/shop.env"
    )
