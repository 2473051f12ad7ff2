"""Targets in a catalog: the same tables, by name, through every change of a table."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.classic.dataframe import DataFrame
from pyspark.sql.conf import RuntimeConfig

from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.answers.verify.run import verify
from pgoutput_etl.errors import RunError
from pgoutput_etl.ledger.as_of import tables_at
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load import mirror, rewrite
from pgoutput_etl.load.summary import TableSummary
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.spark.delta import is_delta_table
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.files.report import RunSummary
from pgoutput_etl.work.plan.run import plan
from pgoutput_etl.work.upkeep import retention, table_upkeep
from pgoutput_etl.work.upkeep import run as upkeep
from pgoutput_etl.work.upkeep.request import STEPS, MaintainRequest
from pgoutput_etl.work.upkeep.run import maintain
from tests.spark.jobs.test_apply_job import ROOT, run
from tests.spark.jobs.test_snapshot import TABLES, Row, as_csv, load, server_catalog
from tests.spark.load.test_driver_merge import commits, jobs_of
from tests.support.captures import CAPTURES, NEVER_SENT_VALUES, files_of, ignored_columns, truth_tables
from tests.support.jobs import Job, Nights, held, summary_text
from tests.support.small_archives import Change, delete, delete_full, insert, table, transaction, truncate, update
from tests.support.truth import assert_equals_truth
from tests.support.ways_of_writing import write_as

pytestmark = pytest.mark.spark
BAG, EVENTS, PAST = 701, 702, 703
FULL = ReplicaIdentity.FULL
MODES = "tables=[{match: public.events, mode: append}, {match: public.past, mode: history}]"


def in_catalog(spark: SparkSession, folder: Path, landing: Path, *more: str) -> Nights:
    """Gives each test its own schemas, as all tests of a session share Spark's catalog."""
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
    return {table.table: table.path for table in summary.tables}


@pytest.mark.soak
def test_nights_in_a_catalog(nights: Nights) -> None:
    job, spark = nights.job, nights.job.spark
    bag = table(oid=BAG, name="bag", identity=FULL)
    first = transaction(1, 0x100, table(), insert("1", "a"), insert("2", "b"), insert("3", "c"))
    bag_rows = transaction(2, 0x200, bag, *(insert("1", "x", oid=BAG) for _ in range(3)))
    summary = nights.night(first, bag_rows)
    assert kinds(summary) == {"t": place(nights, "t"), "bag": place(nights, "bag")}
    assert f"SELECT * FROM {place(nights, 'bag')}" in summary_text(summary)
    assert values(nights, "t") == [("1", "a"), ("2", "b"), ("3", "c")]

    one_goes = transaction(4, 0x400, delete_full("1", "x", oid=BAG), insert("2", "y", oid=BAG))
    nights.night(transaction(3, 0x300, update("1", "aa"), delete("2", None)), one_goes)
    assert values(nights, "t") == [("1", "aa"), ("3", "c")]
    assert values(nights, "bag") == [("1", "x"), ("1", "x"), ("2", "y")], "a bag lost one of equal rows"

    nights.land(transaction(5, 0x500, insert("4", "d")))
    planned = plan(spark, job.loaded(), lambda _: None)
    assert [(table.table, table.inserted) for table in planned.tables] == [("t", 1)]
    assert job.run().exit_code == 0
    assert values(nights, "t") == [("1", "aa"), ("3", "c"), ("4", "d")]

    wider = table("id", "v", "w w", name="renamed")
    nights.night(transaction(6, 0x600, wider, insert("5", "e", "new")))
    assert ("5", "e", "new") in values(nights, "renamed")
    assert ("4", "d", None) in values(nights, "renamed")
    assert values(nights, "t") == [], "its rows are under its new name"

    now = tables_at(spark, ledger_of(nights), "test")
    assert now["public.renamed"].count() == 4
    assert tables_at(spark, ledger_of(nights), "test", 0x400)["public.t"].count() == 2


