"""Rows of the frames that show an archive."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pgoutput_etl.changes.event_log import sequence_numbers
from pgoutput_etl.explore.archive_rows import sequence
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.schema.table_shape import table_shape
from tests.support.small_archives import T, table


@pytest.mark.parametrize("place", [(0, 7), (1, 0), (1 << 23, 1), (2**31 - 1, 2**31 - 1)])
def test_a_change_has_the_sequence_number_of_mode_append(place: tuple[int, int]) -> None:
    relation = table("id")
    shape = table_shape(relation, RelationVersions(T, (relation,), {None: (((0, 0), 0),)}), None)
    row = {"_file": place[0], "_ordinal": place[1], "_op": "I"}
    expected = sequence_numbers(pa.RecordBatch.from_pylist([row], shape.event_schema()), shape)
    assert sequence(*(pa.array([n], pa.int64()) for n in place)) == expected
