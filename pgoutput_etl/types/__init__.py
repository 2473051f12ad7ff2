"""PostgreSQL type (OID, typmod) -> Arrow type, and columns of text-form values -> Arrow arrays.

The Arrow types are those that Delta columns are made of. A value either arrives exactly, or is handed back
as PostgreSQL's text because the Arrow type can't hold it (``LoadedColumn.unrepresentable``), or is refused
with a ``ValueTextError`` because PostgreSQL would not have printed it. Nothing is rounded or guessed.

    column.py     what a column's type and a loaded column are; the fast and the careful way through a column
    boolean.py, integers.py … strings.py
                  one family of types each: its loaders, and at the end of the file its OIDs
    arrays.py, ranges.py, composites.py
                  types made of other types
    extensions.py, variants.py
                  types known by name, and those that the configuration asks for
    user_types.py what Type messages and the configuration say
    registry.py   all families together
    conversion.py what becomes of values whose column changes its type
"""

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