@pytest.mark.soak
def test_names_that_a_catalog_refuses_hold_only_their_tables(nights: Nights) -> None:
    odd = table(oid=11, name="odd name")
    upper, lower = table(oid=12, name="Same"), table(oid=13, name="same")
    summary = nights.night(
        transaction(1, 0x100, table(), insert("1", "a")),
        transaction(2, 0x200, odd, insert("1", "a", oid=11)),
        transaction(3, 0x300, upper, insert("1", "a", oid=12)),
    )
    assert summary.exit_code == 3
    assert list(held(summary)) == ["odd name"]
    assert "is not possible in a catalog" in held(summary)["odd name"]
    assert values(nights, "t") == [("1", "a")]

    later = nights.night(transaction(4, 0x400, lower, insert("2", "b", oid=13), insert("5", "e", oid=12)))
    assert "its name differs from public.Same only in case" in held(later)["same"]
    assert values(nights, "same") == [("1", "a"), ("5", "e")], "the one that was there goes on"


def test_an_existing_object_under_the_name_is_left_alone(nights: Nights) -> None:
    spark, name = nights.job.spark, place(nights, "t")
    spark.sql(f"CREATE SCHEMA {name.rpartition('.')[0]}")
    nights.land(transaction(1, 0x100, table(), insert("1", "a")))
    spark.sql(f"CREATE VIEW {name} AS SELECT 1 AS theirs")
    with pytest.raises(RunError, match="exists and is not a Delta table"):
        nights.job.run()
    spark.sql(f"DROP VIEW {name}")
    spark.range(1).write.format("delta").saveAsTable(name)
    with pytest.raises(RunError, match="has rows and is not in the ledger"):
        nights.job.run()
    assert spark.read.table(name).columns == ["id"]


def side(nights: Nights, rows: list[Row]) -> VerifyRequest:
    """A request that compares public.t with these rows."""
    path = nights.job.folder / "side.csv"
    path.write_text(as_csv(("id", "v"), rows))
    return VerifyRequest(csv=str(path), tables=("public.t",))


def versions(nights: Nights) -> dict[str, int]:
    """Each table's Delta version after the last batch, by catalog name."""
    last = DeltaLedger.at(nights.job.spark, ledger_of(nights), "test").batches.last()
    assert last is not None
    return {str(state.path): state.version for state in last.tables.values()}


