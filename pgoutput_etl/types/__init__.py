"""Maps PostgreSQL types (OID, typmod) to Arrow types, and columns of text or binary values to Arrow arrays.

The Arrow types are those of Delta columns. A value either arrives exactly, or is returned as PostgreSQL's text because
the Arrow type can't represent it (``LoadedColumn.unrepresentable``), or is rejected with a ``ValueTextError`` because
PostgreSQL would not have printed or sent it. Nothing is rounded or guessed.

    column.py         ColumnType and LoadedColumn; the fast and the careful path through a column
    binary.py         building blocks of binary values
    datetime_format.py, shortest_float.py
                      PostgreSQL's output formats
    numbers.py, numeric.py … strings.py
                      one family of types each: loaders, binary form, and the table of OIDs at the end
    arrays.py, ranges.py, composites.py
                      types made of other types
    extensions.py, variants.py
                      types known by name; VARIANT columns
    user_types.py     type names from Type messages, and the configuration's `types`
    registry.py       lookup across all families
    printing.py       values back to PostgreSQL's text
    sql_type.py       the column's type in Spark's SQL, without Spark
    conversion.py     stored values after ALTER TABLE … TYPE
    kernels/          the compiled twin of the loaders
"""

from __future__ import annotations

from pgoutput_etl.types.column import ColumnType, LoadedColumn, Storage, ValueTextError, load_binary, load_text
from pgoutput_etl.types.registry import check_configured, column_type, contradiction, is_user_type, type_of
from pgoutput_etl.types.user_types import NO_USER_TYPES, UserTypes

__all__ = [
    "NO_USER_TYPES",
    "ColumnType",
    "LoadedColumn",
    "Storage",
    "UserTypes",
    "ValueTextError",
    "check_configured",
    "column_type",
    "contradiction",
    "is_user_type",
    "load_binary",
    "load_text",
    "type_of",
]
