"""Which programs open the tables, by `target.readers`. docs/layout.md has the same matrix."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import delta_kernel_rust_sharing_wrapper as delta_kernel
import duckdb
import duckdb_extension_delta
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from pgoutput_etl.identifiers import quoted, text_literal
from pgoutput_etl.load.commit import overwrite
from pgoutput_etl.load.evolve import committed_steps
from pgoutput_etl.load.layout import allow_names, has_column_mapping
from pgoutput_etl.load.table_writer import DeltaTransaction, committing
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.schema.layout import Layout, Readers
from pgoutput_etl.spark.session import session_settings
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.plan.run import plan
from tests.support.jobs import Job, Nights
from tests.support.small_archives import Change, T, delete_full, insert, table, transaction, truncate, update

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]

BAG, PAST, GONE, LOG = 11, 12, 13, 14
OTHERS = {BAG: "bag", PAST: "past", GONE: "gone", LOG: "log"}
INT4, INT8, TIMESTAMP = 23, 20, 1114
MODES = (
    "tables=[{match: public.past, mode: history}, {match: public.gone, mode: soft_delete, cluster_by: [id]}, "
    "{match: public.log, mode: append}, {match: '*'}]"
)
FOR_ALL = "target.readers=all"


def pyarrow_table(path: Path) -> pa.Table:
    return DeltaTable(path).to_pyarrow_table()


def query_builder(path: Path) -> pa.Table:
    return pa.table(QueryBuilder().register("t", DeltaTable(path)).execute("SELECT * FROM t").read_all())


def in_polars(path: Path) -> pa.Table:
    return polars.scan_delta(str(path)).collect().to_arrow()


def in_duckdb(path: Path) -> pa.Table:
    [extension] = Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension")
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        connection.execute(f"LOAD {text_literal(str(extension))}")
        return connection.execute(f"FROM delta_scan({text_literal(str(path))})").to_arrow_table()


def kernel(path: Path) -> pa.Table:
    place = path.absolute().as_uri()
    storage = delta_kernel.PythonInterface(place)
    scan = delta_kernel.ScanBuilder(delta_kernel.Table(place).snapshot(storage)).build()
    return pa.table(scan.execute(storage).read_all())


READERS: dict[str, Callable[[Path], pa.Table]] = {
    "deltalake, `QueryBuilder`": query_builder,
    "deltalake, `to_pyarrow_table`": pyarrow_table,
    "delta-kernel": kernel,
    "DuckDB": in_duckdb,
    "Polars": in_polars,
}

NARROW = (("id", INT4), "v", ("at", TIMESTAMP))


def three_nights(nights: Nights, others: Mapping[int, str]) -> None:
    """With changes of each kind, and columns that were added, dropped, renamed, and widened."""
    tables = [
        table(*NARROW, oid=oid, name=name, identity=ReplicaIdentity.FULL if oid == BAG else ReplicaIdentity.DEFAULT)
        for oid, name in others.items()
    ]
    first, second = "2026-01-01 10:00:00", "2026-01-02 10:00:00"
    oids = (*others, T)
    rows = [insert(str(i), "a", first, oid=oid) for oid in oids for i in range(20)]
    nights.night(transaction(1, 0x100, table(*NARROW, oid=T), *tables, *rows))
    changes: list[Change] = [update("1", "b", second, oid=oid) for oid in oids if oid != BAG]
    changes += [delete_full("2", "a", first, oid=BAG)] if BAG in others else []
    nights.night(transaction(2, 0x200, *changes, insert("77", "c", None)))
    wide = table(("id", INT8), ("w", 25), ("at", TIMESTAMP), ("n", INT8), oid=T)
    nights.night(transaction(3, 0x300, wide, insert("5000000000", "d", first, "7", oid=T)))


def rows_of(found: pa.Table) -> Counter[str]:
    def comparable(value: object) -> object:
        if isinstance(value, datetime) and value.tzinfo is not None:
            return value.astimezone(timezone.utc)  # each reader has its own object for UTC
        return sorted(value) if isinstance(value, list) else value

    return Counter(
        repr([(name, comparable(value)) for name, value in sorted(row.items())]) for row in found.to_pylist()
    )


def opens(reader: str, path: Path, expected: Counter[str]) -> bool:
    """False if the reader refuses the table. Fails if it reads other rows."""
    try:
        found = READERS[reader](path)
    except Exception as error:  # each reader has its own
        if not re.search("columnMapping|deletionVectors|typeWidening|TypeWidening", str(error)):
            raise
        return False
    assert rows_of(found) == expected, (reader, path)
    return True


def applied(spark: SparkSession, folder: Path, others: Mapping[int, str], *overrides: str) -> Nights:
    landing = folder / "landing"
    landing.mkdir()
    nights = Nights(Job(spark, folder, landing, [MODES, *overrides]))
    three_nights(nights, others)
    return nights


def who_opens(job: Job, name: str) -> set[str]:
    path = job.path("public", name)
    expected = rows_of(job.spark.read.format("delta").load(str(path)).toArrow())
    return {reader for reader in READERS if opens(reader, path, expected)}


def features(job: Job, name: str) -> set[str]:
    path = str(job.path("public", name))
    [found] = job.spark.sql(f"DESCRIBE DETAIL delta.{quoted(path)}").select("tableFeatures").collect()
    return set(found[0])


@pytest.mark.soak
def test_which_readers_open_which_tables(spark: SparkSession, tmp_path: Path) -> None:
    """As the documentation says."""
    for_all, for_spark = tmp_path / "all", tmp_path / "spark"
    for_all.mkdir()
    for_spark.mkdir()
    job = applied(spark, for_all, {PAST: "past"}, FOR_ALL).job
    for name in ("t", "past"):
        assert who_opens(job, name) == set(READERS), name

    job = applied(spark, for_spark, {PAST: "past"}).job
    page = (ROOT / "docs/layout.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) \| (yes|no) \| (yes|no) \| (yes|no) \|$", page, re.MULTILINE)
    said = {reader: answers for reader, *answers in rows if reader != "Spark"}
    found = {
        reader: ["yes" if reader in who_opens(job, name) else "no" for name in ("past", "t")] for reader in READERS
    }
    assert said == {reader: [*answers, "yes"] for reader, answers in found.items()}


def test_a_name_that_needs_column_mapping_is_no_step_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """A run that died after this commit, and before the write, has written nothing."""
    path, commit = str(tmp_path / "t"), DeltaTransaction("app", "changes:0", 1, 5)
    with committing(spark, Place(path), replace(commit, batch=0)) as created:
        overwrite(created, spark.range(3), Layout(readers=Readers.ALL))
    spark.sql(f"ALTER TABLE delta.{quoted(path)} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    assert not has_column_mapping(spark, Place(path))
    with session_settings(spark, commit.settings()) as session:
        allow_names(session, Place(path), ["a b"])
    assert has_column_mapping(spark, Place(path))
    assert committed_steps(spark, Place(path), commit) == {}
    with committing(spark, Place(path), commit) as written:
        overwrite(written, spark.range(7).withColumnRenamed("id", "a b"), Layout(readers=Readers.SPARK))
    assert committed_steps(spark, Place(path), commit).keys() == {"changes:0"}
    assert spark.read.format("delta").load(path).count() == 7


@pytest.mark.soak
def test_existing_tables_become_readable(spark: SparkSession, tmp_path: Path) -> None:
    nights = applied(spark, tmp_path, OTHERS)
    job = nights.job
    wide = features(job, "t")
    assert {"columnMapping", "deletionVectors", "typeWidening"} <= wide
    job.overrides.append(FOR_ALL)
    changes = [insert("99", "e", None, oid=oid) for oid in OTHERS]
    nights.land(transaction(4, 0x400, *changes, insert("99", "e", None, "8")))
    planned = plan(spark, job.loaded())
    assert any("for all readers: without" in note for t in planned.tables for note in t.layout)
    summary = job.run()
    assert all(any("for all readers: without" in note for note in t.notes) for t in summary.tables)
    for name in ("t", *OTHERS.values()):
        assert who_opens(job, name) == set(READERS), name


@pytest.mark.soak
def test_names_that_need_column_mapping(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    nights = Nights(Job(spark, tmp_path, landing, [FOR_ALL, "tables=[{match: '*', cdf: true, cluster_by: [id]}]"]))
    job = nights.job
    nights.night(
        transaction(1, 0x100, table(), insert("1", "a"), table(oid=BAG, name="odd"), insert("1", "a", oid=BAG))
    )
    assert who_opens(job, "t") == set(READERS)
    odd = table("id", "v", "a b", oid=BAG, name="odd")
    summary = nights.night(transaction(2, 0x200, odd, update("1", "b", "c", oid=BAG), update("1", "b")))
    [noted] = [t for t in summary.tables if t.table == "odd"]
    assert any("not for all readers: the name of column 'a b'" in note for note in noted.notes)
    assert "columnMapping" in features(job, "odd")
    assert [row["a b"] for row in spark.read.format("delta").load(str(job.path("public", "odd"))).collect()] == ["c"]

    # It leaves the table again
    nights.night(transaction(3, 0x300, table("id", "v", oid=BAG, name="odd"), insert("2", "d", oid=BAG)))
    assert who_opens(job, "odd") == set(READERS)
    # A TRUNCATE, a renamed table, and a rebuilt one
    nights.night(transaction(4, 0x400, table(name="moved"), truncate(T), insert("3", "e")))
    assert job.backfill(BackfillRequest(tables=("public.odd",))).exit_code == 0
    assert who_opens(job, "moved") == who_opens(job, "odd") == set(READERS)
