"""The package's kernels, as decoding.py measures them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from benchmarks.wire_arrays import Table
from pgoutput_etl import jit
from pgoutput_etl.changes.tuple_columns import RawTuples
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.scan.fast.messages import (
    MOST_MESSAGES,
    NEW,
    NEW_END,
    NEXT,
    OLD,
    OLD_END,
    TAG,
    MessageFields,
    Numbers,
    find,
)
from pgoutput_etl.types import ColumnType, column_type
from tests.support.typed_tuples import typed_columns

BY_BATCH = "kernels: typed Arrow columns, a batch at a time"
_I, _U, _D = b"IUD"
ALL_KEPT = "kernels: typed Arrow columns, all kept"


def kernels(table: Table) -> dict[str, Callable[[bytes, int], object]]:
    """Functions by name that turn a file's bytes into typed Arrow columns of one table."""
    if not jit.AVAILABLE:
        return {}
    types = [column_type(column.oid, column.typmod) for column in table.columns]
    return {
        "kernels: messages found and checked": lambda data, _: find_all(data),
        BY_BATCH: lambda data, messages: _one_by_one(to_columns(data, messages, types)),
        ALL_KEPT: lambda data, messages: [*to_columns(data, messages, types)],
    }


def _one_by_one(batches: Iterator[list[pa.Array]]) -> None:
    for _ in batches:
        pass


def find_all(data: bytes) -> int:
    """The number of messages in the data."""
    content, fields = np.frombuffer(data, np.uint8), MessageFields()
    at = count = 0
    while at < len(data):
        find(content, Framing.LENGTH_PREFIXED, at, False, MOST_MESSAGES, fields)
        count += fields.messages
        at = int(fields.values[fields.messages - 1, NEXT])
    return count


def to_columns(data: bytes, messages: int, types: list[ColumnType]) -> Iterator[list[pa.Array]]:
    """For each batch of messages, the columns of its changes' new tuples, or old tuples if there are no new ones.

    Raises AssertionError if a message is left out.
    """
    content, fields = np.frombuffer(data, np.uint8), MessageFields()
    at = count = 0
    while at < len(data):
        find(content, Framing.LENGTH_PREFIXED, at, False, MOST_MESSAGES, fields)
        if not fields.messages:
            raise AssertionError(f"offset {at}: expected messages that the kernels support")
        end = int(fields.values[fields.messages - 1, NEXT])
        starts, ends = (np.empty(fields.messages, np.int64) for _ in range(2))
        rows = _tuples(fields.values, fields.messages, at, starts, ends)
        raw = RawTuples(content[at:end], starts[:rows], ends[:rows])
        yield [column.array for column in typed_columns(raw, types)]
        count, at = count + fields.messages, end
    if count != messages:
        raise AssertionError(f"expected {messages:,} messages, found {count:,}")


@jit.compiled
def _tuples(fields: Numbers, messages: int, at: int, starts: Numbers, ends: Numbers) -> int:
    """Writes the tuples' starts and ends, relative to `at`, and returns their number."""
    rows = 0
    for i in range(messages):
        if fields[i, TAG] in (_I, _U, _D):
            is_new = fields[i, NEW_END] > 0
            starts[rows] = (fields[i, NEW] if is_new else fields[i, OLD]) - at
            ends[rows] = (fields[i, NEW_END] if is_new else fields[i, OLD_END]) - at
            rows += 1
    return rows
