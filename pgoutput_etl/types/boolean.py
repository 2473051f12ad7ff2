"""bool, which PostgreSQL prints as ``t`` or ``f``. Arrow's cast knows true, false, 1, 0, and not these."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.types.column import (
    ColumnType,
    LoadedColumn,
    RefusedError,
    TypeTable,
    always,
    load_fast_then_careful,
)


def load_bool(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    return load_fast_then_careful(column_type, values, fast_bool, careful_bool)


def fast_bool(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    false_or_null = pc.if_else(pc.equal(texts, b"f"), False, pa.scalar(None, arrow))
    return pc.if_else(pc.equal(texts, b"t"), True, false_or_null)


def careful_bool(_text: bytes, _arrow: pa.DataType) -> bool:
    raise RefusedError("t or f")


TYPES: TypeTable = {
    16: always(ColumnType("bool", pa.bool_(), False, load_bool)),
}
