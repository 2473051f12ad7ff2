"""All events of a table, including those that a mirror does not need."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest

from pgoutput_etl.changes.event_log import every_event, old_keys, sequence_numbers
from pgoutput_etl.changes.events import ROW_SCHEMA
from pgoutput_etl.errors import TableError
from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.schema.table_shape import TableShape, table_shape
from pgoutput_etl.targets.plan import BEFORE_FILES
from tests.support.small_archives import TOAST, T, copydata, delete, insert, table, transaction, truncate, update

DATE = 1082
RELATION = table(("day", DATE), "id", "big", key=("day", "id"))
MESSAGES = [
    *transaction(1, 100, RELATION, insert("2024-02-29", "a", "B"), update("2024-02-29", "a", TOAST)),
    *transaction(2, 200, update("infinity", "a", TOAST, old_key=("2024-02-29", "a", None)), truncate()),
    *transaction(
        3, 300, insert("infinity", "b", None), update("2024-01-31", "b", None, old_key=("infinity", "b", None))
    ),
    *transaction(4, 400, delete("2024-01-31", "b", None), truncate(), truncate()),
]


def all_events() -> pa.Table:
    replay = Replay()
    replay.add_file("0", copydata(MESSAGES))
    rows = replay.rows_by_relation()[T]
    shape = table_shape(RELATION, replay.assembly.relations.versions(T), None, frozenset({2}))
    batch = pa.RecordBatch.from_pylist(rows, ROW_SCHEMA)
    batches = list(every_event(batch, shape))
    keys = [old_keys(part, shape) for part in batches]
    return pa.Table.from_batches(batches).append_column("old", pa.chunked_array(keys))


def test_all_events_are_returned_including_truncates() -> None:
    rows = all_events().sort_by([(name, "ascending") for name in ("_lsn", "_file", "_ordinal")]).to_pylist()
    assert [(row["_lsn"], row["_op"]) for row in rows if row["_op"] != "X"] == [
        *((100, "I"), (100, "U"), (200, "V"), (200, "T"), (300, "I"), (300, "V"), (400, "D"), (400, "T"), (400, "T")),
    ]
    truncates = [row for row in rows if row["_op"] == "T"]
    assert [(row["_xid"], row["c1"], row["_unrep"]) for row in truncates] == [(2, None, None), *[(4, None, None)] * 2]
    assert {row["_ts"].year for row in rows} == {2000}


def test_an_old_key_is_postgresqls_text_even_if_its_type_can_not_represent_it() -> None:
    moved = [(row["old"], row["_op"]) for row in all_events().to_pylist() if row["old"] is not None]
    assert [op for _, op in moved] == ["V", "V"]
    assert [{entry["key"]: entry["value"] for entry in old} for old, _ in moved] == [
        {"day": "2024-02-29", "id": "a"},
        {"day": "infinity", "id": "b"},
    ]


LAST_FILE = LAST_MESSAGE = 2**31 - 1
OLD_LIMIT = 1 << 23  # at this file number, numbers with room for 2^39 messages wrapped around


def shape_of(identity: ReplicaIdentity) -> TableShape:
    relation = table("id", "v", identity=identity)
    return table_shape(relation, RelationVersions(T, (relation,), {None: (((0, 0), 0),)}), None)


def numbered(places: list[tuple[int, int, str]], identity: ReplicaIdentity = ReplicaIdentity.FULL) -> list[int]:
    shape = shape_of(identity)
    rows = [{"_file": file, "_ordinal": ordinal, "_op": op} for file, ordinal, op in places]
    numbers: list[int] = sequence_numbers(pa.RecordBatch.from_pylist(rows, shape.event_schema()), shape).to_pylist()
    return numbers


def test_sequence_numbers_rise_with_positions_up_to_the_limit() -> None:
    """A snapshot's rows, then the archive's; a bag's UPDATE is two rows."""
    snapshot = [(BEFORE_FILES, ordinal) for ordinal in (0, LAST_MESSAGE, LAST_MESSAGE + 1, (1 << 51) - 1)]
    of_files = [
        (file, ordinal) for file in (0, 1, OLD_LIMIT - 1, OLD_LIMIT, LAST_FILE) for ordinal in (0, LAST_MESSAGE)
    ]
    numbers = numbered([(*place, op) for place in (*snapshot, *of_files) for op in "DI"])
    assert all(a < b for a, b in pairwise(numbers))
    assert numbers[-1] == 2**63 - 1
    assert numbered([(0, 1, "I"), (0, 2, "V")], ReplicaIdentity.DEFAULT) == [2, 4]


@pytest.mark.parametrize(
    "place", [(LAST_FILE + 1, 0), (0, LAST_MESSAGE + 1), (BEFORE_FILES, 1 << 51), (-LAST_FILE - 2, 0), (0, -1)]
)
def test_a_change_beyond_the_last_sequence_number_is_refused(place: tuple[int, int]) -> None:
    with pytest.raises(TableError, match="mode append numbers the changes of 2,147,483,648 files"):
        numbered([(0, 0, "I"), (*place, "I")])
