"""The key columns of INSERTs, without loading any other column."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl import jit
from pgoutput_etl.changes.fast_events import check_versions, event_batches
from pgoutput_etl.changes.tuple_columns import SEEN_UNCHANGED, RawTuples, split_tuples
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.types import ValueTextError
from pgoutput_etl.types.kernels.dispatch import UnsureError, load_cells


def inserted_keys(rows: pa.RecordBatch, shape: TableShape) -> list[pa.Array] | None:
    """The key columns. None if a row has unchanged TOAST, which no server sends in an INSERT."""
    if jit.AVAILABLE:
        try:
            return _fast_keys(rows, shape)
        except (UnsureError, ValueTextError, OverflowError):
            pass
    events = pa.Table.from_batches(event_batches(rows, shape), shape.event_schema()).combine_chunks()
    if any(pc.any(events.column(f"u{i}")).as_py() for i in shape.toast):
        return None
    return [events.column(f"c{i}").combine_chunks() for i in shape.key]


def _fast_keys(rows: pa.RecordBatch, shape: TableShape) -> list[pa.Array]:
    check_versions(rows, shape)
    new = RawTuples.of(rows.column("new"))
    if bool((new.starts < 0).any()):
        raise UnsureError
    tuples = split_tuples(new, len(shape.relation.columns))
    if bool((tuples.seen & SEEN_UNCHANGED).any()):
        raise UnsureError
    indices = np.arange(len(new), dtype=np.int32)
    return [load_cells(shape.columns[i].type, tuples.cells(i, indices)).array for i in shape.key]
