"""Loads every column of TupleData with the compiled loaders."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pgoutput_etl.changes.tuple_columns import RawTuples, split_tuples
from pgoutput_etl.types import ColumnType
from pgoutput_etl.types.column import LoadedColumn
from pgoutput_etl.types.kernels.dispatch import load_cells


def typed_columns(raw: RawTuples, types: Sequence[ColumnType]) -> list[LoadedColumn]:
    """Unchanged TOAST becomes NULL. Raises UnsureError and the errors of the types' loaders."""
    tuples = split_tuples(raw, len(types))
    rows = np.arange(len(raw), dtype=np.int32)
    return [load_cells(column_type, tuples.cells(column, rows)) for column, column_type in enumerate(types)]
