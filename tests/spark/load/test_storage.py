"""Maps, variants, and arrays of them, which Spark can't compare, in a MERGE and in a bag."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession

from pgoutput_etl.changes.events import DELETED, INSERTED, MOVED_IN, MOVED_OUT, UPDATED
from pgoutput_etl.load import mirror as merge
from pgoutput_etl.load.commit import TargetRows, WriteResult
from pgoutput_etl.load.evolve import evolve
from pgoutput_etl.load.net_effect import TableEvents
from pgoutput_etl.load.table_writer import DeltaTransaction
from pgoutput_etl.places import Place
from pgoutput_etl.schema.migration import SchemaMigration
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.schema.table_shape import TableColumn, TableShape
from pgoutput_etl.types import UserTypes, column_type, load_text
from tests.support.small_archives import table

pytestmark = pytest.mark.spark

HSTORE, HSTORES, JSONB, JSONBS, INT, FLOATS = 16400, 16401, 3802, 3807, 23, 1021
USER_TYPES = UserTypes(
    {HSTORE: ("public", "hstore"), HSTORES: ("public", "_hstore")}, {"jsonb": "variant", "json": "variant"}
)
COLUMNS = {"id": INT, "tags": HSTORE, "doc": JSONB, "maps": HSTORES, "docs": JSONBS, "floats": FLOATS}
UNCHANGED = "unchanged"
ONE = (
    rb'"b"=>NULL, "aa"=>"1"',
    b'{"a": 1.10, "b": [null], "c": 45e4}',
    rb'{"\"x\"=>\"y\"",NULL,""}',
    b'{"[1, 2]",NULL}',
    b"{-0,NULL}",
)
TWO = (rb'"b"=>NULL, "aa"=>"2"', b"null", b"{}", b"{}", b"{0,NULL}")
NOTHING = (None,) * 5
Values = tuple[bytes | str | None, ...]


def shape(key: tuple[int, ...], toast: tuple[int, ...] = ()) -> TableShape:
    columns = tuple(TableColumn(name, column_type(oid, -1, USER_TYPES)) for name, oid in COLUMNS.items())
    relation = table(*COLUMNS.items())
    return TableShape(relation, columns, key, RelationVersions(1, (relation,), {}), toast, moves_toast=bool(toast))


def events_of(
    spark: SparkSession, target: TableShape, *events: tuple[str, Values] | tuple[str, Values, bytes]
) -> TableEvents:
    """Events in order, given as (operation, values, a moved row's old key)."""
    data: dict[str, Any] = {
        "_lsn": range(1, len(events) + 1), "_file": [1] * len(events), "_ordinal": range(len(events)),
        "_ts": [0] * len(events), "_xid": [7] * len(events), "_op": [event[0] for event in events],
        "_from_unrep": [None] * len(events),
    }  # fmt: skip
    noted: list[list[dict[str, str]]] = [[] for _ in events]
    for i, column in enumerate(target.columns):
        cells = [event[1][i] for event in events]
        loaded = load_text(column.type, [cell if isinstance(cell, bytes) else None for cell in cells])
        data[f"c{i}"] = loaded.array
        if i in target.toast:
            data[f"u{i}"] = [cell == UNCHANGED for cell in cells]
        for n, text in loaded.unrepresentable.items():
            noted[n].append({"key": column.name, "value": text})
    for i in target.key:
        old = [event[2] if len(event) > 2 else None for event in events]
        data[f"f{i}"] = load_text(target.columns[i].type, old).array
    data["_unrep"] = [entries or None for entries in noted]
    data["_chain"] = [None] * len(events)
    schema = target.event_schema()
    arrays = [data[f.name] if isinstance(data[f.name], pa.Array) else pa.array(data[f.name], f.type) for f in schema]
    return TableEvents(lambda: spark.createDataFrame(pa.table(arrays, schema=schema)))


def stored(spark: SparkSession, path: Path) -> list[Row]:
    """The table's rows, with variants as JSON text."""
    rows = spark.read.format("delta").load(str(path))
    return rows.selectExpr(
        "id", "tags", "to_json(doc) doc", "maps", "transform(docs, d -> to_json(d)) docs",
        "cast(floats as string) floats", "_pg_unrepresentable odd",
    ).orderBy("id", "_pg_commit_lsn").collect()  # fmt: skip


def write(path: Path, target: TableShape, events: TableEvents, existing: TargetRows, batch: int) -> WriteResult:
    transaction = DeltaTransaction("storage", "changes", batch, batch)
    return merge.write(events.frame.sparkSession, Place(str(path)), target, events, existing, transaction)


def test_a_merge_keeps_unchanged_maps_and_variants(spark: SparkSession, tmp_path: Path) -> None:
    target, path = shape((0,), (1, 2, 3, 4)), tmp_path / "t"
    first = [(INSERTED, (b"%d" % n, *ONE)) for n in (1, 2, 3, 4, 5)]
    write(path, target, events_of(spark, target, *first), TargetRows.NOTHING, 1)
    described = dict(spark.read.format("delta").load(str(path)).dtypes)
    assert described["tags"] == "map<string,string>"
    assert (described["doc"], described["docs"]) == ("variant", "array<variant>")
    assert described["maps"] == "array<map<string,string>>"
    same = (UNCHANGED, UNCHANGED, UNCHANGED, UNCHANGED)
    second = events_of(
        spark, target,
        (UPDATED, (b"1", *same, b"{1}")),
        (UPDATED, (b"2", *TWO)),
        (DELETED, (b"3", *NOTHING)),
        (MOVED_OUT, (b"4", *NOTHING)),
        (MOVED_IN, (b"14", *same, b"{4}"), b"4"),
        (UPDATED, (b"5", b"", b'{"a": 1, "a": 2}', b"{{NULL}}", b"{1e400}", None)),
        (INSERTED, (b"6", *NOTHING)),
    )  # fmt: skip
    write(path, target, second, TargetRows.ROWS, 2)
    one, two, five, six, moved = stored(spark, path)
    for row in (one, moved):
        assert row.tags == {"b": None, "aa": "1"}
        assert json.loads(row.doc) == {"a": 1.1, "b": [None], "c": 450000}
        assert (row.maps, row.docs, row.odd) == ([{"x": "y"}, None, {}], ["[1,2]", None], None)
    assert (one.floats, moved.floats, moved.id) == ("[1.0]", "[4.0]", 14)
    assert (two.tags, two.doc, two.maps, two.docs) == ({"b": None, "aa": "2"}, "null", [], [])
    assert (five.tags, five.doc, five.maps, five.docs) == ({}, None, None, None)
    assert five.odd == {"doc": '{"a": 1, "a": 2}', "maps": "{{NULL}}", "docs": "{1e400}"}
    assert six[1:] == (None,) * 6


def test_a_bag_loses_one_equal_row(spark: SparkSession, tmp_path: Path) -> None:
    target, path = shape(()), tmp_path / "t"
    spaced = (ONE[0], b'{"c": 45e4, "b": [null],  "a": 1.10}', *ONE[2:])  # the same variant as ONE
    inserted = [
        (INSERTED, (b"1", *ONE)),
        (INSERTED, (b"1", *TWO)),
        (INSERTED, (b"1", *spaced)),
        (INSERTED, (None, *NOTHING)),
    ]
    write(path, target, events_of(spark, target, *inserted), TargetRows.NOTHING, 1)
    assert len(stored(spark, path)) == 4
    zero = (*TWO[:4], b"{-0,NULL}")  # not the row that was inserted
    deleted = [(DELETED, (b"1", *ONE)), (DELETED, (b"1", *zero)), (DELETED, (None, *NOTHING))]
    written = write(path, target, events_of(spark, target, *deleted), TargetRows.ROWS, 2)
    assert [row.tags for row in stored(spark, path)] == [{"b": None, "aa": "1"}, {"b": None, "aa": "2"}]
    assert written.version == 1


def test_a_delete_in_a_bag_keeps_the_users_own_columns(spark: SparkSession, tmp_path: Path) -> None:
    target, path = shape(()), tmp_path / "t"
    first = [(INSERTED, (b"1", *ONE)), (INSERTED, (b"1", *ONE)), (INSERTED, (b"2", *TWO))]
    write(path, target, events_of(spark, target, *first), TargetRows.NOTHING, 1)
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN own STRING")
    spark.sql(f"UPDATE delta.`{path}` SET own = 'mine'")
    second = [(DELETED, (b"1", *ONE)), (INSERTED, (b"3", *TWO)), (DELETED, (b"9", *ONE))]
    written = write(path, target, events_of(spark, target, *second), TargetRows.ROWS, 2)
    assert (written.inserted, written.deleted, written.not_found) == (1, 1, 1)
    rows = spark.read.format("delta").load(str(path)).select("id", "own").collect()
    assert sorted(rows) == [(1, "mine"), (2, "mine"), (3, None)]


def test_a_map_can_be_a_key(spark: SparkSession, tmp_path: Path) -> None:
    target, path = shape((1,)), tmp_path / "t"
    write(
        path,
        target,
        events_of(spark, target, (INSERTED, (b"1", *ONE)), (INSERTED, (b"2", *TWO))),
        TargetRows.NOTHING,
        1,
    )
    again = events_of(spark, target, (UPDATED, (b"7", ONE[0], *TWO[1:])), (DELETED, (None, TWO[0], *NOTHING[1:])))
    write(path, target, again, TargetRows.ROWS, 2)
    assert [(row.id, row.tags, row.doc) for row in stored(spark, path)] == [(7, {"b": None, "aa": "1"}, "null")]


def test_map_and_variant_columns_are_added_to_a_table(spark: SparkSession, tmp_path: Path) -> None:
    target, path = shape((0,)), tmp_path / "t"
    narrow = replace(target, columns=target.columns[:1])
    inserted = events_of(spark, narrow, (INSERTED, (b"1",)))
    write(path, narrow, inserted, TargetRows.NOTHING, 1)
    added = SchemaMigration(narrow.columns, target.columns, target.key, (0, None, None, None, None, None))
    evolve(spark, Place(str(path)), added, DeltaTransaction("d", "shape", 2, 2))
    write(path, target, events_of(spark, target, (INSERTED, (b"2", *TWO))), TargetRows.ROWS, 2)
    assert [(row.id, row.tags, row.doc) for row in stored(spark, path)] == [
        (1, None, None),
        (2, {"b": None, "aa": "2"}, "null"),
    ]
