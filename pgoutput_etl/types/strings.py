r"""Character, binary, and bit strings, and the column type of all values stored as PostgreSQL's text.

A text is stored exactly as sent: a char(n) with its padding, json with its spaces. The same goes for all types with
values that no Delta type can represent: a time of 24:00:00, an interval of months and days, a network.

bytea is read in hex form, ``\x`` and two digits per byte. The escape form (bytea_output = escape) is rejected. The
forms can't be confused: the escape form doubles every backslash, so its text never begins with ``\x``. The binary form
is the bytes themselves.

The text of bit(n) and varbit(n) is zeros and ones. Binary form: int32 number of bits, then the bytes that they fill.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Sequence

import pyarrow as pa

from pgoutput_etl.types.binary import INT32
from pgoutput_etl.types.column import (
    BinaryText,
    ColumnType,
    FastBinary,
    LoadedColumn,
    RefusedError,
    TypeTable,
    always,
    binary_array,
    convert_each,
    no_binary_form,
    with_modifier,
)


def load_string(_column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    return LoadedColumn(binary_array(values).cast(pa.string()), {})


def string_type(
    name: str, binary_text: BinaryText = no_binary_form, fast_binary: FastBinary | None = None
) -> ColumnType:
    return ColumnType(name, pa.string(), False, load_string, binary_text, fast_binary)


def sent_as_text(value: bytes) -> bytes:
    """textsend and others: the binary form is the text."""
    return value


def fast_binary_string(values: pa.Array, arrow: pa.DataType) -> pa.Array:
    try:
        return values.cast(arrow)
    except pa.ArrowInvalid:
        return pa.nulls(len(values), arrow)  # the detour through text finds the value that isn't UTF-8


def text_type(name: str) -> ColumnType:
    return string_type(name, sent_as_text, fast_binary_string)


def string_with_modifier(name: str, binary_text: BinaryText) -> Callable[[int], ColumnType]:
    return lambda typmod: string_type(with_modifier(name, typmod), binary_text)


def _sized_text(name: str, bare: str) -> Callable[[int], ColumnType]:
    """A type whose modifier is its size plus VARHDRSZ (4)."""
    return lambda typmod: text_type(f"{name}({typmod - 4})" if typmod >= 4 else bare)


def load_bytea(column_type: ColumnType, values: Sequence[bytes | None]) -> LoadedColumn:
    return LoadedColumn(binary_array(convert_each(column_type, values, _from_hex)), {})


def _from_hex(text: bytes) -> bytes:
    try:
        if text.startswith(b"\\x"):
            return binascii.unhexlify(text[2:])
    except binascii.Error:
        pass
    raise RefusedError(r"bytes in hex form (\x and pairs of digits); the sender's bytea_output must be hex")


def bytea_text(value: bytes) -> bytes:
    return b"\\x" + binascii.hexlify(value)


def unchanged(values: pa.Array, _arrow: pa.DataType) -> pa.Array:
    """The binary form is the value."""
    return values


def bits_text(value: bytes) -> bytes:
    packed = value[INT32.size :]
    count = INT32.unpack_from(value)[0] if len(value) >= INT32.size else -1
    digits = f"{int.from_bytes(packed, 'big'):0{8 * len(packed)}b}" if packed else ""
    if count < 0 or len(packed) != (count + 7) // 8 or "1" in digits[count:]:
        raise RefusedError("a bit string as bit_send and varbit_send write it")
    return digits[:count].encode("ascii")


TYPES: TypeTable = {
    17: always(ColumnType("bytea", pa.binary(), False, load_bytea, bytea_text, unchanged)),
    19: always(text_type("name")),
    25: always(text_type("text")),
    1033: always(string_type("aclitem")),  # has no send function: sent as text even among binary values
    1042: _sized_text("char", "bpchar"),
    1043: _sized_text("varchar", "varchar"),
    1560: string_with_modifier("bit", bits_text),
    1562: string_with_modifier("varbit", bits_text),
    1790: always(text_type("refcursor")),
}
