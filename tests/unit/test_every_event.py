"""Every event of a table, in place of those that a mirror needs."""

from __future__ import annotations

import pyarrow as pa

from pgoutput_etl.changes import ROW_SCHEMA, table_shape
from pgoutput_etl.every_event import every_event, old_keys
from pgoutput_etl.replay import Replay
from tests.small_archives import TOAST, T, copydata, delete, insert, table, transaction, truncate, update

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


def test_none_is_left_out_and_truncates_are_among_them() -> None:
    found = all_events().sort_by([(name, "ascending") for name in ("_lsn", "_file", "_ordinal")]).to_pylist()
    assert [(row["_lsn"], row["_op"]) for row in found if row["_op"] != "X"] == [
        *((100, "I"), (100, "U"), (200, "V"), (200, "T"), (300, "I"), (300, "V"), (400, "D"), (400, "T"), (400, "T")),
    ]
    truncates = [row for row in found if row["_op"] == "T"]
    assert [(row["_xid"], row["c1"], row["_unrep"]) for row in truncates] == [(2, None, None), *[(4, None, None)] * 2]
    assert {row["_ts"].year for row in found} == {2000}


def test_an_old_key_is_postgresqls_text_also_of_what_its_type_can_not_hold() -> None:
    moved = [(row["old"], row["_op"]) for row in all_events().to_pylist() if row["old"] is not None]
    assert [op for _, op in moved] == ["V", "V"]
    assert [{entry["key"]: entry["value"] for entry in old} for old, _ in moved] == [
        {"day": "2024-02-29", "id": "a"},
        {"day": "infinity", "id": "b"},
    ]
