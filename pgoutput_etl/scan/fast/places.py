"""The compiled twin of landed_tuples: finds the tuples of changes whose frames are known, and copies them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pgoutput_etl.jit import PADDING, compiled
from pgoutput_etl.protocol.decoder import MAX_COLUMNS
from pgoutput_etl.protocol.framing import FRAMINGS, Framing
from pgoutput_etl.scan.fast.messages import (
    FIELDS,
    NEW,
    NEW_END,
    OLD,
    OLD_END,
    OLD_KIND,
    RELATION,
    TAG,
    XID,
    Bytes,
    Numbers,
    find_messages,
)
from pgoutput_etl.scan.fast.row_arrays import bitmap, gather

_U64 = np.uint64


def read_tuples(data: Bytes, framing: Framing, offsets: Numbers, expected: Numbers) -> tuple[pa.Array, pa.Array] | None:
    """The old and new tuples of the changes whose frames begin at `offsets` in `data`; NULL for a missing one. None if
    a change isn't as `expected`, or isn't a message that `find_messages` accepts.

    expected: per change, its tag, OID, kind of old tuple (or 0), and xid (or -1).
    """
    count = len(offsets)
    fields = np.empty((count, FIELDS), np.int64)
    unchanged = np.empty(4 * MAX_COLUMNS, np.int16)
    if _locate(data, FRAMINGS.index(framing), offsets, expected, fields, unchanged) < count:
        return None
    return _copied(data, fields, OLD, OLD_END), _copied(data, fields, NEW, NEW_END)


@compiled
def _locate(
    data: Bytes, framing: int, offsets: Numbers, expected: Numbers, fields: Numbers, unchanged: NDArray[np.int16]
) -> int:
    """Writes the fields of each message. Returns how many messages are as expected before the first one that isn't."""
    for i in range(len(offsets)):
        r = _U64(i)
        in_stream = expected[r, 3] >= 0
        found, _ = find_messages(data, framing, offsets[r], in_stream, 1, fields[i : i + 1], unchanged)
        if found != 1 or fields[r, TAG] != expected[r, 0] or fields[r, RELATION] != expected[r, 1]:
            return i
        if fields[r, OLD_KIND] != expected[r, 2] or (in_stream and fields[r, XID] != expected[r, 3]):
            return i
    return len(offsets)


def _copied(data: Bytes, fields: Numbers, begin: int, end: int) -> pa.Array:
    count = len(fields)
    nulls, validity = bitmap((fields[:, begin] > 0).view(np.uint8))
    if nulls == count:
        return pa.nulls(count, pa.binary())
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(fields[:, end] - fields[:, begin], out=ends[1:])
    values = np.empty(int(ends[-1]) + PADDING, np.uint8)
    gather(data, fields, begin, np.arange(count), ends, 0, count, values)
    return pa.Array.from_buffers(pa.binary(), count, [validity, pa.py_buffer(ends), pa.py_buffer(values)], nulls)
