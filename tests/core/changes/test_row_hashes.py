"""Compiled hashes of rows and keys equal the readable ones."""

from __future__ import annotations

from itertools import product

import numpy as np
import pyarrow as pa
import pytest

from pgoutput_etl import jit
from pgoutput_etl.changes.events import ROW_SCHEMA
from pgoutput_etl.changes.row_hashes import UNKNOWN, RowHashes, _compiled_hashes, readable_hashes
from pgoutput_etl.protocol.messages import ReplicaIdentity
from tests.core.changes.test_events import Change, batch, shape_of
from tests.support.small_archives import TOAST, Value, delete_full, insert, table, update

SHAPE = shape_of(table("id", "v", "w", identity=ReplicaIdentity.FULL), key=("w", "id"))
VALUES: list[Value] = [None, "", "a", "0123456", "01234567", "012345678", "0123456789abcdef", "é" * 40]
CHANGES: list[Change] = [
    *(insert("1", v, w) for v, w in product(VALUES, VALUES)),
    *(update("1", v, TOAST, old=("2", w, v)) for v, w in product(VALUES, VALUES)),
    *(update("1", v, TOAST, old_key=("2", None, "w")) for v in VALUES),
    *(update("1", v, "w") for v in VALUES),
    *(delete_full("1", v, "w") for v in VALUES),
]


@pytest.mark.skipif(not jit.AVAILABLE, reason="kernels need numba")
def test_twins() -> None:
    rows = batch(*CHANGES)
    for one, other in zip(_compiled_hashes(rows, SHAPE), readable_hashes(rows, SHAPE), strict=True):
        assert (one == other).all()


def test_hashes_are_equal_for_equal_rows_alone() -> None:
    rows = [(v, w) for v, w in product(VALUES, VALUES)]
    hashes = RowHashes.of(batch(*(insert("1", *row) for row in rows)), SHAPE)
    assert len(np.unique(hashes.after)) == len(rows)
    assert len(np.unique(hashes.new_key)) == len(VALUES)
    olds = RowHashes.of(batch(*(delete_full("1", *row) for row in rows)), SHAPE)
    assert (olds.before == hashes.after).all()
    assert (olds.old_key == hashes.new_key).all()


def test_an_update_without_a_whole_old_tuple() -> None:
    hashes = RowHashes.of(batch(update("1", "a", "w"), update("1", "a", "w", old_key=("2", None, "w"))), SHAPE)
    assert hashes.before.tolist() == [UNKNOWN, UNKNOWN]
    assert (hashes.old_key == hashes.new_key).tolist() == [True, False]


def test_a_tuple_that_cannot_be_read_has_no_hash() -> None:
    rows = batch(insert("1", "a", "w"), insert("1", "a")).to_pylist()
    hashes = RowHashes.of(pa.RecordBatch.from_pylist(rows, ROW_SCHEMA), SHAPE)
    assert (hashes.after != 0).tolist() == [True, False]
