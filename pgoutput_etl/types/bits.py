"""bit(n) and varbit(n), as PostgreSQL's text of zeros and ones.

Binary form: int32 number of bits, and the bytes that they fill.
"""

from __future__ import annotations

from pgoutput_etl.types.binary import INT32
from pgoutput_etl.types.column import ColumnType, RefusedError, TypeTable
from pgoutput_etl.types.strings import string_type

_EXPECTED = "a bit string as bit_send and varbit_send write it"


def bits_text(value: bytes) -> bytes:
    if len(value) < INT32.size:
        raise RefusedError(_EXPECTED)
    (count,) = INT32.unpack_from(value)
    packed = value[INT32.size :]
    if count < 0 or len(packed) != (count + 7) // 8:
        raise RefusedError(_EXPECTED)
    digits = f"{int.from_bytes(packed, 'big'):0{8 * len(packed)}b}" if packed else ""
    if "1" in digits[count:]:
        raise RefusedError(_EXPECTED)
    return digits[:count].encode("ascii")


def bit_type(typmod: int) -> ColumnType:
    return string_type(f"bit({typmod})" if typmod >= 0 else "bit", bits_text)


def varbit_type(typmod: int) -> ColumnType:
    return string_type(f"varbit({typmod})" if typmod >= 0 else "varbit", bits_text)


TYPES: TypeTable = {
    1560: bit_type,
    1562: varbit_type,
}
