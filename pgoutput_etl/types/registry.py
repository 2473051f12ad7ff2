"""All families of types together: from what an archive says of a column's type to what its values become.

A type is told by its OID where that is built in, and by its name in a Type message where it isn't. pgoutput sends a
domain's OID with the name of the type that it is made of: a domain over int4 comes as pg_catalog.int4.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.types import (
    arrays,
    bits,
    boolean,
    bytea,
    composites,
    datetimes,
    documents,
    extensions,
    floats,
    geometric,
    identifiers,
    integers,
    money,
    network,
    numeric,
    ranges,
    strings,
    text_search,
    times,
    variants,
    vectors,
)
from pgoutput_etl.types.column import BinaryText, ColumnType, LoadedColumn, RefusedError, TypeTable
from pgoutput_etl.types.user_types import NO_USER_TYPES, VARIANT, UserTypes, written_type

_TYPES: TypeTable = {
    **boolean.TYPES,
    **integers.TYPES,
    **floats.TYPES,
    **numeric.TYPES,
    **money.TYPES,
    **datetimes.TYPES,
    **times.TYPES,
    **bytea.TYPES,
    **bits.TYPES,
    **strings.TYPES,
    **documents.TYPES,
    **text_search.TYPES,
    **identifiers.TYPES,
    **vectors.TYPES,
    **network.TYPES,
    **geometric.TYPES,
    **ranges.TYPES,
}

# Each row in a row doubles the quotes of what is in it.
MAX_ROWS_IN_ROWS = 16

_CATALOG = ("pg_catalog", "")  # on the wire it is ""

_JSON, _NUMERIC, _JSONB = 114, 1700, 3802

# Built-in types that the configuration may make something else of.
_CONFIGURABLE = {"json": _JSON, "jsonb": _JSONB, "numeric": _NUMERIC}


def _type_name(oid: int) -> str:
    """pg_type.typname"""
    return _TYPES[oid](-1).name.strip('"')


BUILT_IN_OIDS = {_type_name(oid): oid for oid in _TYPES}

BUILT_IN_OIDS |= {f"_{_type_name(element)}": oid for oid, element in arrays.ELEMENTS.items() if element in _TYPES}


def column_type(oid: int, typmod: int, user_types: UserTypes = NO_USER_TYPES) -> ColumnType:
    """The type of a column as a Relation message describes it ("OID of the column's data type", "type
    modifier of the column (atttypmod)", -1 if there is none).
    """
    element_oid = arrays.ELEMENTS.get(oid)
    if element_oid is not None:
        return arrays.array_type(column_type(element_oid, typmod, user_types), element_oid)
    if oid in _TYPES:
        return _built_in_type(oid, typmod, user_types)
    if oid in user_types.names:
        return _named_type(*user_types.names[oid], typmod, user_types)
    if oid < arrays.FIRST_USER_OID:
        return strings.string_type(f"oid {oid}")
    return _other_type(f"oid {oid}", user_types)


def _built_in_type(oid: int, typmod: int, user_types: UserTypes) -> ColumnType:
    found = _TYPES[oid](typmod)
    configured = user_types.configured.get(_type_name(oid)) if oid in _CONFIGURABLE.values() else None
    if configured is None:
        return _with_delimiter(oid, found)
    if oid != _NUMERIC:
        return variants.variant_type(found.name)
    if typmod >= 0:
        return found
    # Under its own name: what PostgreSQL prints has not as many decimals as the target's.
    return replace(_TYPES[_NUMERIC](written_type(configured, BUILT_IN_OIDS).typmod), name=found.name)


def _with_delimiter(oid: int, found: ColumnType) -> ColumnType:
    return replace(found, delimiter=b";") if oid == arrays.BOX else found


def _named_type(namespace: str, name: str, typmod: int, user_types: UserTypes) -> ColumnType:
    if namespace in _CATALOG:
        oid = BUILT_IN_OIDS.get(name)
        return strings.string_type(f"pg_catalog.{name}") if oid is None else column_type(oid, typmod, user_types)
    full_name = f"{namespace}.{name}"
    written = user_types.configured.get(full_name, ranges.EXAMPLES.get(name))
    if written is not None:
        return _written_type(full_name, written, user_types)
    if name[:1] == "_" and len(name) > 1 and name not in extensions.BY_NAME:
        element = _element_type(namespace, name[1:], user_types)
        return arrays.array_type(element, None, KnownElements(user_types))
    return _extension_or_other(name, full_name, user_types)


def _element_type(namespace: str, name: str, user_types: UserTypes) -> ColumnType:
    """No array, whatever its name begins with: PostgreSQL has no arrays of arrays."""
    full_name = f"{namespace}.{name}"
    written = user_types.configured.get(full_name, ranges.EXAMPLES.get(name))
    if written is not None:
        return _written_type(full_name, written, user_types)
    return _extension_or_other(name, full_name, user_types)


def _extension_or_other(name: str, full_name: str, user_types: UserTypes) -> ColumnType:
    if name in extensions.BY_NAME:
        return extensions.BY_NAME[name](full_name)
    return _other_type(full_name, user_types)


def _written_type(full_name: str, text: str, user_types: UserTypes) -> ColumnType:
    """What the configuration says that a user's type is; the name stays the type's own."""
    written = written_type(text, BUILT_IN_OIDS)
    if written.name in extensions.BY_NAME:
        found = extensions.BY_NAME[written.name](full_name)
    elif written.name == VARIANT:
        found = variants.variant_type(full_name)
    else:
        found = column_type(BUILT_IN_OIDS[written.name], written.typmod, user_types)
    if written.range_of:
        of_type = ranges.range_type if written.range_of == "range" else ranges.multirange_type
        found = of_type(full_name, found)
    if written.is_array:
        found = arrays.array_type(found, BUILT_IN_OIDS.get(written.name))
    return replace(found, name=full_name)


def _other_type(name: str, user_types: UserTypes) -> ColumnType:
    return strings.string_type(name, OtherText(name, user_types), fast_binary_label)


@dataclass(frozen=True, slots=True)
class KnownElements:
    """What a Type message says of an OID: a domain's elements have the binary form of its base type."""

    user_types: UserTypes

    def __call__(self, oid: int) -> BinaryText | None:
        return column_type(oid, -1, self.user_types).binary_text if oid in self.user_types.names else None


@dataclass(frozen=True, slots=True)
class OtherText:
    """The binary form of a type of which nothing but its name is known -> its text, where that can be told.

    An enum is sent as its label. A row says by itself what is in it. Both hold for no other form that is likely:
    numbers, lengths and versions have bytes that no text has, and a row's lengths add up.
    """

    name: str
    user_types: UserTypes

    def __call__(self, value: bytes) -> bytes:
        if is_text(value):
            return value
        if self.user_types.rows_around > MAX_ROWS_IN_ROWS:
            raise RefusedError(f"a row with at most {MAX_ROWS_IN_ROWS} rows in each other")
        if composites.is_record(value):
            return composites.record_text(value, self._field_text)
        raise RefusedError(
            "an enum, a row or text, as far as binary form can tell: say what it is in the configuration "
            f'(types: {{"{self.name}": …}}), or use a slot without binary'
        )

    def _field_text(self, oid: int, field: bytes) -> bytes:
        within = replace(self.user_types, rows_around=self.user_types.rows_around + 1)
        return column_type(oid, -1, within).binary_text(field)


_CONTROL = r"[\x00-\x08\x0b\x0c\x0e-\x1f]"

_CONTROL_BYTES = re.compile(_CONTROL.encode())


def fast_binary_label(sent: pa.Array, arrow: pa.DataType) -> pa.Array:
    return strings.fast_binary_string(pc.if_else(pc.match_substring_regex(sent, _CONTROL), None, sent), arrow)


def is_text(value: bytes) -> bool:
    if _CONTROL_BYTES.search(value):
        return False
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def check_configured(name: str, text: str) -> None:
    """ValueError(what was expected) for what the configuration's `types` can't say of a type."""
    written = written_type(text, BUILT_IN_OIDS)
    if "." in name.strip("."):
        return
    if name not in _CONFIGURABLE:
        near = get_close_matches(name, _CONFIGURABLE, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"expected schema.name of a user's type, or one of {', '.join(_CONFIGURABLE)}, as key{hint}")
    if name != "numeric" and (written.name != VARIANT or written.is_array):
        raise ValueError(f"expected {VARIANT}")
    is_decimal = pa.types.is_decimal(_TYPES[_NUMERIC](written.typmod).arrow)
    if name == "numeric" and (written.name != "numeric" or written.is_array or written.range_of or not is_decimal):
        raise ValueError("expected numeric(p,s) with p at most 38 and s from 0 to p")


def load_text(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    """Turn the values of one column, in text form as TupleData carries them ('t'), into an Arrow array.

    None is SQL's NULL. Raises ValueTextError for the first value that PostgreSQL would not have printed for
    this type, and OverflowError when there are 2 GiB or more of values.
    """
    return column_type.text_loader(column_type, values)
