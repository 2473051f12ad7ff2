"""Splits TupleData of one relation with kernels: the kind, position, and size of each column's value.

Equivalent to decoder.read_tuple and types.load_text/load_binary, but without an object per value. Tuples are not
copied: they may be in a slice of a file, or in the memory of an Arrow array.

Source: PostgreSQL documentation, "Logical Replication Message Formats", TupleData.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pgoutput_etl.jit import compiled, load_length
from pgoutput_etl.protocol.messages import KIND_BINARY, KIND_NULL, KIND_TEXT, KIND_UNCHANGED
from pgoutput_etl.types.kernels.dispatch import BINARY, Cells, Numbers, UnsureError

NULL, UNCHANGED = -1, -2  # in place of a value's size

_BINARY = np.int32(BINARY)

_1, _2, _4, _5 = (np.uint64(number) for number in (1, 2, 4, 5))


@dataclass(frozen=True, slots=True)
class RawTuples:
    """data: uint8, less than 1 GiB. Tuple i is data[starts[i]:ends[i]] (int64), or missing if it starts at -1."""

    data: Numbers
    starts: Numbers
    ends: Numbers

    @classmethod
    def of(cls, array: pa.Array) -> RawTuples:
        """The tuples of a binary array; NULL is a missing tuple. Raises UnsureError for an array of another type."""
        if array.type not in (pa.binary(), pa.large_binary()):
            raise UnsureError
        _validity, offsets, content = array.buffers()
        if array.null_count == len(array):
            missing = np.full(len(array), -1, np.int64)
            return cls(np.empty(0, np.uint8), missing, missing)
        all_bounds = np.frombuffer(offsets, np.int64 if array.type == pa.large_binary() else np.int32)
        bounds = all_bounds[array.offset : array.offset + len(array) + 1].astype(np.int64)
        first, last = int(bounds[0]), int(bounds[-1])
        bounds -= first
        data = np.frombuffer(content, np.uint8)[first:last] if last > first else np.empty(0, np.uint8)
        starts, ends = bounds[:-1], bounds[1:]
        if array.null_count:
            starts = np.where(array.is_null().to_numpy(zero_copy_only=False), -1, starts)
        return cls(data, starts, ends)

    def __len__(self) -> int:
        return len(self.starts)

    def followed_by(self, others: RawTuples) -> RawTuples:
        """These tuples followed by the others. Copies the bytes if both have any."""
        shift = np.where(others.starts >= 0, len(self.data), 0)
        starts = np.concatenate([self.starts, others.starts + shift])
        ends = np.concatenate([self.ends, others.ends + shift])
        if not len(others.data) or not len(self.data):
            return RawTuples(self.data if len(self.data) else others.data, starts, ends)
        return RawTuples(np.concatenate([self.data, others.data]), starts, ends)


@dataclass(frozen=True, slots=True)
class SplitTuples:
    """The position of each value in `data`. at, size: of shape (columns, tuples), as in Cells. has_unchanged: by
    column, True if any tuple has an unchanged cell."""

    data: Numbers
    at: Numbers
    size: Numbers
    has_unchanged: Numbers

    def cells(self, column: int, chosen: Numbers) -> Cells:
        return Cells(self.data, self.at[column], self.size[column], chosen)


def split_tuples(raw: RawTuples, width: int) -> SplitTuples:
    """Raises UnsureError if a tuple is incomplete or doesn't have `width` columns."""
    if len(raw.data) >= BINARY:
        raise OverflowError("1 GiB or more of tuples in a batch; make it smaller")
    data = raw.data.view()
    data.flags.writeable = False  # like Arrow's memory, so that kernels are compiled only once
    at = np.empty((width, len(raw)), np.uint32)
    size = np.empty((width, len(raw)), np.int32)
    has_unchanged = np.zeros(width, np.bool_)
    if _split(data, raw.starts, raw.ends, at, size, has_unchanged) >= 0:
        raise UnsureError
    return SplitTuples(data, at, size, has_unchanged)


@compiled
def _split(data: Any, starts: Any, ends: Any, at: Any, size: Any, has_unchanged: Any) -> int:
    """The index of the first malformed tuple, or -1."""
    width = size.shape[0]
    for i in range(starts.shape[0]):
        if starts[i] < 0:
            for c in range(width):
                size[c, i] = NULL
                at[c, i] = 0
            continue
        p, end = np.uint64(starts[i]), np.uint64(ends[i])
        if end - p < _2 or np.int64(data[p]) << 8 | np.int64(data[p + _1]) != width:
            return i
        p += _2
        for c in range(width):
            if p >= end:
                return i
            kind = data[p]
            if kind == KIND_TEXT or kind == KIND_BINARY:
                p += _5
                if p > end:
                    return i
                length = load_length(data, p - _4)
                if length > end - p:
                    return i
                at[c, i] = p
                size[c, i] = np.int32(length)
                if kind == KIND_BINARY:
                    size[c, i] = np.int32(length) | _BINARY
                p += length
            elif kind == KIND_NULL:
                at[c, i] = 0
                size[c, i] = NULL
                p += _1
            elif kind == KIND_UNCHANGED:
                at[c, i] = 0
                size[c, i] = UNCHANGED
                has_unchanged[c] = True
                p += _1
            else:
                return i
        if p != end:
            return i
    return -1
