"""All families of types together: from what a Relation message says of a column to what its values become."""

from __future__ import annotations

from collections.abc import Sequence

from pgoutput_etl.types import (
    arrays,
    bits,
    boolean,
    bytea,
    datetimes,
    documents,
    floats,
    geometric,
    identifiers,
    integers,
    money,
    network,
    numeric,
    strings,
    text_search,
    times,
    vectors,
)
from pgoutput_etl.types.column import ColumnType, LoadedColumn, TypeTable
from pgoutput_etl.types.user_types import NO_USER_TYPES, UserTypes

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
    **arrays.TYPES,
}


def column_type(oid: int, typmod: int, _user_types: UserTypes = NO_USER_TYPES) -> ColumnType:
    """The type of a column as a Relation message describes it ("OID of the column's data type", "type
    modifier of the column (atttypmod)", -1 if there is none). Any OID that isn't built in is a string.
    """
    from_typmod = _TYPES.get(oid)
    return from_typmod(typmod) if from_typmod else strings.string_type(f"oid {oid}")


def load_text(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    """Turn the values of one column, in text form as TupleData carries them ('t'), into an Arrow array.

    None is SQL's NULL. Raises ValueTextError for the first value that PostgreSQL would not have printed for
    this type, and OverflowError when there are 2 GiB or more of values.
    """
    return column_type.text_loader(column_type, values)
