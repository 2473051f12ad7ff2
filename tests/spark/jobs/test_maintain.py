"""Maintenance changes no row, keeps the files that runs and readers need, and skips tables that a run may write."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable

import pgoutput_etl as pg
from pgoutput_etl.errors import ConfigError, RunError, SequenceError
from pgoutput_etl.ledger.as_of import tables_at
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load.writer import Writer
from pgoutput_etl.protocol.messages import Begin, Commit, Relation, StreamCommit
from pgoutput_etl.spark.session import session_settings
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.upkeep import retention
from pgoutput_etl.work.upkeep import run as maintain_run
from pgoutput_etl.work.upkeep.operations import DeltaUpkeep
from pgoutput_etl.work.upkeep.report import MaintainedTable, MaintainSummary
from pgoutput_etl.work.upkeep.request import MaintainRequest
from pgoutput_etl.work.upkeep.run import maintain
from tests.spark.jobs.test_apply_job import ROOT, run
from tests.spark.jobs.test_plan import tree
from tests.support.jobs import Job, Nights
from tests.support.small_archives import Messages, insert, segment, table, transaction, update

pytestmark = pytest.mark.spark
EXECUTE = MaintainRequest(execute=True)


@pytest.fixture(autouse=True)
def _tables_of_few_files_are_maintained(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.function is not test_small_tables_are_left_alone:
        monkeypatch.setattr(retention, "LEAST_SMALL_FILES", 2)
        monkeypatch.setattr(maintain_run, "LEAST_COMMITS", 1)


def maintained(job: Job, request: MaintainRequest = EXECUTE) -> MaintainSummary:
    return maintain(job.spark, job.loaded(), request, lambda _: None)


def some_nights(nights: Nights, count: int = 3) -> None:
    for n in range(count):
        described = [table()] if n == 0 else []
        nights.night(transaction(n + 1, 0x100 * (n + 1), *described, insert(str(n), f"v{n}")))


def by_name(summary: MaintainSummary, name: str) -> MaintainedTable:
    return next(table for table in summary.tables if table.name == name)


def history(job: Job) -> list[Any]:
    return DeltaTable.forPath(job.spark, str(job.path("public", "t"))).history().collect()


def ledger_root(job: Job) -> str:
    return str(job.folder / "tables" / "_pgoutput_etl")


@pytest.mark.soak
def test_a_dry_run_then_maintenance_then_further_runs(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    job = nights.job
    monkeypatch.setattr(maintain_run, "LEDGER_TABLES", ("batches", "claims"))  # all of them take a minute more
    with pytest.raises(RunError, match="nothing to maintain"):
        maintained(job)
    some_nights(nights)
    rows = nights.values("t")
    before = tree(job.folder / "tables")
    dry = maintained(job, MaintainRequest())
    assert tree(job.folder / "tables") == before, "a dry run writes nothing"
    assert by_name(dry, "public.t").steps == ("optimize", "checkpoint"), "VACUUM would remove nothing"
    assert by_name(dry, "public.t").before.may_compact
    assert by_name(dry, "public.t").after is None

    monkeypatch.setattr(maintain_run, "last_batch_before", lambda _batches, _cutoff: 3)
    done = maintained(job)
    target = by_name(done, "public.t")
    assert target.after is not None
    assert target.before == by_name(dry, "public.t").before
    assert (target.after.files, done.batch) == (1, 4)
    assert target.before.stored_files is not None
    assert target.after.stored_files == target.before.stored_files + 1, "recent files stay"
    assert [*job.path("public", "t").glob("_delta_log/*.checkpoint*.parquet")]
    assert by_name(done, "ledger: claims").rows > 0
    assert {row["batch"] for row in nights.ledger("claims")} == {2, 3, 4}
    assert by_name(done, "ledger: batches").steps == ("optimize", "checkpoint")
    assert nights.values("t") == rows
    assert not [row for row in history(job) if row["operation"].startswith("VACUUM")]

    week_ago = (datetime.now(timezone.utc) - timedelta(days=EXECUTE.keep_days, hours=1)).timestamp()
    for file in job.path("public", "t").rglob("*.parquet"):
        os.utime(file, (week_ago, week_ago))
    again = by_name(maintained(job), "public.t")
    assert (again.before.expired, again.steps[0]) == (target.before.files, "vacuum")
    assert again.after is not None
    assert again.after.stored_files == target.after.stored_files, "a version of the last week needs the old files"
    [vacuum] = [row for row in history(job) if row["operation"] == "VACUUM START"]
    assert vacuum["operationParameters"]["specifiedRetentionMillis"] == str(EXECUTE.keep_days * 24 * 3600 * 1000)

    # VACUUM never removes the version that the ledger records, not even after the retention
    unchecked = {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}
    with session_settings(job.spark, unchecked) as session:
        DeltaTable.forPath(session, str(job.path("public", "t"))).vacuum(0)
    now = tables_at(job.spark, ledger_root(job), "test")
    assert (now.lsn, now["public.t"].count()) == (0x300, 3)

    renamed = table(name="renamed")
    nights.night(transaction(9, 0x900, renamed, update("1", "later")))
    assert ("1", "later") in nights.values("renamed")
    assert len(nights.values("renamed")) == 3


@pytest.mark.soak
def test_small_tables_are_left_alone(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """And Spark doesn't look for other sources, which matter only where a table is compacted."""
    monkeypatch.setattr(DeltaUpkeep, "is_shared", None)
    some_nights(nights)
    nights.night(segment(50, insert("50", "s"), first=True))
    ledger = nights.ledger("batches")
    tables = nights.job.versions()
    done = maintained(nights.job)
    assert {table.steps for table in done.tables} == {()}
    assert all(table.after == table.before for table in done.tables)
    assert (done.batch, nights.job.versions()) == (0, tables)
    assert nights.ledger("batches") == ledger


