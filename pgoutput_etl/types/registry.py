"""Looks up column types across all families, by the OID and typmod in Relation messages.

A built-in type is identified by its OID, any other type by its name in a Type message. pgoutput sends a domain's OID
with the name of its base type: a domain over int4 arrives as pg_catalog.int4.

To add a type, add it to `TYPES` in its family's module, and its array to `arrays.ELEMENTS`. Kernels are optional.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.protocol.messages import RelationColumn, TypeDefinition
from pgoutput_etl.reasons import Reason, kind_of
from pgoutput_etl.types import (
    arrays,
    composites,
    datetimes,
    documents,
    extensions,
    geometric,
    identifiers,
    network,
    numbers,
    numeric,
    ranges,
    strings,
    text_search,
    times,
    variants,
)
from pgoutput_etl.types.column import (
    BinaryText,
    ColumnType,
    LoadedColumn,
    RefusedError,
    Storage,
    TextLoader,
    TypeTable,
    ValueTextError,
    declare,
    is_utf8,
)
from pgoutput_etl.types.user_types import NO_USER_TYPES, VARIANT, ParsedType, UserTypes, parse_type

_TYPES: TypeTable = {
    **numbers.TYPES,
    **numeric.TYPES,
    **datetimes.TYPES,
    **times.TYPES,
    **strings.TYPES,
    **documents.TYPES,
    **text_search.TYPES,
    **identifiers.TYPES,
    **network.TYPES,
    **geometric.TYPES,
    **ranges.TYPES,
}

# Each level of nesting doubles the quotes in the rows below it.
MAX_ROWS_IN_ROWS = 16

MAX_TYPES_IN_TYPES = 4 * MAX_ROWS_IN_ROWS  # without a key, anybody can write a definition that contains itself

_BASE = "b"  # pg_type.typtype of a type that only an extension's code describes

_CATALOG = ("pg_catalog", "")  # in messages, the schema pg_catalog is ""

_JSON, _NUMERIC, _JSONB = 114, 1700, 3802

# Built-in types that the configuration can change.
_CONFIGURABLE = {"json": _JSON, "jsonb": _JSONB, "numeric": _NUMERIC}


def _type_name(oid: int) -> str:
    """The type's name, as in pg_type.typname."""
    return _TYPES[oid](-1).name.strip('"')


BUILT_IN_OIDS = {_type_name(oid): oid for oid in _TYPES}

BUILT_IN_OIDS |= {f"_{_type_name(element)}": oid for oid, element in arrays.ELEMENTS.items() if element in _TYPES}


def column_type(oid: int, typmod: int, user_types: UserTypes = NO_USER_TYPES) -> ColumnType:
    """A column's type, from its Relation message ("OID of the column's data type", "type modifier of the column
    (atttypmod)", -1 if absent).
    """
    found = _column_type(oid, typmod, user_types)
    return replace(found, keeps_bytes=True, may_be_unrepresentable=True) if user_types.keeps_bytes else found


def type_of(column: RelationColumn, user_types: UserTypes = NO_USER_TYPES) -> ColumnType:
    """The type of a relation's column: as defined in the server's catalog, otherwise by its name."""
    if column.types:
        user_types = replace(user_types, defined={found.oid: found for found in column.types})
    return column_type(column.type_oid, column.type_modifier, user_types)


def _column_type(oid: int, typmod: int, user_types: UserTypes) -> ColumnType:
    element_oid = arrays.ELEMENTS.get(oid)
    if element_oid is not None:
        return arrays.array_type(column_type(element_oid, typmod, user_types), element_oid)
    if oid in _TYPES:
        return _built_in_type(oid, typmod, user_types)
    if oid in user_types.defined:
        return _defined_type(user_types.defined[oid], user_types)
    if oid in user_types.names:
        return _named_type(*user_types.names[oid], typmod, user_types)
    if oid < arrays.FIRST_USER_OID:
        return strings.string_type(f"oid {oid}")
    return _scalar_type("", f"oid {oid}", user_types)


def _built_in_type(oid: int, typmod: int, user_types: UserTypes) -> ColumnType:
    built_in = _TYPES[oid](typmod)
    configured = user_types.configured.get(_type_name(oid)) if oid in _CONFIGURABLE.values() else None
    if configured is None:
        return replace(built_in, delimiter=b";") if oid == arrays.BOX else built_in
    if oid != _NUMERIC:
        return variants.variant_type(built_in.name)
    if typmod >= 0:
        return built_in
    # keep the name: PostgreSQL's text may have fewer decimals than the target's type
    return replace(_TYPES[_NUMERIC](parse_type(configured, BUILT_IN_OIDS).typmod), name=built_in.name)


