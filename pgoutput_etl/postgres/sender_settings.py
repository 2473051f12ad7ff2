"""Settings that a receiver inherits from its database and role, and that decoding can't undo.

conf/landing/setup.sql has the same rules. A receiver with RECEIVER_ENVIRONMENT (queries.py) inherits none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_FIRST_SHORTEST = 120_000  # the version from which extra_float_digits = 1, the default, prints floats exactly


@dataclass(frozen=True, slots=True)
class UnsuitableSetting:
    """value: the one that role or database set, or the server's default. suitable: the one to set. harm: the reason."""

    name: str
    value: str
    suitable: str
    harm: str


_HELD = "tables with {} would be held"

# Name, pattern of suitable values, the value to set, and the harm of another one.
_RULES = (
    ("DateStyle", r"iso\b.*", "ISO", _HELD.format("dates or times")),
    ("IntervalStyle", "postgres", "postgres", _HELD.format("intervals")),
    ("bytea_output", "hex", "hex", _HELD.format("bytea")),
    ("client_encoding", "utf-?8|unicode", "UTF8", _HELD.format("other characters than ASCII")),
)

_ROUNDED = "floats would be rounded, and keys that differ only in later digits would become one row"


def unsuitable_settings(settings: Mapping[str, str], version: int) -> Iterator[UnsuitableSetting]:
    """settings: what role and database set, by name in lower case. version: server_version_num."""
    digits = settings.get("extra_float_digits", "0" if version < _FIRST_SHORTEST else "1")
    if not re.fullmatch("3" if version < _FIRST_SHORTEST else "[123]", digits):
        yield UnsuitableSetting("extra_float_digits", digits, "3", _ROUNDED)
    for name, pattern, suitable, harm in _RULES:
        value = settings.get(name.lower(), suitable)
        if not re.fullmatch(pattern, value, re.IGNORECASE):
            yield UnsuitableSetting(name, value, suitable, harm)