def test_displaced_tables_are_removed_and_return_as_new_ones(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintain_run, "LEDGER_TABLES", ())
    job, only = nights.job, replace(EXECUTE, only=("displaced",))
    for oid in (1, 2):
        nights.night(transaction(oid, 0x100 * oid, table(oid=oid), insert(str(oid), "v", oid=oid)))
    folder = job.folder / "tables" / "_pgoutput_etl" / "displaced" / "test" / "1"
    assert {table.steps for table in maintained(job, only).tables} == {()}, "displaced just now"
    monkeypatch.setattr(maintain_run, "last_batch_before", lambda _batches, _end: 2)
    name = "public.t (displaced, OID 1)"
    dry = maintained(job, replace(only, execute=False))
    assert by_name(dry, name).steps == ("remove",)
    assert folder.exists()
    assert maintained(job, replace(only, tables=("public.t",))).batch == 3
    assert not folder.exists()
    last = DeltaLedger.of(job.spark, job.loaded()).batches.last()
    assert last is not None
    assert last.tables.keys() == {2}
    for lsn in (0x100, 0x200):
        [row] = pg.read_at(job.spark, job.loaded(), lsn=lsn)["public.t"].collect()
        assert row["id"] == str(lsn >> 8)
    summary = nights.night(transaction(9, 0x900, table(oid=1, name="t_old"), insert("9", "v", oid=1)))
    assert (nights.values("t_old"), nights.values("t")) == ([("9", "v")], [("2", "v")])
    assert summary.first_seen == {"public.t_old": 0x900}, "earlier rows, if any, are missing"


def at(minute: int) -> datetime:
    return datetime(2026, 1, 1, 0, minute, tzinfo=timezone.utc)


