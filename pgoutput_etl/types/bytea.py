r"""bytea in hex form: ``\x`` and two digits per byte.

The escape form (bytea_output = escape) is refused. The forms can't be confused: the escape form doubles every
backslash, so its text never begins with ``\x``. The binary form is the bytes themselves.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence

import pyarrow as pa

from pgoutput_etl.types.column import ColumnType, LoadedColumn, TypeTable, ValueTextError, always, binary_array


def load_bytea(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    contents: list[bytes | None] = []
    for index, text in enumerate(values):
        if text is None:
            contents.append(None)
            continue
        try:
            if not text.startswith(b"\\x"):
                raise binascii.Error
            contents.append(binascii.unhexlify(text[2:]))
        except binascii.Error:
            expected = r"bytes in hex form (\x and pairs of digits); the sender's bytea_output must be hex"
            raise ValueTextError(index, column_type.name, expected) from None
    return LoadedColumn(binary_array(contents), {})


def bytea_text(value: bytes) -> bytes:
    return b"\\x" + binascii.hexlify(value)


def fast_binary_bytea(values: pa.Array, _arrow: pa.DataType) -> pa.Array:
    return values


TYPES: TypeTable = {
    17: always(ColumnType("bytea", pa.binary(), False, load_bytea, bytea_text, fast_binary_bytea)),
}
