"""Typed events from the message rows of one table, and the errors for rows that are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_etl.changes.events import ROW_SCHEMA, events
from pgoutput_etl.errors import ArchiveError, TableError
from pgoutput_etl.protocol.messages import Delete, Insert, Relation, ReplicaIdentity, TupleData, Update
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.schema.table_shape import TableShape, table_shape
from tests.support import encoder
from tests.support.small_archives import TOAST, T, delete, delete_full, insert, table, tuple_data, update

INT4, DATE, NUMERIC = 23, 1082, 1700
FULL = ReplicaIdentity.FULL
Change = Insert | Update | Delete
KEYED = table("id", "v", "w")
BAG = table("id", "v", "w", identity=FULL)


def shape_of(*versions: Relation, key: tuple[str, ...] | None = None, toast: Sequence[str] = ()) -> TableShape:
    """The versions hold from messages 0, 10, 20 … of file 7 on."""
    history = RelationHistory()
    for number, relation in enumerate(versions):
        history.declare(relation, (7, 10 * number), None)
    unchanged = frozenset(i for i, column in enumerate(versions[-1].columns) if column.name in toast)
    return table_shape(versions[-1], history.versions(T), key, unchanged)


def batch(*changes: Change, first: int = 1) -> pa.RecordBatch:
    """The changes as message rows of file 7, from ordinal `first` on, one every 100 bytes."""
    rows = []
    for ordinal, change in enumerate(changes, first):
        old = None if isinstance(change, Insert) else change.old
        new = None if isinstance(change, Delete) else change.new
        kind = None if isinstance(change, Insert) or change.old_kind is None else change.old_kind.value
        row: dict[str, Any] = {"tag": type(change).__name__[0], "old_kind": kind}
        row |= {"old": None if old is None else old.to_bytes(), "new": None if new is None else new.to_bytes()}
        place = {"file": 7, "ordinal": ordinal, "offset": 100 * ordinal}
        rows.append({**row, **place, "commit_lsn": 10, "commit_ts": 0, "top_xid": 3, "scope": None})
    return pa.RecordBatch.from_pylist(rows, ROW_SCHEMA)


def described(shape: TableShape, *changes: Change, first: int = 1) -> list[tuple[Any, ...]]:
    """Each event's operation and columns; "?" for an unknown unchanged value."""
    built = events(batch(*changes, first=first), shape)
    assert built.schema == shape.event_schema()
    return [
        (e["_op"], *("?" if e.get(f"u{i}") else e[f"c{i}"] for i in range(len(shape.columns))))
        for e in built.to_pylist()
    ]


def test_insert_update_delete() -> None:
    changes = (insert("1", "a", None), update("1", "b", "c"), delete("1", None, None))
    assert described(shape_of(KEYED), *changes) == [("I", "1", "a", None), ("U", "1", "b", "c"), ("D", "1", None, None)]


def test_events_have_commit_position_time_and_xid() -> None:
    first, second = events(batch(insert("1", "a", "b"), insert("2", "a", "b"), first=4), shape_of(KEYED)).to_pylist()
    assert [first[name] for name in ("_lsn", "_file", "_ordinal", "_xid")] == [10, 7, 4, 3]
    assert first["_ts"].isoformat() == "2000-01-01T00:00:00+00:00"
    assert second["_ordinal"] == 5


def test_no_rows_give_no_events() -> None:
    assert described(shape_of(KEYED)) == []


def test_an_update_of_the_key_moves_the_row_out_and_in() -> None:
    shape = shape_of(KEYED, toast=["w"])
    change = update("2", "b", TOAST, old_key=("1", None, None))
    assert described(shape, change) == [("X", "1", None, None), ("V", "2", "b", "?")]
    moved_out, moved_in = events(batch(change), shape).to_pylist()
    assert (moved_out["f0"], moved_in["f0"]) == (None, "1")


def test_an_old_tuple_with_the_same_key_moves_nothing() -> None:
    """As under FULL with a configured key, or if a key's value is stored out of line."""
    assert described(shape_of(KEYED), update("1", "b", "c", old_key=("1", None, None))) == [("U", "1", "b", "c")]
    keyed = shape_of(BAG, key=("id",))
    assert described(keyed, update("1", "b", "c", old=("1", "a", "c"))) == [("U", "1", "b", "c")]


