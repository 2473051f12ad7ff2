"""int2vector and oidvector, as PostgreSQL's text: numbers separated by spaces.

Binary form: an array of one dimension with lower bound 0 (array_send).
"""

from __future__ import annotations

import struct

from pgoutput_etl.types.binary import INT16, UINT32, ValueReader
from pgoutput_etl.types.column import TypeTable, always
from pgoutput_etl.types.strings import string_type

_HEADER = struct.Struct(">iiIii")  # dimensions, has NULLs, element OID, length, lower bound

_ELEMENT_SIZE = struct.Struct(">i")

_INT2, _OID = 21, 26


def int2vector_text(value: bytes) -> bytes:
    return _text(ValueReader(value, "an int2vector as int2vectorsend writes it"), _INT2, INT16)


def oidvector_text(value: bytes) -> bytes:
    return _text(ValueReader(value, "an oidvector as oidvectorsend writes it"), _OID, UINT32)


def _text(reader: ValueReader, element_oid: int, form: struct.Struct) -> bytes:
    dimensions, has_nulls, oid, count, lower_bound = reader.numbers(_HEADER)
    if (dimensions, has_nulls, oid, lower_bound) != (1, 0, element_oid, 0):
        raise reader.refusal()
    if count < 0 or reader.left() != count * (_ELEMENT_SIZE.size + form.size):
        raise reader.refusal()
    return b" ".join(b"%d" % _element(reader, form) for _ in range(count))


def _element(reader: ValueReader, form: struct.Struct) -> int:
    if reader.number(_ELEMENT_SIZE) != form.size:
        raise reader.refusal()
    return reader.number(form)


TYPES: TypeTable = {
    22: always(string_type("int2vector", int2vector_text)),
    30: always(string_type("oidvector", oidvector_text)),
}
