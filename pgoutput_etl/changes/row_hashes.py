"""Hashes of the rows and keys in tuples of message rows, to compare rows written by the same transaction.

A value's bytes are hashed as sent: within a transaction, PostgreSQL prints equal values the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pgoutput_etl import jit
from pgoutput_etl.changes.tuple_columns import NULL, UNCHANGED, RawTuples, split_tuples
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.jit import load_word
from pgoutput_etl.protocol.decoder import read_tuple
from pgoutput_etl.protocol.messages import KIND_UNCHANGED, TupleData
from pgoutput_etl.scan.message_row import one_letter
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.types.kernels.dispatch import BINARY, UnsureError

Integers = npt.NDArray[np.int64]

UNKNOWN = 2  # instead of a row's hash, which is always odd: the change has no whole old tuple

_START, _FACTOR, _MASK = 0xCBF29CE484222325, 0x9E3779B97F4A7C15, (1 << 64) - 1

_START_64, _FACTOR_64 = np.uint64(_START), np.uint64(_FACTOR)

_LENGTH, _UNCHANGED = np.int32(BINARY - 1), np.int32(UNCHANGED)

_FULL, _UPDATE = np.uint8(ord("O")), np.uint8(ord("U"))

_0, _1, _2, _3, _8, _32 = (np.uint64(number) for number in (0, 1, 2, 3, 8, 32))


@dataclass(frozen=True, slots=True)
class RowHashes:
    """Per message row. old_key, new_key: hashes of the key that the change leaves and the key that it takes; the same
    if the key doesn't change; 0 for none. before, after: hashes of the whole row; 0 for none. before is UNKNOWN without
    a whole old tuple."""

    old_key: Integers
    new_key: Integers
    before: Integers
    after: Integers

    @classmethod
    def of(cls, rows: pa.RecordBatch, shape: TableShape) -> RowHashes:
        """rows: of events.ROW_SCHEMA. A row whose tuples can't be read has no hashes; `events` rejects it."""
        if jit.AVAILABLE:
            try:
                return cls(*_compiled_hashes(rows, shape))
            except (UnsureError, OverflowError):
                pass
        return cls(*readable_hashes(rows, shape))

    def taken(self, indices: Integers) -> RowHashes:
        return RowHashes(self.old_key[indices], self.new_key[indices], self.before[indices], self.after[indices])


def _compiled_hashes(rows: pa.RecordBatch, shape: TableShape) -> list[Integers]:
    new, old = RawTuples.of(rows.column("new")), RawTuples.of(rows.column("old"))
    tuples = split_tuples(new.followed_by(old), len(shape.relation.columns))
    hashes = np.zeros((4, rows.num_rows), np.uint64)
    tags, old_kinds = (one_letter(rows.column(name)) for name in ("tag", "old_kind"))
    key = np.array(shape.key, np.int64)
    _hash_rows(tuples.data, tuples.at, tuples.size, new.starts, old.starts, tags, old_kinds, key, hashes)
    return list(hashes.view(np.int64))


@jit.compiled
def _hash_rows(
    data: Any, at: Any, size: Any, new: Any, old: Any, tags: Any, old_kinds: Any, key: Any, hashes: Any
) -> None:
    """Writes the rows of `hashes`, which are the fields of RowHashes: old_key, new_key, before, after."""
    count = new.shape[0]
    for i in range(count):
        is_full = old[i] >= 0 and old_kinds[i] == _FULL
        if new[i] >= 0:
            after, new_key = _START_64, _START_64
            fill = i + count if is_full else i
            for c in range(size.shape[0]):
                after = _with_cell(data, at, size, c, fill if size[c, i] == _UNCHANGED else i, after)
            for k in range(key.shape[0]):
                c = key[k]
                new_key = _with_cell(data, at, size, c, fill if size[c, i] == _UNCHANGED else i, new_key)
            hashes[3, i], hashes[1, i] = after | _1, new_key | _1
        if old[i] >= 0:
            before, old_key = _START_64, _START_64
            for c in range(size.shape[0]):
                before = _with_cell(data, at, size, c, i + count, before)
            for k in range(key.shape[0]):
                old_key = _with_cell(data, at, size, key[k], i + count, old_key)
            hashes[2, i], hashes[0, i] = before | _1 if is_full else _2, old_key | _1
        elif tags[i] == _UPDATE:
            hashes[2, i], hashes[0, i] = _2, hashes[1, i]


@jit.compiled
def _with_cell(data: Any, at: Any, size: Any, column: Any, row: Any, hashed: Any) -> Any:
    s = size[column, row]
    if s < 0:  # NULL or UNCHANGED
        return _with_word(hashed, np.uint64(-s))
    p, length = np.uint64(at[column, row]), np.uint64(s & _LENGTH)
    end = p + length
    hashed = _with_word(hashed, length + _3)
    while end - p >= _8:
        hashed = _with_word(hashed, load_word(data, p))
        p += _8
    word, shift = _0, _0
    while p < end:
        word |= np.uint64(data[p]) << shift
        shift += _8
        p += _1
    return _with_word(hashed, word)


@jit.inlined
def _with_word(hashed: Any, word: Any) -> Any:
    hashed = (hashed ^ word) * _FACTOR_64
    return hashed ^ (hashed >> _32)


def readable_hashes(rows: pa.RecordBatch, shape: TableShape) -> list[Integers]:
    """Computes the same hashes as the kernels, in plain Python."""
    columns = [rows.column(name).to_pylist() for name in ("tag", "old_kind", "old", "new")]
    hashes = np.zeros((4, rows.num_rows), np.uint64)
    for i, (tag, old_kind, *tuples) in enumerate(zip(*columns, strict=True)):
        try:
            old, new = (None if data is None else _cells(read_tuple(data), shape) for data in tuples)
        except (ArchiveError, UnsureError):
            continue
        is_full = old is not None and old_kind == "O"
        if new is not None:
            if is_full and old is not None:
                new = [before if now == UNCHANGED else now for before, now in zip(old, new, strict=True)]
            hashes[3, i], hashes[1, i] = _hash(new), _hash(new[k] for k in shape.key)
        if old is not None:
            hashes[2, i], hashes[0, i] = _hash(old) if is_full else UNKNOWN, _hash(old[k] for k in shape.key)
        elif tag == "U":
            hashes[2, i], hashes[0, i] = UNKNOWN, hashes[1, i]
    return list(hashes.view(np.int64))


def _cells(data: TupleData, shape: TableShape) -> list[bytes | int]:
    """A tuple's values, with NULL or UNCHANGED for those that it doesn't contain."""
    if len(data.kinds) != len(shape.relation.columns):
        raise UnsureError
    pairs = zip(data.kinds, data.values, strict=True)
    return [value if value is not None else UNCHANGED if kind == KIND_UNCHANGED else NULL for kind, value in pairs]


def _hash(cells: Iterable[bytes | int]) -> int:
    hashed = _START
    for cell in cells:
        words = [-cell] if isinstance(cell, int) else [len(cell) + 3, *_words(cell)]
        for word in words:
            hashed = (hashed ^ word) * _FACTOR & _MASK
            hashed ^= hashed >> 32
    return hashed | 1


def _words(cell: bytes) -> list[int]:
    """Little-endian 8-byte numbers, then one with the remaining bytes."""
    end = len(cell) & ~7
    return [
        *(int.from_bytes(cell[i : i + 8], "little") for i in range(0, end, 8)),
        int.from_bytes(cell[end:], "little"),
    ]