def test_a_swap_of_keys() -> None:
    changes = [update(new, "v", "w", old_key=(old, None, None)) for old, new in (("1", "3"), ("2", "1"), ("3", "2"))]
    moves = [(op, key) for op, key, *_ in described(shape_of(KEYED), *changes)]
    assert moves == [("X", "1"), ("V", "3"), ("X", "2"), ("V", "1"), ("X", "3"), ("V", "2")]


def test_a_composite_key_moves_if_any_part_of_it_changes() -> None:
    shape = shape_of(table("v", "b", "a", key=("a", "b")))
    change = update("v", "1", "3", old_key=(None, "1", "2"))
    assert described(shape, change) == [("X", None, "1", "2"), ("V", "v", "1", "3")]
    assert [events(batch(change), shape).to_pylist()[1][name] for name in ("f1", "f2")] == ["1", "2"]


def test_under_full_unchanged_toast_is_filled_from_the_old_tuple() -> None:
    change = update("2", TOAST, TOAST, old=("1", "long", "longer"))
    assert described(shape_of(BAG), change) == [("D", "1", "long", "longer"), ("I", "2", "long", "longer")]
    keyed = shape_of(BAG, key=("id",), toast=["v", "w"])
    assert described(keyed, change) == [("X", "1", None, None), ("V", "2", "long", "longer")]


def test_the_whole_old_row_of_a_partition_fills_unchanged_toast_under_the_roots_key() -> None:
    moved, same = (update(new, TOAST, TOAST, old_key=("1", "long", "longer")) for new in ("2", "1"))
    shape = shape_of(KEYED, toast=["v", "w"])
    assert described(shape, moved) == [("X", "1", None, None), ("V", "2", "long", "longer")]
    assert described(shape, same) == [("U", "1", "long", "longer")]


def test_the_old_key_of_a_partition_leaves_toast_unchanged_under_a_full_root() -> None:
    change = update("2", TOAST, "w", old=("1", None, None))
    keyed = shape_of(BAG, key=("id",), toast=["v"])
    assert described(keyed, change) == [("X", "1", None, None), ("V", "2", "?", "w")]
    assert "and the old tuple lacks the value" in refusal(replace(keyed, moves_toast=False), change)
    assert refusal(shape_of(BAG), change).endswith("unchanged TOAST in a table without a key: " + NOBODY_SAYS)


def test_a_bag_of_partitions_with_whole_rows_needs_no_key() -> None:
    """Under a root without a replica identity, their old tuples are of kind K."""
    root = table("id", "v", "w", key=())
    changes = (insert("1", "a", None), update("1", TOAST, None, old_key=("1", "a", None)), delete("1", "a", None))
    inserted, deleted = ("I", "1", "a", None), ("D", "1", "a", None)
    partition = table("id", "v", "w", oid=T + 1, identity=FULL)
    shape = replace(shape_of(root), partitions=(partition,))
    assert described(shape, *changes) == [inserted, deleted, inserted, deleted]
    assert "a key-only old tuple" in refusal(replace(shape, partitions=()), *changes[2:])


def test_an_unchanged_key_column_is_filled_from_the_old_key() -> None:
    shape = shape_of(table("id", "part", "v", key=("id", "part")), toast=["part"])
    change = update("2", TOAST, "v", old_key=("1", "long", None))
    assert described(shape, change) == [("X", "1", "long", None), ("V", "2", "long", "v")]


def test_an_unchanged_column_outside_the_key_is_not_filled_from_it() -> None:
    assert described(shape_of(KEYED, toast=["v"]), update("1", TOAST, "w", old_key=("1", None, None))) == [
        ("U", "1", "?", "w")
    ]


def test_a_bag_has_only_inserts_and_deletes() -> None:
    changes = (insert("1", "a", None), update("1", "b", None, old=("1", "a", None)), delete_full("1", "b", None))
    assert described(shape_of(BAG), *changes) == [
        ("I", "1", "a", None),
        ("D", "1", "a", None),
        ("I", "1", "b", None),
        ("D", "1", "b", None),
    ]


