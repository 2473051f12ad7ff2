"""Targets in a catalog: the same tables under names, through all that befalls a table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.conf import RuntimeConfig

from pgoutput_etl.backfill_request import Request
from pgoutput_etl.errors import RunError
from pgoutput_etl.ledger import Ledger
from pgoutput_etl.maintaining import maintain
from pgoutput_etl.messages import ReplicaIdentity
from pgoutput_etl.planning import plan
from pgoutput_etl.reading import tables_at
from pgoutput_etl.report import RunSummary
from pgoutput_etl.retention import MaintainRequest
from tests.captures import CAPTURES, NEVER_SENT_VALUES, files_of, ignored_columns, truth_tables
from tests.small_archives import delete, delete_full, insert, table, transaction, truncate, update
from tests.spark.jobs import Job, Nights, held, said
from tests.spark.test_apply_job import ROOT, run
from tests.truth import assert_equals_truth

pytestmark = pytest.mark.spark
BAG, EVENTS, PAST = 701, 702, 703
FULL = ReplicaIdentity.FULL
MODES = "tables=[{match: public.events, mode: append}, {match: public.past, mode: history}]"


def in_catalog(spark: SparkSession, folder: Path, landing: Path, *more: str) -> Nights:
    """Each test's own schemas, as all tests of a session share Spark's own catalog."""
    overrides = [f"target={{catalog: spark_catalog.s{uuid4().hex[:8]}}}", f"state.root={folder / 'ledger'}", *more]
    return Nights(Job(spark, folder, landing, overrides))


@pytest.fixture
def nights(spark: SparkSession, tmp_path: Path, landing: Path) -> Nights:
    return in_catalog(spark, tmp_path, landing)


def place(nights: Nights, name: str) -> str:
    catalog = nights.job.loaded().target.catalog
    assert catalog is not None
    return f"`spark_catalog`.`{catalog.partition('.')[2]}_public`.`{name}`"


def values(nights: Nights, name: str) -> list[tuple[object, ...]]:
    """The table's own columns."""
    rows = nights.job.spark.read.table(place(nights, name)).toArrow().to_pylist()
    return sorted(tuple(v for column, v in row.items() if not column.startswith("_pg_")) for row in rows)


def ledger_of(nights: Nights) -> str:
    return nights.job.loaded().state.root


def kinds(summary: RunSummary) -> dict[str, str]:
    return {each.table: each.path for each in summary.tables}


def test_a_table_s_life_in_a_catalog(nights: Nights) -> None:
    job, spark = nights.job, nights.job.spark
    bag = table(oid=BAG, name="bag", identity=FULL)
    first = transaction(1, 0x100, table(), insert("1", "a"), insert("2", "b"), insert("3", "c"))
    of_bag = transaction(2, 0x200, bag, *(insert("1", "x", oid=BAG) for _ in range(3)))
    summary = nights.night(first, of_bag)
    assert kinds(summary) == {"t": place(nights, "t"), "bag": place(nights, "bag")}
    assert f"SELECT * FROM {place(nights, 'bag')}" in said(summary)
    assert values(nights, "t") == [("1", "a"), ("2", "b"), ("3", "c")]

    one_goes = transaction(4, 0x400, delete_full("1", "x", oid=BAG), insert("2", "y", oid=BAG))
    nights.night(transaction(3, 0x300, update("1", "aa"), delete("2", None)), one_goes)
    assert values(nights, "t") == [("1", "aa"), ("3", "c")]
    assert values(nights, "bag") == [("1", "x"), ("1", "x"), ("2", "y")], "a bag lost one of equal rows"

    nights.land(transaction(5, 0x500, insert("4", "d")))
    planned = plan(spark, job.loaded(), lambda _: None)
    assert [(each.table, each.inserted) for each in planned.tables] == [("t", 1)]
    assert job.run().exit_code == 0
    assert values(nights, "t") == [("1", "aa"), ("3", "c"), ("4", "d")]

    wider = table("id", "v", "w w", name="renamed")
    nights.night(transaction(6, 0x600, wider, insert("5", "e", "new")))
    assert ("5", "e", "new") in values(nights, "renamed")
    assert ("4", "d", None) in values(nights, "renamed")
    assert values(nights, "t") == [], "its rows are where its name is"

    now = tables_at(spark, ledger_of(nights), "test")
    assert now["public.renamed"].count() == 4
    assert tables_at(spark, ledger_of(nights), "test", 0x400)["public.t"].count() == 2

    rebuilt = job.backfill(Request(("public.renamed", "public.bag")))
    assert rebuilt.exit_code == 0
    assert len(values(nights, "renamed")) == 4
    assert values(nights, "bag") == [("1", "x"), ("1", "x"), ("2", "y")]

    done = maintain(spark, job.loaded(), MaintainRequest(execute=True), lambda _: None)
    found = next(each for each in done.tables if each.name == "public.renamed")
    assert found.after is not None
    assert found.after.files == 1
    assert {"vacuum", "checkpoint"} <= set(found.steps)

    nights.night(transaction(7, 0x700, truncate(), insert("9", "z", "last")))
    assert values(nights, "renamed") == [("9", "z", "last")]