def _defined_type(found: TypeDefinition, user_types: UserTypes) -> ColumnType:
    known, declared = _catalog_type(found, user_types), user_types.declared(found)
    if declared is None or found.kind == _BASE:
        return known
    if _is_text(parse_type(declared, BUILT_IN_OIDS)):
        is_text = known.arrow == pa.string() and known.storage is Storage.PLAIN
        return known if is_text else strings.string_type(_full_name(found), known.binary_text)
    return _configured_type(_full_name(found), declared, user_types)


def _full_name(found: TypeDefinition) -> str:
    return f"{found.namespace}.{found.name}"


def _catalog_type(found: TypeDefinition, user_types: UserTypes) -> ColumnType:
    full_name, types = _full_name(found), replace(user_types, depth=user_types.depth + 1)
    if found.kind == _BASE:
        return _scalar_type(found.name, full_name, types)
    if found.of is None or types.depth > MAX_TYPES_IN_TYPES:  # an enum or a composite
        return _other_type(full_name, types)
    part = column_type(found.of, found.modifier, types)
    match found.kind:
        case "a":
            if part.element is not None and part.printer is None:  # a domain over an array
                part = strings.string_type(part.name, part.binary_text)
            return arrays.array_type(part, found.of)
        case "r":
            return ranges.range_type(full_name, part)
        case "m":
            return ranges.multirange_type(full_name, part)
        case _:
            return part


def contradiction(column: RelationColumn, user_types: UserTypes) -> str | None:
    """The entry of the configuration's `types` that contradicts the column's known types, or None. Any type may be
    declared as text, json as a variant, and a numeric without a modifier may get one."""
    defined = {found.oid: found for found in column.types}
    types = replace(user_types, defined=defined, configured={})
    for found in defined.values():
        text = user_types.declared(found)
        if text is None or found.kind == _BASE or _is_text(parse_type(text, BUILT_IN_OIDS)):
            continue
        known, given = _catalog_type(found, types), _configured_type(_full_name(found), text, types)
        is_same = known.binary_text == given.binary_text and known.name == "numeric"
        is_same = is_same or (known.stored_as, known.binary_text) == (given.stored_as, given.binary_text)
        if not is_same and not (given.storage is Storage.VARIANT and known.name in ("json", "jsonb")):
            return f"{_full_name(found)}: {text}"
    return None


def _named_type(namespace: str, name: str, typmod: int, user_types: UserTypes) -> ColumnType:
    if namespace in _CATALOG:
        oid = BUILT_IN_OIDS.get(name)
        return strings.string_type(f"pg_catalog.{name}") if oid is None else column_type(oid, typmod, user_types)
    full_name = f"{namespace}.{name}"
    is_no_array = (
        full_name in user_types.configured or name in ranges.EXAMPLES or user_types.is_element(namespace, name)
    )
    if not is_no_array and name[:1] == "_" and len(name) > 1 and name not in extensions.BY_NAME:
        # the element type isn't an array, even if its name has another underscore: PostgreSQL has no arrays of arrays
        element = _scalar_type(name[1:], f"{namespace}.{name[1:]}", user_types)
        return arrays.array_type(element, None, KnownElements(user_types), _other_type(full_name, user_types))
    return _scalar_type(name, full_name, user_types)


def _scalar_type(name: str, full_name: str, user_types: UserTypes) -> ColumnType:
    configured = user_types.configured.get(full_name)
    if configured is not None and not (configured == "text" and name[:1] == "_"):  # in that case it isn't an array
        return _configured_type(full_name, configured, user_types)
    if name in ranges.EXAMPLES:
        return _by_name(_configured_type(full_name, ranges.EXAMPLES[name], user_types))
    if name == "citext":
        return _text_or_row(full_name, user_types)
    if name in extensions.BY_NAME:
        return _by_name(extensions.BY_NAME[name](full_name))
    return _other_type(full_name, user_types)


def _by_name(known: ColumnType) -> ColumnType:
    """The type that has this name in an extension. A user's enum or row may have the same name."""
    takes_any_text = known.text_loader is strings.load_string  # including the texts of rows and enums
    loader = known.text_loader if takes_any_text else LoaderByName(known.text_loader)
    return replace(known, text_loader=loader, binary_text=TextByName(known.name, known.binary_text))


def _another_type(name: str) -> str:
    return f'; if {name} is not the type that has this name in an extension, declare it (types: {{"{name}": text}})'


