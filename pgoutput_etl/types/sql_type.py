"""The SQL name of a target column's type, without Spark: bigint, decimal(10,2), array<string>."""

from __future__ import annotations

import pyarrow as pa

from pgoutput_etl.types.column import ColumnType, Storage

_PLAIN = {
    pa.bool_(): "boolean",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
    pa.timestamp("us", tz="UTC"): "timestamp",
}


def sql_type(column_type: ColumnType) -> str:
    """Equals `simpleString` of the Spark type in load/target_columns.py."""
    if column_type.storage is Storage.MAP:
        return "map<string,string>"
    if column_type.storage is Storage.VARIANT:
        return "variant"
    if column_type.element is not None:
        return f"array<{sql_type(column_type.element)}>"
    arrow = column_type.arrow
    return f"decimal({arrow.precision},{arrow.scale})" if pa.types.is_decimal(arrow) else _PLAIN[arrow]