def sent_at(minute: int) -> int:
    return (at(minute) - datetime(2000, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)


def timed(number: int, *described: Relation) -> Messages:
    """A transaction that committed `number` minutes after midnight."""
    begin, *changes, commit = transaction(number, number * 0x100, *described, insert(str(number), f"v{number}"))
    assert isinstance(begin, Begin)
    assert isinstance(commit, Commit)
    begin, commit = (replace(message, commit_timestamp=sent_at(number)) for message in (begin, commit))
    return [begin, *changes, commit]


@pytest.mark.soak
def test_old_transactions_are_deleted_except_each_files_ends(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    job = nights.job
    nights.night(timed(1, table()), *(timed(n) for n in range(2, 7)), segment(50, insert("50", "s"), first=True))
    nights.night([StreamCommit(50, 0x680, 0x688, sent_at(6) + 1)], timed(7))
    nights.night(timed(8), timed(9))
    monkeypatch.setattr(maintain_run, "LEDGER_TABLES", ("transactions",))
    monkeypatch.setattr(maintain_run, "last_batch_before", lambda _batches, _cutoff: 3)
    only = MaintainRequest(only=("retention",), execute=True)
    assert by_name(maintained(job, replace(only, execute=False)), "ledger: transactions").rows == 4
    assert by_name(maintained(job, only), "ledger: transactions").rows == 4
    remaining = {(row["xid"], row["fate"]) for row in nights.ledger("transactions")}
    assert remaining == {*((xid, "committed") for xid in (1, 6, 50, 7, 8, 9)), (None, "trimmed")}
    assert by_name(maintained(job, only), "ledger: transactions").rows == 0

    last = DeltaLedger.at(job.spark, ledger_root(job), "test").batches.last()
    assert last is not None
    archive = DeltaArchive.of(job.spark, job.loaded(), DeltaLedger.at(job.spark, ledger_root(job), "test"), last)
    for minute in (1, 2, 4, 6, 7, 9):
        assert archive.first_commit(at(minute)) == minute * 0x100
        assert archive.last_commit(at(minute)) == minute * 0x100
    assert archive.first_commit(at(3) + timedelta(seconds=1)) == 0x400
    assert archive.last_commit(at(4) - timedelta(seconds=1)) == 0x300

    DeltaTable.forPath(job.spark, str(job.path("public", "t"))).delete("id in ('2', '3', '5')")
    request = BackfillRequest(("public.t",), from_time=at(3), to_time=at(5))
    assert job.backfill(request).exit_code == 0
    assert {key for key, _ in nights.values("t")} == {"1", "3", "4", "5", "6", "50", "7", "8", "9"}

    again = nights.night(timed(3), timed(4), timed(10))
    assert (again.exit_code, again.resent_transactions) == (0, 2), "deleted transactions count as resent"
    path = nights.land(transaction(11, 0x880, insert("11", "of another server")))
    with pytest.raises(SequenceError, match="is not one of them"):
        job.run()
    path.unlink()


@pytest.mark.soak
def test_a_table_changed_by_another_program_is_skipped(nights: Nights) -> None:
    some_nights(nights)
    DeltaTable.forPath(nights.job.spark, str(nights.job.path("public", "t"))).delete("id = '1'")
    version = nights.job.versions()["t"]
    done = maintained(nights.job)
    target = by_name(done, "public.t")
    assert (target.steps, done.batch) == ((), 0)
    assert target.after == target.before
    assert "another program has changed it since batch 3" in target.left[0]
    assert nights.job.versions()["t"] == version


@pytest.mark.soak
def test_during_a_run_only_append_only_tables_are_compacted(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    some_nights(nights)
    job = nights.job
    with DeltaLedger.at(job.spark, ledger_root(job), "test").batches.claims().held(4):
        version = job.versions()["t"]
        done = maintained(job)
        assert "Targets were skipped: another run is working on this source" in done.remarks[0]
        assert "optimize" in by_name(done, "ledger: batches").steps
        assert all(table.name.startswith("ledger: ") and not table.rows for table in done.tables)
        assert job.versions()["t"] == version

    def dies(*_: object) -> list[Any]:
        raise RuntimeError("killed")

    nights.land(transaction(9, 0x900, insert("9", "z")))
    with monkeypatch.context() as patched:
        patched.setattr(Writer, "write", dies)
        with pytest.raises(RuntimeError, match="killed"):
            job.run()
    died = maintained(job)
    assert "a run died within batch 4" in died.remarks[0]
    assert job.run().exit_code == 0
    assert ("9", "z") in nights.values("t")


@pytest.mark.soak
def test_the_next_maintenance_finishes_an_interrupted_one(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    some_nights(nights)

    def dies(*_: object, **__: object) -> None:
        raise RuntimeError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaLedger, "close_backfill", dies)
        with pytest.raises(RuntimeError, match="killed"):
            maintained(nights.job)
    done = maintained(nights.job)
    assert done.batch == 4
    points = {row["batch"]: row for row in nights.ledger("batches") if row["status"] == "done"}
    operations = {row["version"]: row["operation"] for row in history(nights.job)}
    assert operations[points[4]["tables"][0]["version"]] == "OPTIMIZE"
    assert points[4]["at"].astimezone(timezone.utc) <= datetime.now(timezone.utc)
    assert maintained(nights.job).batch == 0, "no version has changed since"


@pytest.mark.soak
def test_zorder_of_selected_tables(nights: Nights) -> None:
    some_nights(nights)
    with pytest.raises(ConfigError, match=r"the ledger has no table 'public\.none'"):
        maintained(nights.job, MaintainRequest(tables=("public.none",)))
    done = maintained(nights.job, MaintainRequest(tables=("public.t",), only=("optimize",), zorder=True, execute=True))
    assert by_name(done, "public.t").steps == ("optimize by key",)
    assert len(nights.values("t")) == 3


@pytest.mark.soak
def test_the_report_as_text_and_as_json(nights: Nights) -> None:
    some_nights(nights, 2)
    submit: list[str | Path] = [ROOT / "spark-submit.sh", "--master=local[1]", ROOT / "jobs/maintain.py"]
    dry = run(*submit, "--config", nights.job.config)
    assert dry.returncode == 0, dry.stderr
    assert "Dry run: nothing was changed; use --execute." in dry.stdout
    done = run(*submit, "--config", nights.job.config, "--zorder", "--execute", "--json", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert (summary["executed"], summary["batch"]) == (True, 3)
    refused = run(sys.executable, ROOT / "jobs/maintain.py", "--config", nights.job.config, "--keep-days", "1")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--keep-days: expected 7 or more" in refused.stderr
