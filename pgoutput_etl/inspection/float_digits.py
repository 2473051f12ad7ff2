"""Finds floats that their sender rounded, from their numbers of digits.

With extra_float_digits = 0, the default before PostgreSQL 12, float text has at most 15 significant digits (6 for
float4). An exact text has as many as the value needs: few for prices, but 16 or 17 (8 or 9) for computed numbers; only
about one in seventeen (thirty) of those has fewer. If ten values have all 15 digits, and none has more, they were
rounded by the sender, or before they entered the database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pgoutput_etl.protocol.messages import KIND_TEXT, Relation, TupleData

# The digits that rounding leaves, by OID: float4, float8, their arrays, and the geometric types, which consist of
# float8.
_LIMITS = dict.fromkeys((700, 1021), 6) | dict.fromkeys((701, 1022, 600, 601, 602, 603, 604, 628, 718), 15)

_LEAST = 10

_NUMBER = re.compile(rb"(\d+(?:\.\d+)?)(e[+-]\d+)?")


@dataclass(slots=True)
class DigitCounts:
    """The number of values with exactly as many digits as rounding leaves, and of values with more."""

    at_limit: int = 0
    beyond: int = 0

    @property
    def show_rounding(self) -> bool:
        return self.at_limit >= _LEAST and not self.beyond

    def add(self, relation: Relation, new: TupleData) -> None:
        """Counts a row's values. Integers prove nothing, because they are exact up to 15 digits."""
        for column, kind, value in zip(relation.columns, new.kinds, new.values, strict=False):
            limit = _LIMITS.get(column.type_oid)
            if limit is None or kind != KIND_TEXT or value is None:
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
