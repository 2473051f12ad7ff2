"""PostgreSQL type (OID, typmod) -> Arrow type, and columns of values in text or binary form -> Arrow arrays.

The Arrow types are those that Delta columns are made of. A value either arrives exactly, or is handed back
as PostgreSQL's text because the Arrow type can't hold it (``LoadedColumn.unrepresentable``), or is refused
with a ``ValueTextError`` because PostgreSQL would not have printed it, or sent it. Nothing is rounded or guessed.

    column.py     what a column's type and a loaded column are; the fast and the careful way through a column
    binary.py, datetime_text.py, shortest_decimal.py, quoting.py
                  what binary forms are made of, and how PostgreSQL prints and quotes what is in them
    boolean.py, integers.py … strings.py
                  one family of types each: its loaders, its binary form, and at the end of the file its OIDs
    arrays.py, ranges.py, composites.py
                  types made of other types
    extensions.py, variants.py
                  types known by name, and those that the configuration asks for
    user_types.py what Type messages and the configuration say
    registry.py   all families together
    printing.py   stored values back to PostgreSQL's text
    conversion.py what becomes of values whose column changes its type
    kernels.py    whole columns of cells to Arrow arrays; number_kernels.py, float_kernels.py, datetime_kernels.py and
                  text_kernels.py do it, by digits.py
"""

from __future__ import annotations

from pgoutput_etl.types.column import ColumnType, LoadedColumn, Storage, ValueTextError, load_binary
from pgoutput_etl.types.registry import check_configured, column_type, load_text
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
    "load_binary",
    "load_text",
]