@dataclass(frozen=True, slots=True)
class LoaderByName:
    """Loads the text of a type that is known only by its name. Errors say how to correct that."""

    load: TextLoader

    def __call__(self, column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
        try:
            return self.load(column_type, values)
        except ValueTextError as refused:
            expected = Reason(refused.expected + _another_type(column_type.name), kind_of(refused.expected))
            raise ValueTextError(refused.index, refused.type_name, expected) from None


@dataclass(frozen=True, slots=True)
class TextByName:
    """Prints the binary form of a type that is known only by its name. Errors say how to correct that."""

    name: str
    text_of: BinaryText

    def __call__(self, value: bytes) -> bytes:
        try:
            return self.text_of(value)
        except RefusedError as refused:
            raise RefusedError(refused.expected + _another_type(self.name)) from None


def _configured_type(full_name: str, text: str, user_types: UserTypes) -> ColumnType:
    """The type that the configuration declares for a user type, with the user type's name."""
    parsed = parse_type(text, BUILT_IN_OIDS)
    if _is_text(parsed):
        return _text_or_row(full_name, user_types)
    if parsed.name in extensions.BY_NAME:
        result = extensions.BY_NAME[parsed.name](full_name)
    elif parsed.name == VARIANT:
        result = variants.variant_type(full_name)
    else:
        result = column_type(BUILT_IN_OIDS[parsed.name], parsed.typmod, user_types)
    if parsed.range_of:
        range_or_multirange = ranges.range_type if parsed.range_of == "range" else ranges.multirange_type
        result = range_or_multirange(full_name, result)
    if parsed.is_array:
        result = arrays.array_type(result, BUILT_IN_OIDS.get(parsed.name))
    return replace(result, name=full_name)


def _is_text(parsed: ParsedType) -> bool:
    return parsed.name == "text" and not parsed.is_array and not parsed.range_of


def _other_type(name: str, user_types: UserTypes) -> ColumnType:
    return strings.string_type(name, OtherText(name, user_types), fast_binary_label)


def _text_or_row(name: str, user_types: UserTypes) -> ColumnType:
    """A type whose binary form is its text, or an enum, or a row."""
    return strings.string_type(name, OtherText(name, user_types, is_text_or_row=True), fast_binary_label)


@dataclass(frozen=True, slots=True)
class KnownElements:
    """Looks up element OIDs in the Type messages: a domain's elements have the binary form of its base type."""

    user_types: UserTypes

    def __call__(self, oid: int) -> BinaryText | None:
        is_known = oid in self.user_types.names or f"oid {oid}" in self.user_types.configured
        return column_type(oid, -1, self.user_types).binary_text if is_known else None


@dataclass(frozen=True, slots=True)
class OtherText:
    """Prints the binary form of a type that is known only by its name, if the form is recognizable.

    An enum is sent as its label, and a row describes its own fields. Other forms are unlikely to be mistaken for these:
    numbers, lengths, and version bytes contain control characters, and only a row's lengths add up. is_text_or_row: it
    has no other form; only a row has zero bytes.
    """

    name: str
    user_types: UserTypes
    is_text_or_row: bool = False

    def __call__(self, value: bytes) -> bytes:
        if is_text(value) or (self.is_text_or_row and b"\0" not in value):
            return value
        if self.user_types.row_depth > MAX_ROWS_IN_ROWS:
            raise RefusedError(f"a row nested at most {MAX_ROWS_IN_ROWS} levels deep")
        if composites.is_record(value):
            return composites.record_text(value, self._field_text)
        raise RefusedError(declare(self.name, "…", ", or a slot without binary"))

    def _field_text(self, oid: int, field: bytes) -> bytes:
        nested = replace(self.user_types, row_depth=self.user_types.row_depth + 1)
        return column_type(oid, -1, nested).binary_text(field)


def is_user_type(column_type: ColumnType) -> bool:
    """True for types that the archive knows only by their names, which include a schema. Enums, composites, domains,
    and ranges then can't be told apart."""
    schema, _, name = column_type.name.partition("(")[0].rpartition(".")
    return bool(schema) and name not in extensions.BY_NAME


_OID = re.compile(r"oid [1-9][0-9]{0,9}")  # a user type that no Type message names

_CONTROL = r"[\x00-\x08\x0b\x0c\x0e-\x1f]"

_CONTROL_BYTES = re.compile(_CONTROL.encode())


def fast_binary_label(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    return strings.fast_binary_string(pc.if_else(pc.match_substring_regex(values, _CONTROL), None, values), arrow)


def is_text(value: bytes) -> bool:
    return not _CONTROL_BYTES.search(value) and is_utf8(value)


def check_configured(name: str, text: str) -> None:
    """Checks an entry of the configuration's `types`. The message of the ValueError says what was expected."""
    parsed = parse_type(text, BUILT_IN_OIDS)
    if "." in name.strip(".") or _OID.fullmatch(name):
        return
    if name not in _CONFIGURABLE:
        near = get_close_matches(name, _CONFIGURABLE, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        own = ", ".join(_CONFIGURABLE)
        raise ValueError(f"expected the key schema.name or 'oid N' of a user type, or one of {own}{hint}")
    if name != "numeric" and (parsed.name != VARIANT or parsed.is_array):
        raise ValueError(f"expected {VARIANT}")
    is_decimal = pa.types.is_decimal(_TYPES[_NUMERIC](parsed.typmod).arrow)
    if name == "numeric" and (parsed.name != "numeric" or parsed.is_array or parsed.range_of or not is_decimal):
        raise ValueError("expected numeric(p,s) with p at most 38 and s from 0 to p")