def test_names_that_a_catalog_does_not_take_hold_their_table_alone(nights: Nights) -> None:
    odd = table(oid=11, name="odd name")
    upper, lower = table(oid=12, name="Same"), table(oid=13, name="same")
    summary = nights.night(
        transaction(1, 0x100, table(), insert("1", "a")),
        transaction(2, 0x200, odd, insert("1", "a", oid=11)),
        transaction(3, 0x300, upper, insert("1", "a", oid=12)),
    )
    assert summary.exit_code == 3
    assert list(held(summary)) == ["odd name"]
    assert "can be none in a catalog" in held(summary)["odd name"]
    assert values(nights, "t") == [("1", "a")]

    later = nights.night(transaction(4, 0x400, lower, insert("2", "b", oid=13), insert("5", "e", oid=12)))
    assert "public.Same differs from it in nothing but case" in held(later)["same"]
    assert values(nights, "same") == [("1", "a"), ("5", "e")], "the one that was there goes on"


def test_what_somebody_else_has_under_the_name_is_left(nights: Nights) -> None:
    spark, name = nights.job.spark, place(nights, "t")
    spark.sql(f"CREATE SCHEMA {name.rpartition('.')[0]}")
    nights.land(transaction(1, 0x100, table(), insert("1", "a")))
    spark.sql(f"CREATE VIEW {name} AS SELECT 1 AS theirs")
    with pytest.raises(RunError, match="is there and is no Delta table"):
        nights.job.run()
    spark.sql(f"DROP VIEW {name}")
    spark.range(1).write.format("delta").saveAsTable(name)
    with pytest.raises(RunError, match="which the ledger knows nothing of"):
        nights.job.run()
    assert spark.read.table(name).columns == ["id"]


def of_every_mode(nights: Nights) -> None:
    tables = (
        table(),
        table(oid=BAG, name="bag", identity=FULL),
        table(oid=EVENTS, name="events"),
        table(oid=PAST, name="past"),
    )
    rows = [insert("1", "a", oid=described.oid) for described in tables]
    nights.land(transaction(1, 0x100, *tables, *rows))


def more_of_every_mode(nights: Nights) -> None:
    oids = (BAG, EVENTS, PAST)
    rows = [insert("2", "b"), *(insert("2", "b", oid=oid) for oid in oids)]
    changed = [update("1", "aa"), update("1", "aa", oid=EVENTS), update("1", "aa", oid=PAST)]
    nights.land(transaction(2, 0x200, *rows, *changed))


def assert_every_mode(nights: Nights) -> None:
    assert values(nights, "t") == [("1", "aa"), ("2", "b")]
    assert values(nights, "bag") == [("1", "a"), ("2", "b")]
    assert values(nights, "events") == [("1", "a"), ("1", "aa"), ("2", "b")]
    assert values(nights, "past") == [("1", "a"), ("1", "aa"), ("2", "b")]


def dies_before_it_is_done(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "close", dies)
        with pytest.raises(RuntimeError, match="killed"):
            nights.job.run()


