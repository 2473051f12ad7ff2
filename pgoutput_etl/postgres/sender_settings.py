"""Settings that a receiver inherits from its database and role, and that decoding can't undo.

conf/landing/setup.sql has the same rules. A receiver with RECEIVER_ENVIRONMENT (queries.py) inherits none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_FIRST_SHORTEST = 120_000  # the version since which the default, extra_float_digits = 1, prints floats exactly


@dataclass(frozen=True, slots=True)
class UnsuitableSetting:
    """value: set by role or database, or else the default. suitable: the value to set. harm: the reason."""

    name: str
    value: str
    suitable: str
    harm: str


_HELD = "tables with {} would be held"

_FLOAT_DIGITS, _ENCODING = "extra_float_digits", "client_encoding"

# Name, pattern of suitable values, value to set, and the harm that other values do.
_RULES = (
    (_FLOAT_DIGITS, "[123]", "3", "floats would be rounded, and keys that differ only in later digits become one row"),
    ("DateStyle", r"iso\b.*", "ISO", _HELD.format("dates or times")),
    ("IntervalStyle", "postgres", "postgres", _HELD.format("intervals")),
    ("bytea_output", "hex", "hex", _HELD.format("bytea")),
    (
        _ENCODING,
        "utf-?8|unicode|sql_ascii",
        "UTF8",
        "other characters than ASCII would be misread, or their tables held",
    ),
)


def unsuitable_settings(settings: Mapping[str, str], version: int, encoding: str) -> Iterator[UnsuitableSetting]:
    """settings: those set by role and database, by name in lower case. version: server_version_num. encoding: the
    database's."""
    usual = {_FLOAT_DIGITS: "0" if version < _FIRST_SHORTEST else "1", _ENCODING: encoding}
    for name, pattern, suitable, harm in _RULES:
        value = settings.get(name.lower(), usual.get(name, suitable))
        wanted = "3" if name == _FLOAT_DIGITS and version < _FIRST_SHORTEST else pattern
        if not re.fullmatch(wanted, value, re.IGNORECASE):
            yield UnsuitableSetting(name, value, suitable, harm)
