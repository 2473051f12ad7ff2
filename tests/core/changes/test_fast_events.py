"""Compiled events equal those of changes.events: the same batches, and the same errors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgoutput_etl import jit
from pgoutput_etl.changes import fast_events
from pgoutput_etl.changes.events import HEAP_PER_BYTE, ROW_SCHEMA, events
from pgoutput_etl.changes.fast_events import event_batches
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity, TupleData
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.schema.table_shape import TableShape, table_shape
from pgoutput_etl.types import UserTypes
from tests.core.changes.test_events import BAG, KEYED, batch, retired, shape_of
from tests.support.captures import CAPTURES, DATA, files_of
from tests.support.cells import Cell, tuple_of
from tests.support.small_archives import TOAST, T, delete, insert, table, update

needs_kernels = pytest.mark.skipif(not jit.AVAILABLE, reason="kernels need numba")


@dataclass(frozen=True, slots=True)
class Made:
    """Events, or an error's class and message."""

    events: Any = None
    error: str = ""


def made(make: Callable[[pa.RecordBatch, TableShape], pa.RecordBatch], rows: pa.RecordBatch, shape: TableShape) -> Made:
    try:
        found = make(rows, shape)
    except Exception as error:  # noqa: BLE001 - the twin must raise the same
        return Made(error=repr(error))
    found.validate(full=True)
    return Made(found)


def assert_equal(rows: pa.RecordBatch, shape: TableShape) -> Made:
    plain, fast = made(events, rows, shape), made(fast_events.fast_events, rows, shape)
    assert plain.error == fast.error
    if not plain.error:
        assert plain.events.schema == fast.events.schema
        for name, one, other in zip(plain.events.schema.names, plain.events.columns, fast.events.columns, strict=True):
            # NaN is not equal to itself
            assert one.equals(other) or repr(one.to_pylist()) == repr(other.to_pylist()), name
    return plain


