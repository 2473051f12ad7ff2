"""User types: their names from Type messages, and their declarations in the configuration.

The configuration's `types` maps the name of a type to the type that its values are read and stored as:

    "public.posint": int4             a user type: a domain in an array, a type of an extension
    "public.document": variant
    "public.floatrange": range(float8)     the subtype of a range, or of a multirange(…)
    json: variant                     json and jsonb, as VARIANT
    numeric: numeric(38,10)           numeric without a modifier, as a decimal
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from pgoutput_etl.protocol.messages import Type, TypeDefinition
from pgoutput_etl.types import extensions

VARIANT = "variant"

# SQL names of built-in types that differ from those in pg_type.
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

_SIZED_WITH_HEADER = ("bpchar", "varchar")  # typmod: the size plus 4 bytes, VARHDRSZ

_SIZED = ("bit", "varbit", "time", "timetz", "timestamp", "timestamptz")

_TYPE = re.compile(r"""\s*(?P<name>"char"|[a-z_0-9]+(?:\ [a-z]+)*?)\s*(?:\(\s*(?P<first>[0-9]{1,8})\s*
    (?:,\s*(?P<second>-?[0-9]{1,4})\s*)?\))?\s*(?P<rest>(?:with|without)\ time\ zone)?\s*(?P<array>\[\s*\])?\s*""",
    re.VERBOSE,
)  # fmt: skip

_RANGE = re.compile(r"\s*(?P<kind>range|multirange)\s*\((?P<bound>.*)\)\s*")


@dataclass(frozen=True, slots=True)
class UserTypes:
    """The user types of an archive.

    names: type OID -> (namespace, name) from Type messages; for a domain, those of its base type. configured: the
    configuration's `types`: type name -> declared type. row_depth: number of rows around the value to be read.
    keeps_bytes: see ColumnType. defined: a column's types by OID, from catalog Messages. depth: number of these around
    the type to be resolved.
    """

    names: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    configured: Mapping[str, str] = field(default_factory=dict)
    row_depth: int = 0
    keeps_bytes: bool = False
    defined: Mapping[int, TypeDefinition] = field(default_factory=dict)
    depth: int = 0

    @classmethod
    def of(cls, messages: Iterable[Type], configured: Mapping[str, str]) -> UserTypes:
        return cls({message.oid: (message.namespace, message.name) for message in messages}, configured)

    def declared(self, found: TypeDefinition) -> str | None:
        """The type that the configuration declares for a type in the server's catalog."""
        return self.configured.get(f"{found.namespace}.{found.name}", self.configured.get(f"oid {found.oid}"))

    def is_element(self, namespace: str, name: str) -> bool:
        """True if a Type message names an array of this type. PostgreSQL has no arrays of arrays, and adds a second
        underscore to an array's name only if the name with one underscore is taken by a type."""
        return (namespace, f"_{name}") in self.names.values()


NO_USER_TYPES = UserTypes()


@dataclass(frozen=True, slots=True)
class ParsedType:
    """A type declared in the configuration.

    name: as in pg_type, or variant, hstore, vector, …
    range_of: "range" or "multirange" if the declared type is one, with `name` as its subtype; else "".
    """

    name: str
    typmod: int
    is_array: bool
    range_of: str = ""


def parse_type(text: str, known: Iterable[str]) -> ParsedType:
    """Parses a declared type. The message of the ValueError says what was expected. known: names of built-in types."""
    names = {*known, *extensions.BY_NAME, VARIANT}
    ranges = _RANGE.fullmatch(text.lower())
    if ranges is not None:
        bound = parse_type(ranges["bound"], known)
        if bound.is_array or bound.range_of or bound.name not in set(known):
            raise ValueError("expected a range of a built-in type")
        return replace(bound, range_of=ranges["kind"])
    parts = _TYPE.fullmatch(text.lower())
    if parts is None:
        raise ValueError("expected a SQL type, such as int4, numeric(20,4), text[]")
    spelled = " ".join((parts["name"] + " " + (parts["rest"] or "")).split())
    name = _ALIASES.get(spelled, spelled.strip('"') if spelled == '"char"' else spelled)
    if name not in names:
        near = get_close_matches(name, sorted({*names, *_ALIASES}), 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"expected the name of a built-in type, hstore, vector, citext, geometry or variant{hint}")
    return ParsedType(name, _typmod(name, parts["first"], parts["second"]), parts["array"] is not None)


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
