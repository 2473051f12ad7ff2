"""Snapshots of a server that is written to all the while, by every way that docs/snapshot.md tells."""

from __future__ import annotations

import os
import random
import re
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.snapshot_report import SnapshotSummary
from pgoutput_etl.snapshot_request import RowFormat, SnapshotRequest
from pgoutput_etl.snapshotting import snapshot
from pgoutput_etl.verify_request import VerifyRequest
from pgoutput_etl.verifying import verify
from tests.postgres import Server
from tests.spark.jobs import Job
from tests.spark.test_apply_job import ROOT, run

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.soak]
DRIVER = "org.postgresql:postgresql:42.7.7"
DOCS = ROOT / "docs/snapshot.md"
TABLES = ("orders", "lines", "bag", "untouched")
SETUP = """
create table orders (id int primary key, v text, n numeric(20,4), at timestamptz);
create table lines (code text primary key, doc text, tags text[]);
alter table lines alter doc set storage external;
create table bag (k int, v text);
alter table bag replica identity full;
create type mood as enum ('sad', 'happy');
create table untouched (id uuid primary key default gen_random_uuid(), m mood, d date[]);
create publication p for all tables;
insert into orders select i, 'before ' || i, i * 1.5, now() from generate_series(1, 3000) i;
insert into lines select 'line ' || i, repeat(md5(i::text), 100), array['a', null] from generate_series(1, 2000) i;
insert into bag select i % 50, 'x' from generate_series(1, 2000) i;
insert into untouched (m, d) select 'happy', array[date '2024-01-01' + i] from generate_series(1, 500) i;
"""


def some_work(chance: random.Random) -> str:
    """One transaction."""
    key, other = chance.randint(1, 4000), chance.randint(1, 3000)
    return chance.choice(
        [
            f"insert into orders values ({key}, 'new', 1, now()) on conflict (id) do update set v = orders.v || '.'",
            f"delete from orders where id = {key}",
            f"update orders set id = id + 10000 where id = {key}",
            f"update lines set tags = tags || 'more' where code = 'line {other}'",
            f"update lines set doc = doc || 'x', code = code || '-' where code = 'line {other}'",
            f"insert into bag values ({key % 50}, 'x')",
            f"delete from bag where ctid = (select ctid from bag where k = {key % 50} limit 1)",
            f"update bag set v = 'y' where ctid = (select ctid from bag where k = {other % 50} limit 1)",
        ]
    )


@contextmanager
def writers(server: Server, count: int = 6) -> Iterator[None]:
    """Connections that write until the end of the context, some of them with long transactions."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def write(seed: int) -> None:
        chance = random.Random(seed)
        try:
            with server.connect() as connection:
                while not stop.is_set():
                    _write(connection, chance, stop, seed)
        except BaseException as error:  # noqa: BLE001 - raised where the test sees it
            errors.append(error)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors, errors


def _write(connection: psycopg.Connection[Any], chance: random.Random, stop: threading.Event, seed: int) -> None:
    try:
        with connection.transaction(force_rollback=chance.random() < 0.05):
            for _ in range(chance.choice([1, 1, 2, 30 if seed % 3 == 0 else 3])):
                connection.execute(some_work(chance).encode())
            stop.wait(chance.random() * (0.5 if seed % 3 == 0 else 0.02))
    except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
        pass


def assert_equal(job: Job, server: Server, names: Sequence[str] = TABLES) -> None:
    for name in names:
        path = job.folder / f"truth-{name}.csv"
        server.copy_csv(f"public.{name}", path)
        request = VerifyRequest(csv=str(path), table=f"public.{name}")
        [found] = verify(job.spark, job.loaded(), request, lambda _: None).tables
        assert found.why_not is None
        assert (found.differing, found.ranges_differing) == (0, 0), name
        assert found.rows == found.other_rows > 0


def written_in_the_docs(which: str) -> str:
    """A block of docs/snapshot.md, without the jobs in it: these run in this process."""
    found = re.search(rf"<!-- tested: {which} -->\n```sh\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert found is not None
    return "\n".join(line for line in found[1].splitlines() if not line.startswith("./spark-submit.sh"))


def typed(script: str, server: Server, folder: Path) -> None:
    """As somebody types it, with the server's programs at hand, whose database is called shop."""
    programs = f"{server.programs}:{Path(ROOT / 'jobs').parent}:{os.environ['PATH']}"
    reached = {"PGHOST": str(server.folder), "PGPORT": str(server.port), "PGUSER": "postgres"}
    script = script.replace("jobs/snapshot.py", str(ROOT / "jobs/snapshot.py"))
    environment = {**os.environ, **reached, "PATH": programs, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-e", "-c", script], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ERROR" not in done.stderr, done.stderr


def load(job: Job, *tables: str, **asked: Any) -> SnapshotSummary:
    request = SnapshotRequest(tuple(f"public.{name}" for name in tables), **asked)
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
        typed(written_in_the_docs("catalog"), server, tmp_path)
        typed(written_in_the_docs("dump"), server, tmp_path)
        land(job, server, 0)
        typed(written_in_the_docs("copy"), server, tmp_path)
    dumped, copied = (parse_lsn((tmp_path / f"{name}.lsn").read_text().strip()) for name in ("dump", "copy"))
    catalog = str(tmp_path / "catalog.json")

    # Before anything of the archive is applied; then ahead of it; then behind it.
    load(job, *TABLES, lsn=dumped, files=str(tmp_path / "dump"), format=RowFormat.DUMP, catalog=catalog)
    job.run()
    ahead = load(job, "orders", lsn=copied, files=str(tmp_path / "orders.copy"), format=RowFormat.BINARY)
    assert ahead.waits
    land(job, server, 1)
    job.run()
    assert_equal(job, server)
    behind = load(job, "lines", lsn=copied, files=str(tmp_path / "lines.csv"))
    assert not behind.waits
    assert_equal(job, server)
    load(job, *TABLES, lsn=dumped, files=str(tmp_path / "dump"), format=RowFormat.DUMP)
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
            assert "the archive hasn't come so far" in ahead.stdout
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


@contextmanager
def psql_with_snapshot(server: Server) -> Iterator[tuple[str, str]]:
    """A session that holds an exported snapshot: its name, and its LSN."""
    command = [str(server.programs / "psql"), f"{server.conninfo} replication=database", "-XAt"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdin is not None
        assert session.stdout is not None
        session.stdin.write("CREATE_REPLICATION_SLOT mine TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT;\n")
        session.stdin.flush()
        _, lsn, name, _ = session.stdout.readline().strip().split("|")
        yield name, lsn
