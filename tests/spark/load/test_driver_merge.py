"""The driver merges small tables without a Spark job, as Delta would, or leaves them to Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta.exceptions import ConcurrentAppendException, ProtocolChangedException
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pgoutput_etl.changes.compaction import as_net
from pgoutput_etl.changes.events import DELETED, INSERTED, UPDATED
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load import mirror as merge
from pgoutput_etl.load.commit import TargetRows, WriteResult
from pgoutput_etl.load.net_effect import TableEvents
from pgoutput_etl.load.summary import TableSummary
from pgoutput_etl.load.table_writer import DeltaTransaction
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.schema.layout import Layout, Readers
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.schema.table_shape import TableColumn, TableShape
from pgoutput_etl.spark import delta_files
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.spark.delta_write import DeltaWrite
from pgoutput_etl.types import column_type
from pgoutput_etl.work.backfill.request import BackfillRequest
from tests.spark.load.test_layout import found
from tests.spark.load.test_storage import HSTORE, INT, ONE, TWO, USER_TYPES, Values, events_of
from tests.support.jobs import Job, Nights, dying
from tests.support.small_archives import (
    TOAST,
    Change,
    delete,
    delete_full,
    insert,
    table,
    transaction,
    truncate,
    update,
)
from tests.support.ways_of_writing import write_as

pytestmark = pytest.mark.spark

NAMES = {1: "one", 2: "two", 3: "three"}
ROWS = [insert(*row, oid=oid) for oid in NAMES for row in (("1", "a"), ("2", "b"))]


@contextmanager
def commits() -> Iterator[list[str]]:
    """The folders of the tables that the driver commits to within the context."""
    folders: list[str] = []
    original = DeltaWrite.commit

    def commit(self: DeltaWrite, *given: Any) -> int:
        folders.append(Path(self.table.folder).name)
        return original(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaWrite, "commit", commit)
        yield folders


def history(job: Job, name: str) -> dict[str, Any]:
    [row] = job.spark.sql(f"DESCRIBE HISTORY delta.`{job.path('public', name)}` LIMIT 1").collect()
    return row.asDict()


def actions(job: Job, name: str) -> list[dict[str, Any]]:
    """Of the newest commit."""
    newest = max((job.path("public", name) / "_delta_log").glob("*.json"))
    return [json.loads(line) for line in newest.read_text().splitlines()]


def jobs_of(spark: SparkSession) -> int:
    """Those with tasks: Delta reads the files of a table without any in a job without stages."""
    jobs: Any = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return sum(jobs.apply(n).stageIds().size() > 0 for n in range(jobs.size()))


def test_new_tables_are_created_without_a_spark_job(nights: Nights) -> None:
    job, spark = nights.job, nights.job.spark
    nights.night(transaction(1, 50, table(oid=9, name="zero"), insert("1", "a", oid=9)))
    taken: list[int] = []
    summaries: list[TableSummary] = []
    with commits() as folders:
        for number, oids in ((2, [1]), (3, [2, 3])):
            before = jobs_of(spark)
            tables = [table(oid=oid, name=NAMES[oid]) for oid in oids]
            rows = [insert(*row, oid=oid) for oid in oids for row in (("1", "a"), ("2", "b"))]
            changes = [update("1", "c", oid=oid) for oid in oids] + [delete("2", None, oid=oid) for oid in oids]
            summaries += nights.night(transaction(number, 100 * number, *tables, *rows, *changes)).tables
            taken.append(jobs_of(spark) - before)
    assert sorted(folders) == sorted(NAMES.values())
    assert taken[0] == taken[1], "the second table takes none"
    written = [(s.inserted, s.updated, s.deleted, s.rows, s.version) for s in summaries if s.table in folders]
    assert written == [(1, 0, 0, 1, 0)] * 3
    assert [nights.values(name) for name in NAMES.values()] == [[("1", "c")]] * 3
    row = history(job, "three")
    assert (row["operation"], row["operationMetrics"]["numOutputRows"]) == ("WRITE", "1")
    assert json.loads(row["userMetadata"])["batch"] == 3


def test_a_table_is_merged_on_the_driver_after_its_columns_changed(nights: Nights) -> None:
    """ALTER TABLE leaves the table's files out of the checksum file."""
    nights.night(transaction(1, 100, table(), insert("1", "a"), insert("2", "b")))
    with commits() as folders:
        nights.night(transaction(2, 200, table("id", "v", "w"), update("1", "c", "d")))
        nights.night(transaction(3, 300, table("id", "v", "w", "x"), delete("2", None, None, None)))
    assert folders == ["t"] * 2
    assert nights.values("t") == [("1", "c", "d", None)]
    listed = nights.job.spark.read.format("delta").load(str(nights.job.path("public", "t"))).inputFiles()
    assert len(listed) == 1


