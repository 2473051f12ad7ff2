"""Encodes pgoutput messages by the million: columns of texts in, an Arrow array of encoded messages out.

Written from PostgreSQL's protocol chapter ("Logical Replication Message Formats"), like tests/support/encoder.py, which
encodes one message at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from struct import pack
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
# One part of each message: an array, or bytes that all messages share.
Part: TypeAlias = "pa.Array | bytes"


@dataclass(frozen=True, slots=True)
class Column:
    """A column as its Relation message describes it."""

    name: str
    oid: int
    typmod: int = -1
    is_key: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table as its Relation message describes it."""

    oid: int
    name: str
    columns: tuple[Column, ...]
    schema: str = "public"
    identity: bytes = b"d"

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns if column.is_key)


def fixed(*fields: tuple[str, object], size: int) -> pa.Array:
    """Concatenated fields of fixed width: (numpy type, values or one value), such as (">i4", 7)."""
    records = np.empty(size, np.dtype([(f"f{i}", kind) for i, (kind, _) in enumerate(fields)]))
    for i, (_, values) in enumerate(fields):
        records[f"f{i}"] = values
    width = records.dtype.itemsize
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), size, [None, pa.py_buffer(records)]).cast(pa.binary())


def joined(parts: Sequence[Part], size: int) -> pa.Array:
    """The concatenated parts of each message."""
    no_bytes = pa.scalar(b"", pa.binary())
    merged: list[Part] = []
    for are_bytes, group in groupby(parts, lambda part: isinstance(part, bytes)):
        run = [*group]
        merged += [pa.scalar(b"".join(run), pa.binary())] if are_bytes else run
    return pc.binary_join_element_wise(*merged, pa.repeat(no_bytes, size), no_bytes)


def cells(texts: pa.Array | None) -> list[Part]:
    """A column's values in text form; null becomes NULL; None: all are NULL."""
    if texts is None:
        return [b"n"]
    values = texts.cast(pa.binary())
    lengths = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False)
    heads = fixed(("S1", b"t"), (">i4", lengths), size=len(values))
    if values.null_count:
        heads = pc.if_else(values.is_null(), pa.scalar(b"n", pa.binary()), heads)
        values = values.fill_null(b"")
    return [heads, values]


def tuple_data(columns: Sequence[pa.Array | None]) -> list[Part]:
    return [pack(">H", len(columns)), *(part for column in columns for part in cells(column))]


def inserts(table: Table, columns: Sequence[pa.Array | None], size: int, xids: Ints | None = None) -> pa.Array:
    return joined([*_head(b"I", table, size, xids), b"N", *tuple_data(columns)], size)


def updates(table: Table, columns: Sequence[pa.Array | None], size: int, xids: Ints | None = None) -> pa.Array:
    """Updates without an old tuple, as the key stays."""
    return joined([*_head(b"U", table, size, xids), b"N", *tuple_data(columns)], size)


def deletes(table: Table, keys: Sequence[pa.Array | None], size: int, xids: Ints | None = None) -> pa.Array:
    """Deletes with the key only: `keys` has None for every other column."""
    return joined([*_head(b"D", table, size, xids), b"K", *tuple_data(keys)], size)


def begins(commit_lsns: Ints, times: Ints, xids: Ints) -> pa.Array:
    return fixed(("S1", b"B"), (">i8", commit_lsns), (">i8", times), (">u4", xids), size=len(xids))


def commits(commit_lsns: Ints, times: Ints) -> pa.Array:
    return fixed(
        ("S1", b"C"), ("u1", 0), (">i8", commit_lsns), (">i8", commit_lsns + 8), (">i8", times), size=len(times)
    )


def relation(table: Table, xid: int | None = None) -> bytes:
    head = b"R" + _xid(xid) + pack(">I", table.oid) + _string(table.schema) + _string(table.name) + table.identity
    return head + pack(">H", len(table.columns)) + b"".join(map(_column, table.columns))


def stream_start(xid: int, is_first: bool) -> bytes:
    return pack(">cIB", b"S", xid, is_first)


STREAM_STOP = b"E"


def stream_abort(xid: int, subxid: int) -> bytes:
    return pack(">cII", b"A", xid, subxid)


def stream_commit(xid: int, commit_lsn: int, time: int) -> bytes:
    return pack(">cIBQQq", b"c", xid, 0, commit_lsn, commit_lsn + 8, time)


def _head(tag: bytes, table: Table, size: int, xids: Ints | None) -> list[Part]:
    if xids is None:
        return [tag + pack(">I", table.oid)]
    return [fixed(("S1", tag), (">u4", xids), (">u4", table.oid), size=size)]


def _xid(xid: int | None) -> bytes:
    return b"" if xid is None else pack(">I", xid)


def _string(text: str) -> bytes:
    return text.encode() + b"\0"


def _column(column: Column) -> bytes:
    return pack(">B", column.is_key) + _string(column.name) + pack(">Ii", column.oid, column.typmod)