@pytest.fixture
def no_way_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compares both, and requires that the kernels do not leave the rows to `events`."""
    monkeypatch.setattr(fast_events, "events", lambda *_: pytest.fail("left to the readable code"))


# Any rows of any table


INT4, DATE, DECIMAL, TEXT = (23, -1), (1082, -1), (1700, (10 << 16 | 2) + 4), (25, -1)
SMALL: dict[tuple[int, int], st.SearchStrategy[Cell]] = {
    INT4: st.sampled_from([(b"t", b"1"), (b"t", b"2"), (b"b", b"\0\0\0\1"), (b"b", b"\0\0\0\2")] * 9 + [(b"t", b"x")]),
    DATE: st.sampled_from([(b"t", b"infinity"), (b"t", b"2026-11-21"), (b"b", b"\x7f\xff\xff\xff")]),
    DECIMAL: st.sampled_from([(b"t", b"1.50"), (b"t", b"NaN"), (b"t", b"-Infinity")]),
    TEXT: st.sampled_from([(b"t", b"a"), (b"t", b""), (b"b", b"a"), (b"t", b"long")] * 9 + [(b"t", b"\xff")]),
}


@dataclass(frozen=True, slots=True)
class Row:
    tag: str
    old_kind: str | None
    old: TupleData | None
    new: TupleData | None
    ordinal: int
    scope: int | None


@st.composite
def relations(draw: st.DrawFn) -> Relation:
    identity = draw(st.sampled_from(ReplicaIdentity))
    types = draw(st.lists(st.sampled_from(list(SMALL)), min_size=1, max_size=4))
    is_full = identity is ReplicaIdentity.FULL
    columns = [RelationColumn(is_full or draw(st.booleans()), f"c{i}", *of) for i, of in enumerate(types)]
    return Relation(None, T, "public", "t", identity, tuple(columns))


@st.composite
def shapes(draw: st.DrawFn) -> TableShape:
    relation = draw(relations())
    history = RelationHistory()
    history.declare(relation, draw(st.sampled_from([(6, 3)] * 9 + [(7, 3)])), None)
    for ordinal in sorted(draw(st.sets(st.integers(4, 9), max_size=2))):
        other = replace(relation, columns=relation.columns[:-1])
        history.declare(
            draw(st.sampled_from([relation, relation, other])), (7, ordinal), draw(st.sampled_from([None, 5]))
        )
    flagged = [column.name for column in relation.columns if column.is_key]
    key = draw(st.sampled_from([None, None, tuple(flagged[:1]) or None]))
    unchanged = draw(st.just(frozenset(range(4))) | st.frozensets(st.integers(0, 4)))
    gone = (RelationColumn(False, "gone", *TEXT),) if draw(st.booleans()) else ()
    return table_shape(relation, history.versions(T), key, unchanged, retired=gone)


@st.composite
def some_rows(draw: st.DrawFn, relation: Relation) -> list[Row]:
    found = []
    is_full = relation.replica_identity is ReplicaIdentity.FULL
    absent = st.sampled_from([(b"n", None)] * 5 + [(b"u", None)])
    values = [SMALL[column.type_oid, column.type_modifier] for column in relation.columns]
    row = st.tuples(*(value | value | absent for value in values))
    tuples = row.map(lambda cells: tuple_of(*cells))
    for ordinal in range(draw(st.integers(0, 5))):
        tag = draw(st.sampled_from("IUUUD"))
        kinds: list[str | None] = ["O"] * 9 if is_full else ["O", "K", "K", "K"]
        kind = None if tag == "I" else draw(st.sampled_from([*kinds, "K"] if tag == "D" else [*kinds, None]))
        old = None if kind is None else draw(tuples)
        new = None if tag == "D" else draw(tuples)
        found.append(Row(tag, kind, old, new, 2 * ordinal, draw(st.sampled_from([None, None, 5, 6]))))
    return found


def rows_of(several: Sequence[Row]) -> pa.RecordBatch:
    described = [
        {"file": 7, "ordinal": row.ordinal, "offset": row.ordinal * 100, "tag": row.tag, "old_kind": row.old_kind,
         "old": row.old and row.old.to_bytes(), "new": row.new and row.new.to_bytes(),
         "commit_lsn": 10, "commit_ts": row.ordinal, "top_xid": 3, "scope": row.scope}
        for row in several
    ]  # fmt: skip
    return pa.RecordBatch.from_pylist(described, ROW_SCHEMA)


@needs_kernels
@settings(max_examples=250)
@given(st.data())
def test_any_rows_of_any_table(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    assert_equal(rows_of(data.draw(some_rows(shape.relation))), shape)


@pytest.mark.soak
@needs_kernels
@settings(max_examples=10_000)
@given(st.data())
def test_many_rows_of_any_table(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    assert_equal(rows_of(data.draw(some_rows(shape.relation))), shape)


# What kernels have to do themselves


SWAP = [update(new, "v", "w", old_key=(old, None, None)) for old, new in (("1", "3"), ("2", "1"), ("3", "2"))]
FULL_KEYED = shape_of(BAG, key=("id",), toast=["v", "w"])


@needs_kernels
@pytest.mark.usefixtures("no_way_back")
@pytest.mark.parametrize(
    ("shape", "changes"),
    [
        (shape_of(KEYED), [insert("1", "a", None), update("1", "b", "ž"), delete("1", None, None)]),
        (shape_of(KEYED), SWAP),
        (shape_of(KEYED), [update("1", "b", "c", old_key=("1", None, None))]),
        (shape_of(BAG), [insert("1", "a", None), update("1", "b", None, old=("1", "a", None))]),
        (retired("old"), [insert("1", "a", "b"), update("1", "c", "d"), *SWAP, delete("2", None, None)]),
        (FULL_KEYED, [insert("1", "a", "b"), update("2", "c", "d", old=("1", "a", "b"))]),
        (
            shape_of(table("id", ("n", 23), ("d", 1082))),
            [insert("1", "7", "infinity"), insert("2", None, "2026-11-21")],
        ),
        (shape_of(table(("day", 1082), "v", key=("day",))), [update("-infinity", "a", old_key=("infinity", None))]),
    ],
    ids=["I U D", "moves", "same key", "bag", "retired", "full", "unrepresentable", "unrepresentable key"],
)
def test_kernels_handle_ordinary_rows(shape: TableShape, changes: list[Any]) -> None:
    assert_equal(batch(*changes), shape)


@needs_kernels
@pytest.mark.usefixtures("no_way_back")
def test_kernels_handle_unchanged_toast() -> None:
    assert_equal(batch(update("1", TOAST, "w"), insert("2", "v", "w")), shape_of(KEYED, toast=["v"]))
    for old in (("1", "long", "longer"), ("1", "long", None)):
        assert_equal(batch(update("2", TOAST, TOAST, old=old)), FULL_KEYED)
        assert_equal(batch(update("2", TOAST, TOAST, old_key=old)), shape_of(KEYED, toast=["v", "w"]))
    assert_equal(batch(update("2", TOAST, TOAST, old=("1", "long", "longer"))), shape_of(BAG))
    root = replace(shape_of(table("id", "v", "w", key=())), partitions=(BAG,))
    assert_equal(batch(update("2", TOAST, None, old_key=("1", "long", None))), root)
    part = shape_of(table("id", "part", "v", key=("id", "part")), toast=["part"])
    assert_equal(batch(update("2", TOAST, "v", old_key=("1", "long", None))), part)


@needs_kernels
@pytest.mark.usefixtures("no_way_back")
def test_rows_under_versions_of_several_files_and_scopes() -> None:
    history = RelationHistory()
    other = table("id", "x")
    history.declare(KEYED, (5, 9), None)
    history.declare(other, (7, 2), 44)
    history.declare(KEYED, (7, 4), 44)
    history.declare(other, (8, 0), None)
    history.declare(KEYED, (8, 3), None)
    shape = table_shape(KEYED, history.versions(T), None)
    new = insert("1", "a", "b").new
    fine = [(6, 1, None), (7, 1, 44), (7, 3, 43), (7, 3, None), (7, 4, 44), (8, 2, 44), (8, 3, None), (9, 0, 43)]
    rows = rows_of([Row("I", None, None, new, ordinal, scope) for _file, ordinal, scope in fine])
    rows = rows.set_column(0, ROW_SCHEMA.field("file"), pa.array([file for file, *_ in fine], pa.int64()))
    assert_equal(rows, shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_events, "events", events)
        for file, ordinal, scope in ((5, 8, None), (7, 2, 44), (7, 3, 44), (8, 1, None), (8, 2, 43)):
            one = rows_of([Row("I", None, None, new, ordinal, scope)])
            one = one.set_column(0, ROW_SCHEMA.field("file"), pa.array([file], pa.int64()))
            assert "Relation message" in assert_equal(one, shape).error


@needs_kernels
def test_text_that_is_not_utf8_is_refused_where_an_event_contains_it() -> None:
    old, new = TupleData(b"ttt", (b"1", b"\xff", b"w")), insert("1", "v", "w").new
    unused = assert_equal(rows_of([Row("U", "O", old, new, 1, None)]), shape_of(BAG, key=("id",)))
    assert unused.events.num_rows == 1
    used = assert_equal(rows_of([Row("U", "O", new, old, 1, None)]), shape_of(BAG, key=("id",)))
    assert "column 'v': expected a text that is UTF-8 (set client_encoding to UTF8 for the receiver" in used.error


@needs_kernels
def test_text_that_is_not_utf8_is_kept_as_its_bytes() -> None:
    """Also in a key, which is compared by its bytes."""
    relation, history = table("id", "v", ("n", 23), ("a", 1009)), RelationHistory()
    history.declare(relation, (0, 0), None)
    shape = table_shape(relation, history.versions(T), None, user_types=UserTypes(keeps_bytes=True))

    def values(*cells: bytes) -> TupleData:
        return TupleData(b"t" * len(cells), cells)

    old = TupleData(b"tnnn", (b"\xe9", None, None, None))
    rows = [
        Row("I", None, None, values(b"\xe9", b"caf\xe9", b"1", b"{a,\xe9}"), 1, None),
        Row("U", "K", old, values(b"\\xe9", b"", b"2", b"{}"), 1, None),
    ]
    found = assert_equal(rows_of(rows), shape).events
    texts = [[(entry["key"], entry["value"]) for entry in row or ()] for row in found.column("_unrep").to_pylist()]
    assert texts == [[("id", "\\xe9"), ("v", "\\x636166e9"), ("a", "\\x7b612ce97d")], [("id", "\\xe9")], []]
    assert found.column("c0").to_pylist() == [None, None, "\\xe9"]
    assert found.column("_op").to_pylist() == ["I", "X", "V"]
    number = assert_equal(rows_of([Row("I", None, None, values(b"a", b"b", b"\xb2", b"{}"), 1, None)]), shape).events
    assert number.column("c2").null_count == 1


@needs_kernels
@settings(max_examples=50)
@given(st.data())
def test_large_batches_are_divided_without_changing_the_events(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 50))
    rows = batch(*(insert(str(i), "a" * i, None) for i in range(count)))
    shape = shape_of(KEYED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_events, "BATCH_ROWS", data.draw(st.integers(1, 60)))
        parts = list(event_batches(rows, shape))
    assert pa.Table.from_batches(parts).combine_chunks() == pa.Table.from_batches([events(rows, shape)])


# Real rows


def real_rows(slot: Path) -> Iterator[tuple[pa.RecordBatch, TableShape]]:
    """The committed rows of an archive, by relation and version."""
    replay = Replay()
    for path in files_of(slot) if slot.is_dir() else [slot]:
        replay.add_file(path.name, path.read_bytes())
    types = UserTypes.of(replay.assembly.types.values(), {})
    by_version: dict[tuple[int, int], list[dict[str, Any]]] = {}
    versions = {oid: replay.assembly.relations.versions(oid) for oid in replay.assembly.relations.oids()}
    for row in replay.committed():
        number = (
            versions[row["relation"]].at((row["file"], row["ordinal"]), row["scope"]) if row["tag"] != "T" else None
        )
        if number is not None:
            by_version.setdefault((row["relation"], number), []).append(row)
    for (oid, number), rows in by_version.items():
        relation = versions[oid].relations[number]
        everything = frozenset(range(len(relation.columns)))
        described = [{name: row[name] for name in ROW_SCHEMA.names} for row in rows]
        shape = table_shape(relation, versions[oid], None, everything, True, types)
        yield pa.RecordBatch.from_pylist(described, ROW_SCHEMA), shape


SLOTS = ("pg10/v1", "pg14/v1_binary", "pg16/v1", "pg16/v4_twophase_parallel_binary", "random16/v2")


@needs_kernels
@pytest.mark.usefixtures("no_way_back")
@pytest.mark.parametrize("slot", SLOTS)
def test_rows_from_real_servers(slot: str) -> None:
    count = 0
    for rows, shape in real_rows(DATA / slot):
        assert not assert_equal(rows, shape).error
        count += 1
    assert count > 3


@pytest.mark.soak
@needs_kernels
@pytest.mark.usefixtures("no_way_back")
def test_rows_of_all_captures() -> None:
    slots = [slot for server in CAPTURES.iterdir() if server.is_dir() for slot in server.iterdir() if slot.is_dir()]
    for slot in slots:
        if not slot.name.startswith("truth"):
            for rows, shape in real_rows(slot):
                assert not assert_equal(rows, shape).error


PURELY = """
import sys
from pgoutput_etl import jit
from pgoutput_etl.changes.fast_events import event_batches
from tests.support.small_archives import delete, insert, update
from tests.core.changes.test_events import KEYED, batch, shape_of
rows = batch(insert("1", "a", None), update("2", "b", "c", old_key=("1", None, None)))
(made,) = event_batches(rows, shape_of(KEYED))
assert not jit.AVAILABLE and "numba" not in sys.modules
print(*made.column("_op").to_pylist(), *made.column("c1").to_pylist())
"""


def test_without_kernels_the_readable_code_makes_the_events() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PURELY],
        env={**os.environ, "PGOUTPUT_ETL_PURE": "1", "PYTHONPATH": str(DATA.parents[1])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("I X V a None b\n", "")


def test_a_row_that_java_has_no_memory_for_is_refused_with_its_column_size_and_commit() -> None:
    shape = replace(shape_of(KEYED), memory=100 * HEAP_PER_BYTE)
    fitting = [insert(str(i), "a" * 50, None) for i in range(9)]
    assert sum(part.num_rows for part in event_batches(batch(*fitting), shape)) == 9
    expected = (
        r"file 7, offset 100: public\.t, column 'v': expected a row of at most 100 bytes, found one of 105, 91 in "
        r"this column, in the commit at 0/[0-9A-F]+\. Give Java 1g \(spark\.executor\.memory"
    )
    for rows in (
        batch(insert("1", "x" * 91, None), *fitting),
        batch(update("1", "x", None, old=("1", "x" * 91, None))),
    ):
        with pytest.raises(ArchiveError, match=expected) as refused:
            list(event_batches(rows, shape))
        assert "xx" not in str(refused.value)
    with pytest.raises(ArchiveError, match="a tuple of 1 columns where Relation describes"):
        list(event_batches(batch(insert("x" * 200)), shape))


def test_the_error_for_too_long_values_names_the_row() -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in ("events", "fast_events"):
            patch.setattr(f"pgoutput_etl.changes.{module}.MAX_SIZE", 1000)
        rows = batch(*(insert(str(i), "a" * 300, None) for i in range(9)))
        parts = list(event_batches(rows, shape_of(KEYED)))
        assert len(parts) > 3
        assert pa.Table.from_batches(parts).column("c0").to_pylist() == [str(i) for i in range(9)]
        expected = r"file 7, offset 100: public\.t: expected values that take less than 1 GiB in a row"
        with pytest.raises(ArchiveError, match=expected):
            list(event_batches(batch(insert("1", "a" * 1100, None)), shape_of(KEYED)))