def test_rows_of_a_table_without_a_key_are_added_on_the_driver(nights: Nights) -> None:
    bag = table("v", identity=ReplicaIdentity.FULL)
    with commits() as folders:
        nights.night(transaction(1, 100, bag, insert("a"), insert("a")))
        summary = nights.night(transaction(2, 200, bag, insert("b"), insert("a")))
        assert folders == ["t"] * 2
        nights.night(transaction(3, 300, bag, delete_full("a")))
        assert folders == ["t"] * 2, "Spark finds the deleted rows"
    assert [(s.inserted, s.rows) for s in summary.tables] == [(2, 4)]
    assert nights.values("t") == [("a",), ("a",), ("b",)]


def test_of_two_writers_that_create_a_table_one_begins_again(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not both append to it."""
    spark = nights.job.spark
    path = nights.job.path("public", "t")
    original = DeltaWrite._commit
    refused: list[Exception] = []

    def late(self: DeltaWrite, *given: Any) -> int:
        if not refused:
            spark.newSession().sql("SELECT '9' AS id, 'x' AS v").write.format("delta").save(str(path))
        try:
            return original(self, *given)
        except Exception as error:
            refused.append(error)
            raise

    monkeypatch.setattr(DeltaWrite, "_commit", late)
    nights.night(transaction(1, 100, table(), insert("1", "a"), insert("2", "b")))
    [error] = refused
    assert isinstance(error, ProtocolChangedException)
    assert nights.values("t") == [("1", "a"), ("2", "b")]


def test_small_tables_are_merged_without_a_spark_job(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    job, spark = nights.job, nights.job.spark
    tables = [table(oid=oid, name=name) for oid, name in NAMES.items()]
    nights.night(transaction(1, 100, *tables, *ROWS))

    def changes(oid: int, text: str) -> list[Change]:
        return [
            update("1", text, oid=oid),
            insert("3", text, oid=oid),
            delete("2", None, oid=oid),
            update("4", text, old_key=("3", None), oid=oid),
        ]

    taken = {}
    with commits() as folders:
        for night, oids in ((2, [1]), (3, [2, 3])):
            before = jobs_of(spark)
            summary = nights.night(
                transaction(night, 100 * night, *(change for oid in oids for change in changes(oid, "c")))
            )
            taken[len(oids)] = jobs_of(spark) - before
            for written in (table for table in summary.tables if table.table in {NAMES[oid] for oid in oids}):
                assert (written.inserted, written.updated, written.deleted, written.rows) == (1, 1, 1, 2)
    assert sorted(folders) == sorted(NAMES.values())
    assert taken[2] == taken[1], "the second table takes none"
    assert [nights.values(name) for name in NAMES.values()] == [[("1", "c"), ("4", "c")]] * 3
    row = history(job, "three")
    assert row["operation"] == "MERGE"
    assert json.loads(row["userMetadata"])["batch"] == 3
    metrics = {name.removeprefix("numTargetRows"): int(value) for name, value in row["operationMetrics"].items()}
    assert {name: metrics[name] for name in ("Inserted", "Updated", "Deleted", "Copied")} == {
        "Inserted": 1, "Updated": 1, "Deleted": 1, "Copied": 0,
    }  # fmt: skip
    [added] = [action["add"] for action in actions(job, "three") if "add" in action]
    assert json.loads(added["stats"])["numRecords"] == 2
    stored = spark.read.format("delta").load(str(job.path("public", "three")))
    assert [len(stored.where(f"id = '{key}'").inputFiles()) for key in ("1", "7")] == [1, 0], "by the file's statistics"

    with monkeypatch.context() as patch:
        patch.setattr(delta_files, "local_path", lambda *_: None)  # as on object storage: through Hadoop
        nights.night(transaction(4, 400, insert("5", "d", oid=1), delete("1", None, oid=2), delete("4", None, oid=2)))
    assert nights.values("one") == [("1", "c"), ("4", "c"), ("5", "d")]
    assert [name for action in actions(job, "one") for name in action if name in ("add", "remove")] == ["add"]
    assert nights.values("two") == []
    assert [name for action in actions(job, "two") for name in action if name in ("add", "remove")] == ["remove"]


def test_rows_that_replace_all_others_are_written_on_the_driver(nights: Nights) -> None:
    """After a TRUNCATE, and by a backfill. What an overwrite would change besides the rows is left to Spark."""
    job, tables = nights.job, [table(oid=oid, name=name) for oid, name in NAMES.items()]
    nights.night(transaction(1, 100, *tables, *ROWS))
    commented = f"delta.`{job.path('public', 'three')}`"
    job.spark.sql(f"ALTER TABLE {commented} ALTER COLUMN v COMMENT 'theirs'")
    job.spark.sql(f"ALTER TABLE delta.`{job.path('public', 'two')}` ALTER COLUMN v FIRST")
    truncates = [truncate(oid) for oid in NAMES]
    with commits() as folders:
        summary = nights.night(transaction(2, 200, *truncates, *(insert("3", "c", oid=oid) for oid in NAMES)))
        assert sorted(folders) == ["one", "three"]
        assert [(s.inserted, s.updated, s.deleted, s.rows) for s in summary.tables] == [(1, 0, 0, 1)] * 3
        nights.night(transaction(3, 300, *truncates))
        assert [nights.values(name) for name in NAMES.values()] == [[]] * 3
        nights.night(transaction(4, 400, *(insert("4", "d", oid=oid) for oid in NAMES)))
        del folders[:]
        assert job.backfill(BackfillRequest(("*",))).exit_code == 0
        assert sorted(folders) == sorted(NAMES.values())
    assert [nights.values(name) for name in NAMES.values()] == [[("4", "d")]] * 3
    row = history(job, "three")
    assert (row["operation"], row["operationParameters"]["mode"]) == ("WRITE", "Overwrite")
    assert {name: row["operationMetrics"][name] for name in ("numOutputRows", "numFiles", "numRemovedFiles")} == {
        "numOutputRows": "1", "numFiles": "1", "numRemovedFiles": "1",
    }  # fmt: skip
    assert found(job, "three").comments == {"v": "theirs"}


def test_unsent_values_are_filled_in_on_the_driver(nights: Nights) -> None:
    """From the stored rows, also under a key that a row has left. The files have a column that the table lacks."""
    nights.night(transaction(1, 100, table("id", "v", "big"), insert("1", "a", "Bone"), insert("2", "b", "Btwo")))
    with commits() as folders:
        moved = update("3", "d", TOAST, old_key=("2", None, None))
        nights.night(transaction(2, 200, update("1", "c", TOAST), moved))
        assert nights.values("t") == [("1", "c", "Bone"), ("3", "d", "Btwo")]
        narrow = table("id", "big")
        nights.night(transaction(3, 300, narrow, update("4", TOAST, old_key=("3", None)), insert("5", "Bfive")))
        assert folders == ["t"] * 2
    assert nights.values("t") == [("1", "Bone"), ("4", "Btwo"), ("5", "Bfive")]


def test_a_commit_in_between_is_not_lost(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    job, spark = nights.job, nights.job.spark
    nights.night(transaction(1, 100, table(), insert("1", "a"), insert("2", "b")))
    path = job.path("public", "t")
    original = DeltaWrite._commit
    refused: list[Exception] = []

    def late(self: DeltaWrite, *given: Any) -> int:
        """Somebody adds a row after this run has read the table."""
        if not refused:
            other = spark.newSession().read.format("delta").load(str(path)).where("id = 2")
            other.selectExpr("'9' AS id", "* EXCEPT (id)").write.format("delta").mode("append").save(str(path))
        try:
            return original(self, *given)
        except ConcurrentAppendException as error:
            refused.append(error)
            raise

    monkeypatch.setattr(DeltaWrite, "_commit", late)
    nights.night(transaction(2, 200, update("1", "c")))
    assert len(refused) == 1
    assert nights.values("t") == [("1", "c"), ("2", "b"), ("9", "b")]
    logged = {
        action["add"]["path"]
        for commit in (path / "_delta_log").glob("*.json")
        for action in map(json.loads, commit.read_text().splitlines())
        if "add" in action
    }
    assert {
        str(file.relative_to(path)) for file in path.rglob("*.parquet") if "_delta_log" not in file.parts
    } == logged, "the refused file is deleted"


def test_what_the_driver_does_not_know_is_left_to_spark(nights: Nights) -> None:
    job, spark = nights.job, nights.job.spark
    changed = {
        1: "SET TBLPROPERTIES (delta.enableChangeDataFeed = true)",
        2: "ADD COLUMNS (note STRING)",
        3: "ADD CONSTRAINT short CHECK (length(v) < 5)",
    }
    tables = [table(oid=oid, name=name) for oid, name in NAMES.items()]
    nights.night(transaction(1, 100, *tables, *ROWS))
    for oid, statement in changed.items():
        spark.sql(f"ALTER TABLE delta.`{job.path('public', NAMES[oid])}` {statement}")
    with commits() as folders:
        summary = nights.night(
            transaction(2, 200, *(update("1", "a long text" if oid == 3 else "c", oid=oid) for oid in NAMES))
        )
    assert folders == []
    assert [bool(written.held) for written in summary.tables] == [False, True, False], (
        "Delta has checked the constraint"
    )
    assert [nights.values(name)[0][:2] for name in ("one", "two")] == [("1", "c")] * 2

    nights.night(transaction(3, 300, table(oid=4, name="marked"), insert("1", "a", oid=4), insert("2", "b", oid=4)))
    marked = f"delta.`{job.path('public', 'marked')}`"
    spark.sql(f"DELETE FROM {marked} WHERE id = '2'")  # a deletion vector
    with commits() as folders:
        nights.night(transaction(4, 400, update("1", "c", oid=4)))
        assert folders == []
        nights.night(transaction(5, 500, update("1", "d", oid=4)))
        assert folders == ["marked"]
    assert nights.values("marked") == [("1", "d")]


def test_a_run_that_died_after_the_commit_is_finished(nights: Nights) -> None:
    nights.night(transaction(1, 100, table(), insert("1", "a")))
    with commits() as folders:
        nights.land(transaction(2, 200, update("1", "b")))
        with dying(DeltaLedger, "close"):
            nights.job.run()
        summary = nights.job.run()
    assert folders == ["t"]
    assert nights.values("t") == [("1", "b")]
    assert [written.updated for written in summary.tables] == [1], "from Delta's history"


def created(path: Path) -> dict[str, Any]:
    """What a table's first commit says of the table and its rows, without what is made at random, and sizes."""
    text = (path / "_delta_log" / f"{0:020d}.json").read_text()
    found = {name: value for line in text.splitlines() for name, value in json.loads(line).items()}
    schema = json.loads(found["metaData"]["schemaString"])
    physical = {
        field["metadata"].pop("delta.columnMapping.physicalName", field["name"]): field["name"]
        for field in schema["fields"]
    }
    statistics = json.loads(found["add"]["stats"])
    info = found["commitInfo"]
    return {
        "protocol": {
            name: sorted(value) if isinstance(value, list) else value for name, value in found["protocol"].items()
        },
        "metadata": {**found["metaData"], "id": None, "createdTime": None, "schemaString": schema},
        "files": [line.count('"add"') for line in text.splitlines()],
        "rows": statistics["numRecords"],
        "nulls": {physical[name]: number for name, number in statistics["nullCount"].items() if name in physical},
        "operation": [info["operation"], info["operationParameters"]["mode"], info["userMetadata"]],
        "counts": {name: info["operationMetrics"].get(name) for name in ("numFiles", "numOutputRows")},
        "transaction": [found["txn"]["appId"], found["txn"]["version"]],
    }


# Texts of two rows by type: OID and typmod.
VALUES = {
    (16, -1): (b"t", None), (17, -1): (rb"\x00ff", rb"\x"), (21, -1): (b"-32768", b"1"),
    (20, -1): (b"9223372036854775807", None),
    (25, -1): ("ä𐀀\t".encode(), b""), (700, -1): (b"NaN", b"-0"), (701, -1): (b"-Infinity", b"1e-300"),
    (1700, (10 << 16) + 2 + 4): (b"-12345678.90", b"NaN"), (1700, -1): (b"1e50", b"0.10"),
    (1082, -1): (b"0044-03-15 BC", b"infinity"),
    (1114, -1): (b"1582-10-10 00:00:00.000001", b"9999-12-31 23:59:59.999999"),
    (1184, -1): (b"0001-01-01 00:00:00+00", b"-infinity"), (1083, -1): (b"24:00:00", b"00:00:00.000001"),
    (2950, -1): (b"00000000-0000-4000-8000-000000000000", None), (1186, -1): (b"1 mon", b"-1 days"),
    (1007, -1): (b"{1,NULL}", b"{}"), (1009, -1): (b'{"a b",NULL,""}', None),
    (1182, -1): (b"{1500-01-01}", b"{infinity}"),
    (1185, -1): (b'{"2024-01-01 00:00:00+02"}', None), (1022, -1): (b"{-0,NaN}", b"{}"),
    (HSTORE, -1): ONE[:1] + TWO[:1],
}  # fmt: skip


@pytest.mark.parametrize("is_for_all", [False, True])
def test_every_type_is_written_as_by_spark(spark: SparkSession, tmp_path: Path, is_for_all: bool) -> None:
    columns = [TableColumn("id", column_type(INT, -1, USER_TYPES))]
    columns += [TableColumn(f"v{n}", column_type(*kind, USER_TYPES)) for n, kind in enumerate(VALUES)]
    relation = table(*((column.name, 25) for column in columns))
    layout = Layout(readers=Readers.ALL if is_for_all else Readers.SPARK)
    shape = TableShape(relation, tuple(columns), (0,), RelationVersions(1, (relation,), {}), layout=layout)
    rows = [tuple(values[n] for values in VALUES.values()) for n in (0, 1)]

    def write(path: Path, batch: int, *events: tuple[str, Values]) -> WriteResult:
        made = pa.table(events_of(spark, shape, *events).frame.toArrow()).cast(shape.event_schema()).combine_chunks()
        net = as_net(made.to_batches()[0], shape)
        before = TargetRows.NOTHING if batch == 1 else TargetRows.ROWS
        given = TableEvents(lambda: frame(spark, pa.Table.from_batches([net])).coalesce(1), True, 100, True, net=net)
        return merge.write(spark, Place(str(path)), shape, given, before, DeltaTransaction("p:l:t", "s", batch, 1), 4)

    first = [(INSERTED, (str(n).encode(), *rows[n % 2])) for n in range(4)]
    second = [(UPDATED, (b"0", *rows[1])), (DELETED, (b"1", *[None] * len(VALUES))), (INSERTED, (b"9", *rows[0]))]
    stored, results = [], []
    for way in ("local", "merged"):
        with pytest.MonkeyPatch.context() as patch, commits() as folders:
            write_as(way, patch)
            write(tmp_path / way, 1, *first)
            results.append(write(tmp_path / way, 2, *second))
        assert folders == ([way] * 2 if way == "local" else [])
        stored.append(spark.read.format("delta").load(str(tmp_path / way)).orderBy("id").toArrow())
    assert stored[0].schema == stored[1].schema
    assert created(tmp_path / "local") == created(tmp_path / "merged")
    assert [repr(row) for row in stored[0].to_pylist()] == [repr(row) for row in stored[1].to_pylist()]
    assert results[0].inserted == results[1].inserted == 1
    if is_for_all:  # without column mapping, other readers see the columns by name
        assert DeltaTable(str(tmp_path / "local")).to_pyarrow_table().sort_by("id").column("v4").to_pylist() == [
            "", "ä𐀀\t", "", "ä𐀀\t",
        ]  # fmt: skip
