"""Random values. A column's name begins with a letter for its first type; its values also fit all later types."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from tests.support.model.catalog import INT4, INT4_ARRAY, INT8, MOOD, NUMERIC, TEXT, TIMESTAMPTZ, Value

VALUES: Mapping[str, tuple[int, Sequence[bytes]]] = MappingProxyType(
    {
        "i": (INT4, [b"0", b"1", b"-7", b"2147483647"]),
        "b": (INT8, [b"0", b"2", b"-9223372036854775808"]),
        "t": (TEXT, [b"", b"a", b"b c", "ü".encode(), b"~long", b"~longer"]),
        "n": (NUMERIC, [b"0", b"1.50", b"-2.000", b"NaN"]),
        "z": (TIMESTAMPTZ, [b"2024-02-29 12:00:00+00", b"1999-12-31 23:59:59.5+00"]),
        "a": (INT4_ARRAY, [b"{}", b"{1,NULL,3}", b"{7}"]),
        "m": (MOOD, [b"happy", b"sad"]),
    }
)
_KEY_VALUES: Mapping[str, Callable[[int], bytes]] = {
    "i": lambda n: b"%d" % n,
    "b": lambda n: b"%d" % (n + (1 << 40)),
    "t": lambda n: b"k%d" % n,
    "n": lambda n: b"%d.5" % n,
    "z": lambda n: b"2024-01-%02d 00:00:00+00" % n,
    "m": lambda n: b"mood %d" % n,
    "a": lambda n: b"{%d}" % n,
}
_KEYS = 14  # the number of values in a key column, so that deleted keys are inserted again


def random_value(chance: random.Random, letter: str) -> Value:
    values = VALUES[letter][1]
    place = int(chance.random() * (len(values) + 1))
    return values[place] if place < len(values) else None


def random_key(chance: random.Random, letter: str) -> Value:
    return _KEY_VALUES[letter](1 + int(chance.random() * _KEYS))