def test_rows_of_another_version_are_refused() -> None:
    shape = shape_of(table("id", "gone", "v"), table("id", "v", "new"))
    assert described(shape, insert("2", "b", "n"), first=11) == [("I", "2", "b", "n")]
    with pytest.raises(ArchiveError, match=r"offset 100: public\.t: its Relation message has other columns"):
        described(shape, insert("1", "g", "a"), first=1)


def retired(*columns: str) -> TableShape:
    history = RelationHistory()
    history.declare(KEYED, (7, 0), None)
    return table_shape(KEYED, history.versions(T), None, retired=table(*columns).columns)


def test_a_retired_column_stays_with_its_row_and_is_null_in_a_new_one() -> None:
    shape = retired("old")
    moved = update("2", "e", "f", old_key=("1", None, None))
    changes: tuple[Change, ...] = (insert("1", "a", "b"), update("1", "c", "d"), moved, delete("2", None, None))
    assert described(shape, *changes) == [
        ("I", "1", "a", "b", None),
        ("U", "1", "c", "d", "?"),
        ("X", "1", None, None, None),
        ("V", "2", "e", "f", "?"),
        ("D", "2", None, None, None),
    ]


def test_one_tuple_and_one_column_may_have_binary_and_text() -> None:
    """A type without a send function comes as text; a slot may be started with binary 'true' and then without."""
    shape = shape_of(table("id", ("n", INT4), ("d", DATE)))
    infinity, day = b"\x7f\xff\xff\xff", b"\0\0\0\1"
    changes = (
        Insert(None, T, TupleData(b"tbb", (b"1", b"\0\0\0\7", infinity))),
        insert("2", "8", "infinity"),
        insert("3", None, None),
        Insert(None, T, TupleData(b"btb", (b"4", b"9", day))),
    )
    rows = events(batch(*changes), shape).to_pylist()
    assert [(e["c0"], e["c1"]) for e in rows] == [("1", 7), ("2", 8), ("3", None), ("4", 9)]
    assert [str(e["c2"]) for e in rows] == ["None", "None", "None", "2000-01-02"]
    assert [bool(e["_unrep"]) for e in rows] == [True, True, False, False]


def test_an_unrepresentable_value_is_null_and_kept_as_text() -> None:
    shape = shape_of(table("id", ("d", DATE), ("e", DATE)))
    changes = insert("1", "infinity", "2026-11-21"), insert("2", "-infinity", "0044-03-15 BC"), insert("3", None, None)
    first, second, third = events(batch(*changes), shape).to_pylist()
    assert (first["c1"], first["_unrep"]) == (None, [{"key": "d", "value": "infinity"}])
    assert {entry["key"]: entry["value"] for entry in second["_unrep"]} == {"d": "-infinity", "e": "0044-03-15 BC"}
    assert third["_unrep"] is None


def test_unrepresentable_keys_differ_by_their_text() -> None:
    shape = shape_of(table(("day", DATE), "v", key=("day",)))
    out, into = events(batch(update("-infinity", "a", old_key=("infinity", None))), shape).to_pylist()
    assert (out["_op"], out["c0"], out["_unrep"]) == ("X", None, [{"key": "day", "value": "infinity"}])
    assert (into["_op"], into["c0"], into["_unrep"]) == ("V", None, [{"key": "day", "value": "-infinity"}])
    assert into["_from_unrep"] == [{"key": "day", "value": "infinity"}]
    assert events(batch(update("infinity", "a", old_key=("infinity", None))), shape).to_pylist()[0]["_op"] == "U"


def refusal(shape: TableShape, *changes: Change) -> str:
    with pytest.raises(ArchiveError) as raised:
        events(batch(*changes), shape)
    assert raised.value.__suppress_context__
    return str(raised.value)


FINE = insert("1", "1", "1")

NOBODY_SAYS = "nothing says which row has the value"
PARTITION = (
    ". Partitions that are published through this root may have a replica identity that it lacks: configure `key`, or "
    "set the same REPLICA IDENTITY for all"
)


