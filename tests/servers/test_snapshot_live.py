"""Snapshots of a server during writes, in every way that docs/snapshot.md describes."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.jobs.snapshot.report import SnapshotSummary
from pgoutput_etl.jobs.snapshot.request import RowFormat, SnapshotRequest
from pgoutput_etl.jobs.snapshot.run import snapshot
from pgoutput_etl.jobs.verify.request import VerifyRequest
from pgoutput_etl.jobs.verify.run import verify
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.targets.plan import Since
from tests.spark.jobs.test_apply_job import ROOT, run
from tests.support.jobs import Job
from tests.support.servers.live_writers import SETUP, TABLES, psql_with_snapshot, writers
from tests.support.servers.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.soak]
DRIVER = "org.postgresql:postgresql:42.7.7"
DOCS = ROOT / "docs/snapshot.md"


def assert_equal(job: Job, server: Server, names: Sequence[str] = TABLES) -> None:
    for name in names:
        path = job.folder / f"truth-{name}.csv"
        server.copy_csv(f"public.{name}", path)
        request = VerifyRequest(csv=str(path), table=f"public.{name}")
        [verified] = verify(job.spark, job.loaded(), request, lambda _: None).tables
        assert verified.why_not is None
        assert (verified.differing, verified.ranges_differing) == (0, 0), name
        assert verified.rows == verified.other_rows > 0


def docs_block(name: str) -> str:
    """A block of docs/snapshot.md without its jobs, which run in this process."""
    match = re.search(rf"<!-- tested: {name} -->\n```sh\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert match is not None
    return "\n".join(line for line in match[1].splitlines() if not line.startswith("./spark-submit.sh"))


def run_script(script: str, server: Server, folder: Path) -> None:
    """Runs a shell script with the server's programs and connection."""
    programs = f"{server.programs}:{Path(ROOT / 'jobs').parent}:{os.environ['PATH']}"
    reached = {"PGHOST": str(server.folder), "PGPORT": str(server.port), "PGUSER": "postgres"}
    script = script.replace("jobs/snapshot.py", str(ROOT / "jobs/snapshot.py"))
    environment = {**os.environ, **reached, "PATH": programs, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stderr, done.stderr


def load(job: Job, *tables: str, **options: Any) -> SnapshotSummary:
    request = SnapshotRequest(tuple(f"public.{name}" for name in tables), **options)
    done = snapshot(job.spark, job.loaded(), request, lambda _: None)
    assert done.exit_code == 0, done.tables
    return done


def land(job: Job, server: Server, number: int) -> None:
    server.recvlogical("slot", job.landing / f"{number}.bin", publications=["p"], proto_version=2, streaming="on")


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(18) as running:
        running.psql("create database shop")
        running.database = "shop"
        running.psql(SETUP)
        yield running


def test_files_taken_while_others_write(spark: SparkSession, tmp_path: Path, landing: Path, server: Server) -> None:
    job = Job(spark, tmp_path, landing)
    with writers(server):
        server.create_slot("slot")
        slot_lsn = parse_lsn(server.psql("select confirmed_flush_lsn from pg_replication_slots").strip())
        run_script(docs_block("catalog"), server, tmp_path)
        run_script(docs_block("dump"), server, tmp_path)
        land(job, server, 0)
        run_script(docs_block("copy"), server, tmp_path)
    dumped, copied = (parse_lsn((tmp_path / f"{name}.lsn").read_text().strip()) for name in ("dump", "copy"))
    catalog = str(tmp_path / "catalog.json")

    # Before anything of the archive is applied; then ahead of it; then after it.
    dump: dict[str, Any] = {"lsn": dumped, "files": str(tmp_path / "dump"), "format": RowFormat.DUMP}
    load(job, *TABLES, **dump, slot_lsn=slot_lsn, catalog=catalog)
    job.run()
    ahead = load(job, "orders", lsn=copied, files=str(tmp_path / "orders.copy"), format=RowFormat.BINARY)
    assert ahead.waits
    land(job, server, 1)
    job.run()
    assert_equal(job, server)
    after = load(job, "lines", lsn=copied, files=str(tmp_path / "lines.csv"))
    assert not after.waits
    assert_equal(job, server)
    load(job, *TABLES, **dump, slot_lsn=slot_lsn)
    assert_equal(job, server)


@pytest.mark.parametrize("version", [18, 16])
def test_a_server_by_jdbc_while_others_write(
    version: Any, spark: SparkSession, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGUSER", "postgres")
    monkeypatch.setenv("PGPASSWORD", "SECRET")
    job = Job(spark, tmp_path, landing)
    job.write_config()
    submit: list[str | Path] = [ROOT / "spark-submit.sh", "--master=local[2]", "--packages", DRIVER]
    loading: list[str | Path] = [ROOT / "jobs/snapshot.py", "--config", job.config]
    with Server(version) as server:
        server.psql(SETUP)
        server.create_slot("slot")
        url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres"
        with writers(server):
            land(job, server, 0)
            job.run()
            ahead = run(*submit, *loading, "--tables", "public.*", "--jdbc", url)
            assert ahead.returncode == 0, ahead.stderr
            assert "The archive ends before it" in ahead.stdout
        land(job, server, 1)
        job.run()
        assert_equal(job, server)
        with server.connect() as connection:
            slots = connection.execute("select slot_name from pg_replication_slots").fetchall()
        assert slots == [("slot",)]
        assert "SECRET" not in ahead.stdout + ahead.stderr

        with psql_with_snapshot(server) as (name, lsn), writers(server):
            named = ("--snapshot", name, "--lsn", lsn, "--connections", "3")
            again = run(*submit, *loading, "--tables", "public.bag,public.lines", "--jdbc", url, *named)
            assert again.returncode == 0, again.stderr
        land(job, server, 2)
        job.run()
        assert_equal(job, server)

        server.psql("create table later (id int primary key); insert into later values (1)")
        land(job, server, 3)
        summary = job.run()
        assert summary.first_seen == {}, "the last snapshot's server publishes all tables, and did not have this one"
        last = DeltaLedger.of(spark, job.loaded()).last_batch()
        assert last is not None
        kinds = {state.table: state.complete_since.kind for state in last.tables.values() if state.complete_since}
        assert kinds["later"] is Since.CREATION
        assert {kinds[name] for name in TABLES} == {Since.SNAPSHOT}


def test_a_run_loads_what_appeared_without_its_earlier_rows(
    spark: SparkSession, tmp_path: Path, landing: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGUSER", "postgres")
    monkeypatch.setenv("PGPASSWORD", "SECRET")
    job = Job(spark, tmp_path, landing)
    job.write_config()
    server.psql(
        "create table old (id int primary key, v text); insert into old select g, g from generate_series(1, 9) g"
    )
    server.psql("create table gone (id int primary key)")
    server.create_slot("slot")
    server.psql("insert into old values (10, 'x'); insert into gone values (1)")
    land(job, server, 0)
    assert job.run().first_seen.keys() == {"public.old", "public.gone"}
    assert len(job.rows("public", "old")) == 1
    server.psql("drop table gone; update old set v = 'y' where id = 3")
    land(job, server, 1)

    automatic = f"source={{name: test, landing: '{job.landing}', snapshot: auto, jdbc: '%s'}}"
    submit = [str(ROOT / "spark-submit.sh"), "--master=local[2]", "--packages", DRIVER, str(ROOT / "jobs/apply.py")]
    apply = [*submit, "--config", str(job.config), "--set"]
    failed = run(*apply, automatic % "jdbc:postgresql://127.0.0.1:1/shop")
    assert failed.returncode == 0, failed.stderr
    assert "the snapshot failed, and the next run tries again: " in failed.stderr
    assert len(job.rows("public", "old")) == 2, "the archive was applied all the same"
    loaded = run(*apply, automatic % f"jdbc:postgresql://127.0.0.1:{server.port}/shop")
    assert loaded.returncode == 0, loaded.stderr
    assert_equal(job, server, ["old"])
    assert len(job.rows("public", "old")) == 10
    again = run(*apply, automatic % "jdbc:postgresql://127.0.0.1:1/shop")
    assert ("loading a snapshot of 1 table\n" in again.stderr, again.returncode) == (True, 0), "for the dropped one"
