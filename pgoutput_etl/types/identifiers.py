"""uuid, and the types of PostgreSQL's own catalogs: transactions, snapshots, tuple and WAL positions, OIDs, vectors.

The reg* types (regclass, regtype, …) print the name of the object with an OID. Their binary form is the OID, and the
name isn't in the archive, so the value is the OID in digits. PostgreSQL reads both as the same value, and itself prints
digits if no object has that OID.

int2vector and oidvector are printed as numbers separated by spaces, and sent as a one-dimensional array with lower
bound 0 (array_send).
"""

from __future__ import annotations

import struct
from uuid import UUID

from pgoutput_etl.types.binary import UINT32, UINT64, IntegerText, ValueReader, number, unpacked
from pgoutput_etl.types.column import RefusedError, TypeTable, always
from pgoutput_etl.types.strings import string_type

_TID = struct.Struct(">IH")

_UUID_SIZE = 16

_LSN_HALF = 0xFFFFFFFF

_VECTOR = struct.Struct(">iiIii")  # dimensions, has NULLs, element OID, length, lower bound

_INT2, _OID = 21, 26


def uuid_text(value: bytes) -> bytes:
    if len(value) != _UUID_SIZE:
        raise RefusedError("a uuid of 16 bytes")
    return str(UUID(bytes=value)).encode("ascii")


def tid_text(value: bytes) -> bytes:
    return b"(%d,%d)" % unpacked(_TID, value, "a tid of 6 bytes")


def pg_lsn_text(value: bytes) -> bytes:
    """The format of PostgreSQL 18 and older; PostgreSQL 19 will pad the second half to eight digits."""
    lsn = number(UINT64, value, "a pg_lsn of 8 bytes")
    return b"%X/%X" % (lsn >> 32, lsn & _LSN_HALF)


def snapshot_text(value: bytes) -> bytes:
    """pg_snapshot_send: int32 count, xmin, xmax, and that many running transactions between them, ascending."""
    reader = ValueReader(value, "a snapshot as pg_snapshot_send writes it")
    count = reader.int32()
    if count < 0 or reader.left() != (count + 2) * UINT64.size:
        raise reader.refusal()
    xmin, xmax, *running = reader.numbers(struct.Struct(f">{count + 2}Q"))
    ascending = sorted(set(running)) == running
    if not 0 < xmin <= xmax or not ascending or (running and not xmin <= running[0] <= running[-1] < xmax):
        raise reader.refusal()
    return b"%d:%d:%s" % (xmin, xmax, b",".join(b"%d" % xid for xid in running))


def oid_or_dash_text(value: bytes) -> bytes:
    oid = number(UINT32, value, "an OID of 4 bytes")
    return b"%d" % oid if oid else b"-"


_oid_text = IntegerText("an OID of 4 bytes", 4)  # for regoper and regoperator, which print OID 0 as 0


def int2vector_text(value: bytes) -> bytes:
    return _vector_text(value, _INT2, IntegerText("an int2vector as int2vectorsend writes it", 2, is_signed=True))


def oidvector_text(value: bytes) -> bytes:
    return _vector_text(value, _OID, IntegerText("an oidvector as oidvectorsend writes it", 4))


def _vector_text(value: bytes, element_oid: int, element_text: IntegerText) -> bytes:
    reader = ValueReader(value, element_text.expected)
    dimensions, has_nulls, oid, count, lower_bound = reader.numbers(_VECTOR)
    if (dimensions, has_nulls, oid, lower_bound) != (1, 0, element_oid, 0) or count < 0:
        raise reader.refusal()
    elements = [element_text(reader.required()) for _ in range(count)]
    reader.end()
    return b" ".join(elements)


TYPES: TypeTable = {
    22: always(string_type("int2vector", int2vector_text)),
    24: always(string_type("regproc", oid_or_dash_text)),
    27: always(string_type("tid", tid_text)),
    29: always(string_type("cid", IntegerText("a cid of 4 bytes", 4))),
    30: always(string_type("oidvector", oidvector_text)),
    2202: always(string_type("regprocedure", oid_or_dash_text)),
    2203: always(string_type("regoper", _oid_text)),
    2204: always(string_type("regoperator", _oid_text)),
    2205: always(string_type("regclass", oid_or_dash_text)),
    2206: always(string_type("regtype", oid_or_dash_text)),
    2950: always(string_type("uuid", uuid_text)),
    2970: always(string_type("txid_snapshot", snapshot_text)),
    3220: always(string_type("pg_lsn", pg_lsn_text)),
    3734: always(string_type("regconfig", oid_or_dash_text)),
    3769: always(string_type("regdictionary", oid_or_dash_text)),
    4089: always(string_type("regnamespace", oid_or_dash_text)),
    4096: always(string_type("regrole", oid_or_dash_text)),
    4191: always(string_type("regcollation", oid_or_dash_text)),
    5038: always(string_type("pg_snapshot", snapshot_text)),
    5069: always(string_type("xid8", IntegerText("an xid8 of 8 bytes", 8))),
}