@pytest.mark.soak
def test_snapshots_verify_backfills_and_maintenance_in_a_catalog(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Begins before the first night, and includes another program's change of a table."""
    monkeypatch.setattr(retention, "LEAST_SMALL_FILES", 2)
    monkeypatch.setattr(upkeep, "LEAST_COMMITS", 1)
    job, spark, t, bag = nights.job, nights.job.spark, place(nights, "t"), place(nights, "bag")
    bag_oid = TABLES[1].oid
    catalog = server_catalog(nights)
    snapshot = load(nights, 0x100, [("0", "from before"), ("1", "a")], **catalog)
    assert [(table.table.path, table.loaded, table.table.held) for table in snapshot.tables] == [(t, 2, None)]
    load(nights, 0x100, [("x", None), ("x", None)], "bag", **catalog)
    first = transaction(1, 0x200, *TABLES, update("1", "aa"), insert("2", "b"), insert("y", None, oid=bag_oid))
    assert kinds(nights.night(first)) == {"t": t, "bag": bag}
    assert values(nights, "t") == [("0", "from before"), ("1", "aa"), ("2", "b")]

    before = versions(nights)
    again = load(nights, 0x180, [("0", "mended"), ("1", "a")])
    [reloaded] = again.tables
    assert (reloaded.table.path, reloaded.loaded, reloaded.changes, reloaded.table.rows) == (t, 2, 2, 3)
    assert versions(nights) == {**before, t: before[t] + 1}, "one commit, and the other table continues"
    nights.night(transaction(2, 0x300, delete("1", None), delete_full("x", None, oid=bag_oid)))
    now: list[Row] = [("0", "mended"), ("2", "b")]
    assert values(nights, "t") == now
    assert values(nights, "bag") == [("x", None), ("y", None)]
    same = verify(spark, job.loaded(), side(nights, now), lambda _: None)
    assert (same.exit_code, same.remarks, [table.rows for table in same.tables]) == (0, (), [2])
    named = verify(spark, job.loaded(), VerifyRequest(delta=t, tables=("public.t",)), lambda _: None)
    assert (named.exit_code, [table.other_rows for table in named.tables]) == (0, [2]), "by its name"

    left_at = versions(nights)[t]
    spark.sql(f"UPDATE {t} SET v = 'theirs' WHERE id = '2'")
    changed = verify(spark, job.loaded(), side(nights, now), lambda _: None)
    [remark] = changed.remarks
    assert f"public.t was compared at Delta version {left_at}, which the last run wrote" in remark
    assert changed.exit_code == 0, "the last run's version is compared"
    theirs = maintain(spark, job.loaded(), MaintainRequest(execute=True, only=("vacuum",)), lambda _: None)
    assert {table.name for table in theirs.tables if "another program has changed it" in " ".join(table.left)} == {
        "public.t"
    }
    assert job.backfill(BackfillRequest(("public.t",))).exit_code == 0
    assert values(nights, "t") == now, "it begins with the snapshot, as no file has row 0"

    for commit in (4, 5):
        nights.night(transaction(commit, 0x100 * commit, insert(str(commit), "c")))
    now += [("4", "c"), ("5", "c")]
    done = maintain(spark, job.loaded(), MaintainRequest(execute=True), lambda _: None)
    compacted = next(table for table in done.tables if table.name == "public.t")
    assert compacted.after is not None
    assert compacted.before.small is not None
    assert (compacted.before.small > 1, compacted.after.files) == (True, 1)
    assert compacted.steps == ("optimize", "checkpoint")
    unchanged = verify(spark, job.loaded(), side(nights, now), lambda _: None)
    assert (unchanged.exit_code, unchanged.remarks) == (0, ())
    assert tables_at(spark, ledger_of(nights), "test")["public.t"].count() == 4

    nights.land(transaction(6, 0x600, table(name="renamed"), update("0", "later")))
    [planned] = [table for table in plan(spark, job.loaded(), lambda _: None).tables if table.table == "renamed"]
    assert (planned.path, planned.updated) == (place(nights, "renamed"), 1)
    job.run()
    assert job.backfill(BackfillRequest(("public.renamed",))).exit_code == 0
    assert values(nights, "renamed") == [("0", "later"), *now[1:]], "its snapshot is under its old name"

    moved = table("a", "b", oid=bag_oid, name="moved", identity=FULL)
    nights.night(transaction(7, 0x700, moved, insert("z", None, oid=bag_oid)))
    spark.sql(f"DROP TABLE {bag}")
    with pytest.raises(RunError, match=r"public\.moved would start from its Delta version 0, which can"):
        job.backfill(BackfillRequest(("public.moved",)))
    nights.night(transaction(8, 0x800, truncate(), insert("9", "z"), insert("w", None, oid=bag_oid)))
    assert values(nights, "renamed") == [("9", "z")]
    assert [row[0] for row in values(nights, "moved")] == ["w", "x", "y", "z"]


@pytest.mark.soak
def test_a_snapshot_is_finished_after_a_crash_or_refused_without_a_trace(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark, t, staged = nights.job.spark, place(nights, "t"), Path(ledger_of(nights)) / "staged"
    spark.sql(f"CREATE SCHEMA {t.rpartition('.')[0]}")
    spark.range(1).write.format("delta").saveAsTable(t)
    with pytest.raises(RunError, match="has rows and is not in the ledger"):
        load(nights, 0x100, [("0", "from before")], **server_catalog(nights))
    assert spark.read.table(t).columns == ["id"]
    assert not list(staged.iterdir())
    spark.sql(f"DROP TABLE {t}")

    nights.night(transaction(1, 0x100, table(), insert("1", "a")))

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(DeltaLedger, "close_backfill", dies)
        with pytest.raises(KeyboardInterrupt):
            load(nights, 0x180, [("0", "from before"), ("1", "a")])
    assert list(staged.iterdir())
    nights.night(transaction(2, 0x200, update("0", "then")))
    assert values(nights, "t") == [("0", "then"), ("1", "a")]
    assert not staged.exists()


@pytest.mark.soak
def test_a_table_whose_name_differs_only_in_case_can_be_rebuilt(nights: Nights) -> None:
    upper, lower = table(oid=12, name="Same"), table(oid=13, name="same")
    nights.night(transaction(1, 0x100, upper, insert("1", "a", oid=12)))
    assert list(held(nights.night(transaction(2, 0x200, lower, insert("2", "b", oid=13))))) == ["same"]
    nights.job.spark.sql(f"DELETE FROM {place(nights, 'same')}")
    again = nights.job.backfill(BackfillRequest(("public.Same",)))
    assert (again.exit_code, [table.table.held for table in again.tables]) == (0, [None])
    assert values(nights, "same") == [("1", "a")]
    assert nights.job.backfill(BackfillRequest(None)).exit_code == 3, "the other table is still held"


@pytest.mark.soak
def test_a_table_whose_files_can_not_be_listed_is_compacted(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses only the log, as for Unity Catalog's managed tables, which are simulated here."""
    for commit in (1, 2):
        nights.night(transaction(commit, 0x100 * commit, table(), insert(str(commit), "a")))
    monkeypatch.setattr(table_upkeep, "is_platform_session", lambda: True)
    monkeypatch.setattr(retention, "LEAST_SMALL_FILES", 2)

    def listed(_: SparkSession, place: Place) -> str:
        assert not place.is_in_catalog, "its files were listed"
        return place.name

    monkeypatch.setattr(table_upkeep, "folder_of", listed)
    done = maintain(
        nights.job.spark, nights.job.loaded(), MaintainRequest(execute=True, only=STEPS[:3]), lambda _: None
    )
    compacted = next(table for table in done.tables if table.name == "public.t")
    before, after = compacted.before, compacted.after
    assert after is not None
    assert (before.files, after.files, before.small, after.stored_bytes) == (2, 1, None, None)
    assert after.bytes > 0
    again = maintain(
        nights.job.spark, nights.job.loaded(), MaintainRequest(execute=True, only=STEPS[:3]), lambda _: None
    )
    assert again.batch == 0, "no version differs from the ledger's"


@pytest.mark.soak
@pytest.mark.parametrize("is_in_catalog", [True, False], ids=["catalog", "folders"])
def test_a_dropped_table_is_held_and_not_recreated_incomplete(
    spark: SparkSession, tmp_path: Path, landing: Path, is_in_catalog: bool
) -> None:
    nights = in_catalog(spark, tmp_path, landing) if is_in_catalog else Nights(Job(spark, tmp_path, landing))
    root = nights.job.loaded().state.root
    names = {1: "appended", 2: "merged", 3: "renamed", 4: "stays"}
    described = [table(oid=oid, name=name) for oid, name in names.items()]
    first = nights.night(transaction(1, 0x100, *described, *(insert("1", "a", oid=oid) for oid in names)))
    places = kinds(first)
    for name in ("appended", "merged", "renamed"):
        if is_in_catalog:
            spark.sql(f"DROP TABLE {places[name]}")
        else:
            shutil.rmtree(places[name])

    changes: list[Change] = [insert("2", "b", oid=1), update("1", "aa", oid=2), insert("2", "b", oid=4)]
    later = nights.night(transaction(2, 0x200, *changes, table(oid=3, name="other"), update("1", "aa", oid=3)))
    assert later.exit_code == 3
    assert sorted(held(later)) == ["appended", "merged", "other"]
    for name, was in (("appended", "appended"), ("merged", "merged"), ("other", "renamed")):
        assert f"there is no table at {places[was]} any more" in held(later)[name]
    assert not any(is_delta_table(spark, Place(places[name])) for name in ("appended", "merged"))
    tables = tables_at(spark, root, "test")
    assert ({*tables}, {*tables.held}) == ({"public.stays"}, {"public.appended", "public.merged", "public.renamed"})
    itself = VerifyRequest(delta=places["stays"], tables=("public.merged",))
    assert verify(spark, nights.job.loaded(), itself, lambda _: None).exit_code == 3
    done = maintain(spark, nights.job.loaded(), MaintainRequest(execute=True, only=("vacuum",)), lambda _: None)
    assert f"public.appended: no table exists at {places['appended']}" in done.remarks

    assert nights.job.backfill(BackfillRequest(None)).exit_code == 0
    nights.night(transaction(3, 0x300, *(insert("3", "c", oid=oid) for oid in names)))
    now = tables_at(spark, root, "test")
    assert {name: now[name].count() for name in now} == {
        "public.appended": 3,
        "public.merged": 2,
        "public.other": 2,
        "public.stays": 3,
    }


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
        patched.setattr(DeltaLedger, "close", dies)
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


# The settings that a session on Databricks' serverless compute can change.
TAKEN = {"spark.sql.session.timeZone", "spark.sql.shuffle.partitions", "spark.sql.ansi.enabled"}


@pytest.fixture
def serverless(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Simulates serverless compute: refuses the same operations, with its errors. Returns the refused operations."""
    refused: list[str] = []
    takes = RuntimeConfig.set

    def set_if_taken(conf: RuntimeConfig, key: str, value: str) -> None:
        if key not in TAKEN:
            refused.append(key)
            raise AnalysisException(f"[CONFIG_NOT_AVAILABLE] {key}", errorClass="CONFIG_NOT_AVAILABLE")
        takes(conf, key, value)

    def persist(*_: object) -> None:
        refused.append("persist")
        message = "[NOT_SUPPORTED_WITH_SERVERLESS] PERSIST TABLE is not supported on serverless compute"
        raise AnalysisException(message, errorClass="NOT_SUPPORTED_WITH_SERVERLESS")

    monkeypatch.setattr(RuntimeConfig, "set", set_if_taken)
    monkeypatch.setattr(DataFrame, "persist", persist)
    monkeypatch.setattr(DataFrame, "unpersist", persist)
    return refused


@pytest.mark.soak
def test_interrupted_runs_are_finished_without_marked_commits(
    spark: SparkSession, tmp_path: Path, landing: Path, serverless: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nights = in_catalog(spark, tmp_path, landing, MODES)
    for land in (of_every_mode, more_of_every_mode):
        land(nights)
        dies_before_it_is_done(nights, monkeypatch)
        nights.job.run()
    assert_every_mode(nights)
    assert "spark.databricks.delta.write.txnAppId" in serverless
    notes = spark.sql(f"DESCRIBE HISTORY {place(nights, 'events')}").select("userMetadata", "operation").collect()
    assert {note[0] for note in notes} == {None}, "no commit has a mark"
    assert "RESTORE" in {note[1] for note in notes}
    assert nights.job.backfill(BackfillRequest(("public.*",))).exit_code == 0
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
        f"source: {{name: shop, landing: '{landing}', snapshot: accept}}\ntarget: {{catalog: spark_catalog}}\n"
        f"state: {{root: '{tmp_path / 'ledger'}'}}\nspark: {json.dumps(spark)}\n"
    )
    return config


@pytest.mark.soak
def test_spark_s_own_catalog_without_a_metastore_is_refused(tmp_path: Path, landing: Path) -> None:
    config = configured(tmp_path, landing)
    done = run(ROOT / "spark-submit.sh", ROOT / "jobs" / "apply.py", "--config", config, "--quiet")
    assert done.returncode == 2, done.stderr
    assert "loses its tables when the job ends" in done.stderr


def job(name: str, config: Path, *arguments: str) -> dict[str, Any]:
    script = ROOT / "jobs" / f"{name}.py"
    done = run(ROOT / "spark-submit.sh", script, "--config", config, "--json", "--quiet", *arguments)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


@pytest.mark.soak
def test_two_nights_in_hive_s_metastore(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    """One job after another, as only one process at a time can use its embedded Derby."""
    config = configured(tmp_path, landing, **{"spark.sql.catalogImplementation": "hive"})
    files = files_of(CAPTURES / "random16" / "v4b")
    applied = []
    for night in (files[:5], files[5:]):
        for file in night:
            shutil.copy(file, landing)
        applied.append(job("apply", config))
    assert [truth["files"] for truth in applied] == [5, 5]
    accounts = CAPTURES / "random16" / "truth" / "public.acct.csv"
    behind = format_lsn(applied[-1]["last_commit_lsn"] + 1)
    loaded = job("snapshot", config, "--tables", "public.acct", "--csv", str(accounts), "--lsn", behind)
    assert [truth["table"]["path"] for truth in loaded["tables"]] == ["`spark_catalog`.`public`.`acct`"]
    job("maintain", config, "--execute")
    assert job("plan", config)["files"] == []
    compared = job("verify", config, "--csv", str(accounts), "--tables", "public.acct")
    assert [(truth["rows"], truth["ranges_differing"]) for truth in compared["tables"]] == [(89, 0)]

    for truth in truth_tables(CAPTURES / "random16" / "truth"):
        folder = tmp_path / "warehouse" / "public.db" / truth.name  # a managed table consists of Delta's files, too
        rows = spark.read.format("delta").load(str(folder)).toArrow().to_pylist()
        assert_equals_truth(rows, truth.truth, ignored_columns("random16"), NEVER_SENT_VALUES.get(truth.full_name))


def test_rows_and_contradictions_are_counted_where_spark_loses_what_is_observed(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_as("rewritten", monkeypatch)
    monkeypatch.setattr(rewrite, "awaited", None)
    monkeypatch.setattr(mirror, "awaited", None)
    rows = transaction(1, 0x100, table(), truncate(), insert("1", "a"), insert("2", "b"), delete("7", None))
    changes = transaction(2, 0x200, update("1", "aa"), update("8", "h"), insert("3", "c"), delete("2", None))
    for night, expected, missing in ((rows, (2, 0, 0, 2), 1), (changes, (2, 1, 1, 3), 2)):
        summary = nights.night(night)
        [own] = summary.tables
        assert (own.inserted, own.updated, own.deleted, own.rows) == expected
        [condition] = summary.conditions
        assert condition.mismatches is not None
        assert (condition.state.value, condition.mismatches.missing) == ("diverged", missing)


def test_small_tables_of_sparks_own_catalog_are_merged_on_the_driver(nights: Nights) -> None:
    job, spark = nights.job, nights.job.spark
    one, two = table(oid=BAG, name="one"), table(oid=EVENTS, name="two")
    rows = [insert(key, "a", oid=oid) for oid in (BAG, EVENTS) for key in ("1", "2")]
    with commits() as folders:
        nights.night(transaction(1, 100, one, two, *rows))
        assert folders == [], "Spark tells the catalog about new tables"
        taken: list[int] = []
        summaries: list[TableSummary] = []
        for night, oids in ((2, [BAG]), (3, [BAG, EVENTS])):
            before = jobs_of(spark)
            changes = [change for oid in oids for change in (update("1", "b", oid=oid), delete("2", None, oid=oid))]
            summaries += nights.night(transaction(night, 100 * night, *changes)).tables
            taken.append(jobs_of(spark) - before)
    assert sorted(folders) == ["one", "one", "two"]
    assert taken[0] == taken[1], "the second table takes none"
    assert [(own.updated, own.deleted, own.rows) for own in summaries if own.table == "two"][-1:] == [(1, 1, 1)]
    assert [tuple(row)[:2] for row in spark.table(place(nights, "two")).collect()] == [("1", "b")]
    maintained = maintain(spark, job.loaded(), MaintainRequest())
    assert {own.name: own.before.files for own in maintained.tables if own.name.endswith(".two")} == {"public.two": 1}


@pytest.mark.soak
def test_readers_auto_turns_a_feature_on_once(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    nights = in_catalog(spark, tmp_path, landing, "target.readers=auto")

    def properties() -> dict[str, str]:
        rows = spark.sql(f"SHOW TBLPROPERTIES {place(nights, 't')}").collect()
        return {row["key"]: row["value"] for row in rows}

    nights.night(transaction(1, 0x100, table("id", "v", "z"), insert("1", "a", "z")))
    assert properties().get("delta.columnMapping.mode", "none") == "none"
    for number, name in ((2, "w"), (3, "x")):
        nights.land(transaction(number, 0x100 * number, table("id", name, "z"), insert(str(number), "b", "z")))
        former = "v" if name == "w" else "w"
        need = f"column mapping on: column {former!r} is renamed"
        expected = [need] if name == "w" else []
        planned = [text for t in plan(spark, nights.job.loaded()).tables for text in t.layout if " on: " in text]
        noted = [note for t in nights.job.run().tables for note in t.notes if " on: " in note]
        assert (planned, noted) == (expected, expected)
        assert properties()["delta.columnMapping.mode"] == "name"
    assert values(nights, "t") == [("1", "a", "z"), ("2", "b", "z"), ("3", "b", "z")]
