"""The nightly job with a Spark of several processes: the tables are the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import pgoutput_etl as pg
from tests.support.captures import CAPTURES, files_of, truth_tables
from tests.support.jobs import Job
from tests.support.servers.postgres import Server
from tests.support.spark_servers import (
    LIGHT,
    SMALL_APPLICATION,
    conf_options,
    connect_server,
    environment,
    standalone_cluster,
)
from tools import pack

ROOT = Path(__file__).parents[3]
SLOT, TRUTH = CAPTURES / "random16" / "v4b", CAPTURES / "random16" / "truth"
APPLY = (sys.executable, "-m", "jobs.apply")

pytestmark = pytest.mark.spark


def _run(job: Job, *command: str | Path, **variables: str) -> dict[str, Any]:
    """Runs a job; returns its summary."""
    done = _try(*command, "--config", job.config, "--json", "--quiet", **variables)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def _try(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, env=environment(**variables), capture_output=True, text=True, check=False)


def _land(files: Sequence[Path], landing: Path) -> None:
    for file in files:
        shutil.copy(file, landing)


def _configured(job: Job, **settings: str) -> Job:
    job.write_config()
    with job.config.open("a") as config:
        config.write(f"spark: {json.dumps({**LIGHT, **settings})}\n")
    return job


def _submit(job: Job, master: str, **more: str) -> dict[str, Any]:
    arguments = conf_options({**SMALL_APPLICATION, "spark.pyspark.python": sys.executable, **more})
    return _run(job, ROOT / "spark-submit.sh", "--master", master, *arguments, "jobs/apply.py")


def _submit_two_nights(job: Job, master: str, **more: str) -> None:
    """In one night, a Commit Prepared of an empty transaction would leave open whether a file before the first is
    missing: exit code 3."""
    files = files_of(SLOT)
    for night in (files[:5], files[5:]):
        _land(night, job.landing)
        assert _submit(job, master, **more)["files"] == 5


def _server_settings(master: str) -> dict[str, str]:
    return {"spark.master": master, **SMALL_APPLICATION}


def _assert_all_worked(folder: Path, applications: int) -> None:
    for worker in ("worker0", "worker1"):
        executors = [path.parent for path in (folder / worker).glob("app-*/*/stderr")]
        assert len(executors) == applications, "an executor on each worker"
        for executor in executors:
            assert "Finished task" in (executor / "stderr").read_text()
            assert list(executor.rglob("pgoutput_etl.zip")), "the job brought the code"


REFUSED = "Spark Connect"  # in the error of a job that needs a Spark of its own


@pytest.mark.soak
@pytest.mark.e2e
def test_every_job_runs_through_a_connect_server_or_is_refused(
    spark: SparkSession, tmp_path: Path, landing: Path
) -> None:
    job, tried, started = Job(spark, tmp_path, landing), set[str](), tmp_path / "started"
    job.write_config()
    started.mkdir()
    with Server(18) as server, connect_server(tmp_path, {"spark.master": "local[2]", **SMALL_APPLICATION}) as url:
        server.psql(
            "create table t (id int primary key, v text); insert into t select i, 'x' from generate_series(1, 9) i"
        )
        server.psql("create table bag (v text); insert into bag values (null), (null)")
        server.psql("create publication etl for all tables")
        server.create_slot("etl")
        address = f"postgresql://postgres@127.0.0.1:{server.port}/postgres"
        variables = {"SPARK_REMOTE": url, "PATH": f"{server.programs}:{os.environ['PATH']}"}

        def run(name: str, *options: str | Path, needs: Sequence[str | Path] = ("--config", job.config)) -> str:
            tried.add(name)
            done = _try(sys.executable, "-m", f"jobs.{name}", *needs, *options, "--debug", **variables)
            assert done.returncode == 0, (name, done.stderr)
            return done.stdout

        def files() -> dict[Path, int]:
            made = (path for path in tmp_path.rglob("*") if path.is_file() and path.name != "connect.log")
            return {path: path.stat().st_mtime_ns for path in made}

        def refuse(name: str, *options: str | Path) -> None:
            tried.add(name)
            before = files()
            done = _try(sys.executable, "-m", f"jobs.{name}", "--config", job.config, *options, **variables)
            assert (done.returncode in (1, 2), REFUSED in done.stderr) == (True, True), (name, done.stderr)
            assert files() == before

        summary = json.loads(run("snapshot", "--tables", "public.*", "--server", address, "--json"))
        assert {table["table"]["table"]: table["loaded"] for table in summary["tables"]} == {"t": 9, "bag": 2}
        assert [row["v"] for row in job.rows("public", "bag")] == [None, None]
        server.psql("update t set v = 'y' where id = 1; insert into bag values ('z')")
        server.recvlogical("etl", landing / "0.bin", publications=["etl"])
        assert "public.t" in run("plan")
        run("apply")
        assert {row["v"] for row in job.rows("public", "t") if row["id"] == 1} == {"y"}
        run("status")
        run("backfill", "--tables", "public.t", "--out", str(tmp_path / "again"))
        server.copy_csv("public.t", tmp_path / "t.csv")
        run("verify", "--csv", str(tmp_path / "t.csv"), "--tables", "public.t")
        spark.sql(f"DELETE FROM delta.`{job.path('public', 't')}` WHERE id = 9")
        run("snapshot", "--tables", "public.t", "--server", address, "--repair")
        assert len(job.rows("public", "t")) == 9
        run("maintain", "--execute")
        assert "|  9|" in run("show", job.path("public", "t"), needs=())
        assert "public.bag" in run("inspect", "--spark", landing, needs=())
        run("init", landing, needs=())
        run("validate")
        run("demo", "--out", tmp_path / "demo", needs=())
        erasure = {"requested_by": "x", "reference": "1", "tables": [{"table": "public.t", "keys": [{"id": 1}]}]}
        (tmp_path / "erasure.yaml").write_text(json.dumps(erasure))
        refuse("forget", "--request", tmp_path / "erasure.yaml", "--execute")
        refuse("export", "--tables", "public.t", "--out", tmp_path / "exported")
        refuse("undo", "--from-lsn", "0/1", "--to-lsn", "F/0", "--out", tmp_path / "undone")
        refuse("verify", "--server", address)
        received = server.start_recvlogical("etl", started / "0.bin", "--status-interval=1", publications=["etl"])
        try:
            new = ("--config", tmp_path / "start.yaml", "--landing", started, "--accept-keyless")
            done = _try(sys.executable, "-m", "jobs.start", "--server", address, *new, **variables)
            assert (done.returncode, "target.root: expected an absolute path" in done.stderr) == (2, True), done.stderr
            new[1].write_text(new[1].read_text().replace("./warehouse", str(tmp_path / "warehouse")))
            run("start", "--server", address, needs=new)
        finally:
            received.terminate()
            received.wait(timeout=60)
    assert tried == {path.stem for path in (ROOT / "jobs").glob("*.py")}
    loaded = spark.read.format("delta").load(str(tmp_path / "warehouse" / "public" / "t"))
    assert loaded.count() == 9


@pytest.mark.soak
def test_two_nights_through_a_connect_server_of_a_cluster(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    files = files_of(SLOT)
    job = Job(spark, tmp_path, landing)
    with (
        standalone_cluster(tmp_path, workers=2) as cluster,
        connect_server(tmp_path, _server_settings(cluster.url)) as url,
    ):
        _configured(job, **{"spark.remote": url, "spark.master": "local[2]"})
        with job.config.open("a") as config:
            config.write("tables: [{match: 'public.[!ae]*', skip: true}]\n")
        for night in (files[:5], files[5:]):
            _land(night, landing)
            done = _try(*APPLY, "--config", job.config, "--json", "--quiet")
            assert done.returncode == 0, done.stderr
            assert json.loads(done.stdout)["files"] == 5
            assert done.stderr == "the Spark Connect server has its own settings for spark.master: not set\n"

    job.assert_equals([table for table in truth_tables(TRUTH) if table.name in ("acct", "ev")], "random16")
    _assert_all_worked(tmp_path, applications=1)


@pytest.mark.soak
def test_a_standalone_cluster(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    job = _configured(Job(spark, tmp_path, landing))
    with standalone_cluster(tmp_path, workers=2) as cluster:
        _submit_two_nights(job, cluster.url)

    job.assert_equals(truth_tables(TRUTH), "random16")
    _assert_all_worked(tmp_path, applications=2)


@pytest.mark.soak
def test_a_night_on_a_cluster_and_one_through_a_connect_server_of_it(
    spark: SparkSession, tmp_path: Path, landing: Path
) -> None:
    files = files_of(SLOT)
    job = _configured(Job(spark, tmp_path, landing))
    with standalone_cluster(tmp_path, workers=2) as cluster:
        _land(files[:5], landing)
        first = _submit(job, cluster.url)
        _land(files[5:], landing)
        with connect_server(tmp_path, _server_settings(cluster.url)) as url:
            second = _run(job, *APPLY, SPARK_REMOTE=url)
            lsn = _commit_within(job, 2)
            through_the_server = _try(sys.executable, "-c", MOMENT, job.config, str(lsn), SPARK_REMOTE=url)

    assert (first["files"], second["files"]) == (5, 5)
    assert through_the_server.returncode == 0, through_the_server.stderr
    here = _moment(spark, job.loaded(), lsn)
    assert json.loads(through_the_server.stdout.splitlines()[-1]) == here
    job.assert_equals(truth_tables(TRUTH), "random16")
    _assert_all_worked(tmp_path, applications=2)


MOMENT = """
import json, sys
import pgoutput_etl as pg
from pgoutput_etl.ingest.listing import heap_of
from tests.spark.long.test_past_one_machine import _moment
spark = pg.start_session("moment", {})
assert heap_of(spark) == 700 << 20, "the server's setting of spark.executor.memory"
name = "${system:java.version}"
assert spark.sql(f"SELECT 1 AS `{name}`").columns == [name], "the server's session replaces variables"
spark.conf.set("spark.sql.variable.substitute", "true")
print(json.dumps(_moment(spark, pg.load_config(sys.argv[1]), int(sys.argv[2]))))
assert spark.sql(f"SELECT 1 AS `{name}`").columns == [name], "a session that the caller changed does, too"
"""


def _moment(spark: SparkSession, config: pg.Config, lsn: int) -> list[int]:
    """Rows of a table as of a commit, a digest of them, and the commit that brought half of these rows."""
    rows = pg.read_at(spark, config, lsn=lsn, tables=["public.acct"])["public.acct"]
    [row] = rows.selectExpr("count(*) AS rows", "sum(hash(to_json(struct(*)))) AS digest").collect()
    query = f"select 1 from (select count(*) as n from public.acct) where n >= {row['rows'] // 2}"
    return [row["rows"], row["digest"], pg.bisect(spark, config, query, last=lsn).lsn]


def _commit_within(job: Job, batch: int) -> int:
    """The commit in the middle of a batch."""
    transactions = job.spark.read.format("delta").load(str(job.folder / "tables" / "_pgoutput_etl" / "transactions"))
    commits = transactions.where(f"batch = {batch} and fate = 'committed'").select("commit_lsn").distinct()
    found = sorted(row["commit_lsn"] for row in commits.collect())
    return int(found[len(found) // 2])


@pytest.mark.soak
def test_workers_with_only_a_python(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    job = _configured(Job(spark, tmp_path, landing))
    archive = tmp_path / "etl.tar.gz"
    pack.pack(archive)
    sent = {
        "spark.archives": f"{archive}#etl",
        "spark.pyspark.python": "./etl/bin/python",
        "spark.pyspark.driver.python": sys.executable,
        "spark.executorEnv.PGOUTPUT_ETL_PYTHON": getattr(sys, "_base_executable", sys.executable),
    }
    with standalone_cluster(tmp_path, workers=2) as cluster:
        _submit_two_nights(job, cluster.url, **sent)

    job.assert_equals(truth_tables(TRUTH), "random16")
    _assert_all_worked(tmp_path, applications=2)


def test_a_missing_connect_server(tmp_path: Path, landing: Path) -> None:
    job = Job(None, tmp_path, landing)  # type: ignore[arg-type]  # nothing is read
    job.write_config()

    done = _try(*APPLY, "--config", job.config, SPARK_REMOTE="localhost:15002")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "PGO-1000: ConfigError: spark.remote: expected sc://HOST:PORT\n"