@pytest.mark.parametrize(
    ("shape", "change", "wrong"),
    [
        (shape_of(BAG), update("1", "v", "w"),
         f"an UPDATE without an old tuple in a table without a key: its key is never sent{PARTITION}"),
        (shape_of(BAG), insert("1", TOAST, "w"),
         f"unchanged TOAST in a table without a key: {NOBODY_SAYS}"),
        (shape_of(BAG), delete("1", None, None), f"a key-only old tuple in a table without a key{PARTITION}"),
        (shape_of(KEYED), delete(None, "v", None), f"an old tuple that lacks column 'id' of the key{PARTITION}"),
        (shape_of(KEYED), update("1", TOAST, "w"), "column 'v' is unchanged TOAST where none was counted"),
        (shape_of(KEYED, toast=["id"]), update(TOAST, "v", "w"),
         "column 'id' of the key is unchanged TOAST, and no old tuple has it"),
        (shape_of(KEYED), insert("1", "a"), "a tuple of 2 columns where Relation describes 3"),
    ],
    ids=["key not sent", "u in a bag", "key in a bag", "another key", "u not counted", "u in the key", "width"],
)  # fmt: skip
def test_an_invalid_row_is_refused(shape: TableShape, change: Change, wrong: str) -> None:
    assert refusal(shape, FINE, change) == f"file 7, offset 200: public.t: {wrong}"


@pytest.mark.parametrize(
    ("type_oid", "value", "expected"),
    [(INT4, "4111-1111", "an integer"), (DATE, "21/11/4111", "ISO"), (DATE, "4111-02-31", "date")],
)
def test_the_error_for_an_invalid_value_names_place_and_column_but_not_the_value(
    type_oid: int, value: str, expected: str
) -> None:
    shape = shape_of(table("id", "v", ("n", type_oid)))
    error = refusal(shape, insert("1", "1", None), insert("2", "1", None), insert("3", value, value))
    assert error.startswith("file 7, offset 300: public.t, column 'n': expected a ")
    assert expected in error
    assert "4111" not in error


def test_an_invalid_value_of_an_old_key_is_refused() -> None:
    shape = shape_of(table(("id", INT4), "v"))
    error = refusal(shape, insert("1", "v"), update("2", "v", old_key=("4111-1111", None)))
    assert error.startswith("file 7, offset 200: public.t, column 'id': expected a int4")
    assert "4111" not in error


def test_a_row_without_a_relation_message_is_refused() -> None:
    history = RelationHistory()
    history.declare(KEYED, (7, 50), None)
    error = refusal(table_shape(KEYED, history.versions(T), None, frozenset()), FINE)
    expected = "no Relation message describes it: the archive begins after the server sent it"
    assert error == f"file 7, offset 100: public.t: {expected}"


@pytest.mark.parametrize(
    ("relation", "configured", "key"),
    [
        (KEYED, None, (0,)),
        (BAG, ("v", "id"), (1, 0)),
        (BAG, None, ()),
        (BAG, ("w",), (2,)),
        (table("a", "b", key=("b",), identity=ReplicaIdentity.INDEX), None, (1,)),
        (table("a", key=(), identity=ReplicaIdentity.NOTHING), None, ()),
    ],
)
def test_the_key_of_a_table(relation: Relation, configured: tuple[str, ...] | None, key: tuple[int, ...]) -> None:
    shape = shape_of(relation, key=configured)
    assert shape.key == key
    assert shape.is_bag == (not key)


def test_a_configured_key_that_the_table_lacks_is_refused() -> None:
    with pytest.raises(TableError, match="the configured key has a column 'nr' that the table lacks"):
        shape_of(KEYED, key=("id", "nr"))


def test_a_tuple_keeps_its_bytes() -> None:
    data = tuple_data("a", None, TOAST, "")
    assert encoder.encode(Insert(None, T, data)).endswith(data.to_bytes())
    assert data.unchanged() == (2,)


def test_a_configured_key_must_be_in_the_old_tuples() -> None:
    assert shape_of(KEYED, key=("id",)).key == (0,)
    with pytest.raises(TableError, match=r"key \(v\) is not in the old tuples .* REPLICA IDENTITY FULL"):
        shape_of(KEYED, key=("v",))
    assert shape_of(BAG, key=("v",)).key == (1,)
