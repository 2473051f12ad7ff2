"""What is known of types that are not built in: their names, as Type messages and the configuration give them.

The configuration's `types` says what the values of a type shall become:

    "public.posint": int4             a user's type by its name: a domain in an array, a type of an extension
    "public.document": variant
    "public.floatrange": range(float8)     or multirange(…): of what it is a range
    json: variant                     json and jsonb, as VARIANT
    numeric: numeric(38,10)           numeric without a modifier, as a decimal
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from pgoutput_etl.protocol.messages import Type
from pgoutput_etl.types import extensions

VARIANT = "variant"

# SQL's names of built-in types, where they have others than pg_type.
_ALIASES = {
    "bigint": "int8",
    "bit varying": "varbit",
    "boolean": "bool",
    "char": "bpchar",
    "character": "bpchar",
    "character varying": "varchar",
    "dec": "numeric",
    "decimal": "numeric",
    "double precision": "float8",
    "float": "float8",
    "int": "int4",
    "integer": "int4",
    "real": "float4",
    "smallint": "int2",
    "time with time zone": "timetz",
    "time without time zone": "time",
    "timestamp with time zone": "timestamptz",
    "timestamp without time zone": "timestamp",
}

_SIZED_WITH_HEADER = ("bpchar", "varchar")  # a size plus 4 bytes, VARHDRSZ

_SIZED = ("bit", "varbit", "time", "timetz", "timestamp", "timestamptz")

_WRITTEN = re.compile(r"""\s*(?P<name>"char"|[a-z_0-9]+(?:\ [a-z]+)*?)\s*(?:\(\s*(?P<first>[0-9]{1,8})\s*
    (?:,\s*(?P<second>-?[0-9]{1,4})\s*)?\))?\s*(?P<rest>(?:with|without)\ time\ zone)?\s*(?P<array>\[\s*\])?\s*""",
    re.VERBOSE,
)  # fmt: skip


_RANGE = re.compile(r"\s*(?P<kind>range|multirange)\s*\((?P<bound>.*)\)\s*")


@dataclass(frozen=True, slots=True)
class UserTypes:
    """names: type OID -> (namespace, name), as the archive's Type messages say; of a domain, its base type's.

    configured: the configuration's `types`, a type's name -> what its values shall become.
    rows_around: in how many rows the value is that the type is asked for.
    """

    names: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    configured: Mapping[str, str] = field(default_factory=dict)
    rows_around: int = 0

    @classmethod
    def of(cls, messages: Iterable[Type], configured: Mapping[str, str]) -> UserTypes:
        return cls({message.oid: (message.namespace, message.name) for message in messages}, configured)


NO_USER_TYPES = UserTypes()


@dataclass(frozen=True, slots=True)
class WrittenType:
    """A type as the configuration writes it: pg_type's name (or variant, hstore, vector, …), modifier, array or not;
    range_of: "range" or "multirange" where it is one of these, of that type."""

    name: str
    typmod: int
    is_array: bool
    range_of: str = ""


def written_type(text: str, known: Iterable[str]) -> WrittenType:
    """ValueError(what was expected) if it is none; `known` are the names of the built-in types."""
    names = {*known, *extensions.BY_NAME, VARIANT}
    ranges = _RANGE.fullmatch(text.lower())
    if ranges is not None:
        bound = written_type(ranges["bound"], known)
        if bound.is_array or bound.range_of or bound.name not in set(known):
            raise ValueError("expected a range of a built-in type")
        return replace(bound, range_of=ranges["kind"])
    parts = _WRITTEN.fullmatch(text.lower())
    if parts is None:
        raise ValueError("expected a type as in SQL, such as int4, numeric(20,4), text[]")
    spelled = " ".join((parts["name"] + " " + (parts["rest"] or "")).split())
    name = _ALIASES.get(spelled, spelled.strip('"') if spelled == '"char"' else spelled)
    if name not in names:
        near = get_close_matches(name, sorted({*names, *_ALIASES}), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"expected the name of a built-in type, hstore, vector, citext, geometry or variant{hint}")
    return WrittenType(name, _typmod(name, parts["first"], parts["second"]), parts["array"] is not None)


def _typmod(name: str, first: str | None, second: str | None) -> int:
    if first is None:
        return -1
    if name == "numeric":
        precision, scale = int(first), int(second or 0)
        if 1 <= precision <= 1000 and -1000 <= scale <= 1000:
            return (precision << 16 | scale & 0x7FF) + 4
        raise ValueError("expected a precision from 1 to 1000 and a scale from -1000 to 1000")
    if second is None and name in _SIZED_WITH_HEADER:
        return int(first) + 4
    if second is None and name in _SIZED:
        return int(first)
    raise ValueError("expected a type without that modifier")
