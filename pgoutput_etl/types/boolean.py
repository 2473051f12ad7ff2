"""bool, which PostgreSQL prints as ``t`` or ``f`` and sends as 1 or 0. Arrow's cast knows neither."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.types.column import ColumnType, LoadedColumn, RefusedError, TypeTable, always, load_fast_then_careful


def load_bool(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    return load_fast_then_careful(column_type, values, fast_bool, careful_bool)


def fast_bool(texts: pa.Array, arrow: pa.DataType) -> pa.Array:
    return _one_of(texts, b"t", b"f", arrow)


def careful_bool(_text: bytes, _arrow: pa.DataType) -> bool:
    raise RefusedError("t or f")


def bool_text(value: bytes) -> bytes:
    if value not in (b"\0", b"\1"):
        raise RefusedError("a byte of 0 or 1")
    return b"t" if value == b"\1" else b"f"


def fast_binary_bool(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    return _one_of(values, b"\1", b"\0", arrow)


def _one_of(values: pa.Array, true: bytes, false: bytes, arrow: pa.DataType) -> pa.Array:
    false_or_null = pc.if_else(pc.equal(values, false), False, pa.scalar(None, arrow))
    return pc.if_else(pc.equal(values, true), True, false_or_null)


TYPES: TypeTable = {
    16: always(ColumnType("bool", pa.bool_(), False, load_bool, bool_text, fast_binary_bool)),
}