@pytest.mark.soak
def test_runs_that_died_are_finished(
    spark: SparkSession, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nights = in_catalog(spark, tmp_path, landing, MODES)
    for land in (of_every_mode, more_of_every_mode):
        land(nights)
        dies_before_it_is_done(nights, monkeypatch)
        nights.job.run()
    assert_every_mode(nights)


# What Databricks' serverless compute lets a session set.
TAKEN = {"spark.sql.session.timeZone", "spark.sql.shuffle.partitions", "spark.sql.ansi.enabled"}


@pytest.fixture
def serverless(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Refuses what serverless compute refuses, by its errors; gives what was refused. There is none to run on here."""
    refused: list[str] = []
    takes = RuntimeConfig.set

    def set_if_taken(conf: RuntimeConfig, key: str, value: str) -> None:
        if key not in TAKEN:
            refused.append(key)
            raise AnalysisException(f"[CONFIG_NOT_AVAILABLE] {key}", errorClass="CONFIG_NOT_AVAILABLE")
        takes(conf, key, value)

    def kept(*_: object) -> None:
        refused.append("persist")
        said = "[NOT_SUPPORTED_WITH_SERVERLESS] PERSIST TABLE is not supported on serverless compute"
        raise AnalysisException(said, errorClass="NOT_SUPPORTED_WITH_SERVERLESS")

    monkeypatch.setattr(RuntimeConfig, "set", set_if_taken)
    monkeypatch.setattr(DataFrame, "persist", kept)
    monkeypatch.setattr(DataFrame, "unpersist", kept)
    return refused


@pytest.mark.soak
def test_where_commits_bear_no_mark_runs_that_died_are_finished_too(
    spark: SparkSession, tmp_path: Path, landing: Path, serverless: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nights = in_catalog(spark, tmp_path, landing, MODES)
    for land in (of_every_mode, more_of_every_mode):
        land(nights)
        dies_before_it_is_done(nights, monkeypatch)
        nights.job.run()
    assert_every_mode(nights)
    assert {"persist", "spark.databricks.delta.write.txnAppId"} <= set(serverless)
    notes = spark.sql(f"DESCRIBE HISTORY {place(nights, 'events')}").select("userMetadata", "operation").collect()
    assert {note[0] for note in notes} == {None}, "no commit bears a mark"
    assert "RESTORE" in {note[1] for note in notes}
    assert nights.job.backfill(Request(("public.*",))).exit_code == 0
    assert_every_mode(nights)


def configured(tmp_path: Path, landing: Path, **settings: str) -> Path:
    config = tmp_path / "job.yaml"
    derby = f"jdbc:derby:;databaseName={tmp_path / 'metastore'};create=true"
    spark = {
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.hadoop.javax.jdo.option.ConnectionURL": derby,
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        **settings,
    }
    config.write_text(
        f"source: {{name: shop, landing: '{landing}'}}\ntarget: {{catalog: spark_catalog}}\n"
        f"state: {{root: '{tmp_path / 'ledger'}'}}\nspark: {json.dumps(spark)}\n"
    )
    return config


def test_spark_s_own_catalog_without_a_metastore_is_refused(tmp_path: Path, landing: Path) -> None:
    config = configured(tmp_path, landing)
    done = run(ROOT / "spark-submit.sh", ROOT / "jobs" / "apply.py", "--config", config, "--quiet")
    assert done.returncode == 2, done.stderr
    assert "forgets its tables when the job ends" in done.stderr


def job(name: str, config: Path, *arguments: str) -> dict[str, object]:
    script = ROOT / "jobs" / f"{name}.py"
    done = run(ROOT / "spark-submit.sh", script, "--config", config, "--json", "--quiet", *arguments)
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.soak
def test_two_nights_in_hive_s_metastore(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    """Its embedded Derby, which is one process' at a time: a job after the other."""
    config = configured(tmp_path, landing, **{"spark.sql.catalogImplementation": "hive"})
    files = files_of(CAPTURES / "random16" / "v4b")
    for night in (files[:5], files[5:]):
        for file in night:
            shutil.copy(file, landing)
        assert job("apply", config)["files"] == 5
    job("maintain", config, "--execute")
    assert job("plan", config)["files"] == []

    for each in truth_tables(CAPTURES / "random16" / "truth"):
        folder = tmp_path / "warehouse" / "public.db" / each.name  # a managed table is Delta's files all the same
        rows = spark.read.format("delta").load(str(folder)).toArrow().to_pylist()
        assert_equals_truth(rows, each.truth, ignored_columns("random16"), NEVER_SENT_VALUES.get(each.full_name))
