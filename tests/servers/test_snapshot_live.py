"""Snapshots of a server during writes, in every way that docs/snapshot.md describes."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.answers.verify.run import verify
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.postgres.catalog import QUERY
from pgoutput_etl.targets.plan import Since
from pgoutput_etl.work.erasure.report import ForgetSummary, ProofSummary
from pgoutput_etl.work.erasure.request import ForgetRequest
from pgoutput_etl.work.erasure.run import forget
from pgoutput_etl.work.files.report import RunSummary
from pgoutput_etl.work.snapshot.report import SnapshotSummary
from pgoutput_etl.work.snapshot.request import RowFormat, SnapshotRequest
from pgoutput_etl.work.snapshot.run import snapshot
from tests.spark.jobs.test_apply_job import ROOT, run
from tests.support.jobs import Job
from tests.support.servers.live_writers import SETUP, TABLES, psql_with_snapshot, writers
from tests.support.servers.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.e2e, pytest.mark.soak]
DOCS = ROOT / "docs/snapshot.md"


def assert_equal(job: Job, server: Server, names: Sequence[str] = TABLES) -> None:
    for name in names:
        path = job.folder / f"truth-{name}.csv"
        server.copy_csv(f"public.{name}", path)
        request = VerifyRequest(csv=str(path), tables=(f"public.{name}",))
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
    assert_one_row_of_each_is_erased(job, tmp_path)
    load(job, "untouched", **dump, slot_lsn=slot_lsn)


def assert_one_row_of_each_is_erased(job: Job, folder: Path) -> None:
    """From the tables, the archive, and all files that the snapshots were loaded from."""
    keys = {"orders": "id", "lines": "code", "untouched": "id"}
    files = {"orders": {"copy": folder / "orders.copy"}, "lines": {"csv": folder / "lines.csv"}, "untouched": {}}
    least = {name: str(min(row[key] for row in job.rows("public", name))) for name, key in keys.items()}
    lsns = {name: (folder / f"{name}.lsn").read_text().strip() for name in ("dump", "copy")}
    dumped = [{"table": f"public.{name}", "dump": str(folder / "dump"), "lsn": lsns["dump"]} for name in keys]
    copied = {table: {name: str(path) for name, path in own.items()} for table, own in files.items() if own}
    others = [{"table": f"public.{table}", **own, "lsn": lsns["copy"]} for table, own in copied.items()]
    tables = [{"table": f"public.{name}", "keys": [{key: least[name]}]} for name, key in keys.items()]
    request = {"requested_by": "x", "reference": "1", "tables": tables, "snapshots": [*dumped, *others]}
    (folder / "erasure.yaml").write_text(json.dumps(request))
    erased = forget(job.spark, job.loaded(), ForgetRequest(str(folder / "erasure.yaml"), execute=True))
    assert isinstance(erased, ForgetSummary)
    assert erased.snapshot_rows == len(dumped) + len(others)
    proof = forget(job.spark, job.loaded(), ForgetRequest(str(folder / "erasure.yaml"), prove=True))
    assert isinstance(proof, ProofSummary)
    assert [remnant.what for remnant in proof.remnants if not remnant.what.startswith("text ")] == []
    assert not any(table.differences for table in proof.tables)
    for name, key in keys.items():
        assert least[name] not in {str(row[key]) for row in job.rows("public", name)}


@pytest.mark.parametrize("version", [18, 16])
def test_a_server_while_others_write(
    version: Any, spark: SparkSession, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGUSER", "postgres")
    monkeypatch.setenv("PGPASSWORD", "SECRET")
    job = Job(spark, tmp_path, landing)
    job.write_config()
    submit: list[str | Path] = [ROOT / "spark-submit.sh", "--master=local[2]"]
    loading: list[str | Path] = [ROOT / "jobs/snapshot.py", "--config", job.config]
    with Server(version) as server:
        server.psql(SETUP)
        server.create_slot("slot")
        url = f"postgresql://127.0.0.1:{server.port}/postgres"
        with writers(server):
            land(job, server, 0)
            job.run()
            ahead = run(*submit, *loading, "--tables", "public.*", "--server", url)
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
            again = run(*submit, *loading, "--tables", "public.bag,public.lines", "--server", url, *named)
            assert again.returncode == 0, again.stderr
        land(job, server, 2)
        job.run()
        assert_equal(job, server)

        server.psql("create table later (id int primary key); insert into later values (1)")
        land(job, server, 3)
        summary = job.run()
        assert summary.first_seen == {}, "the last snapshot's server publishes all tables, and did not have this one"
        last = DeltaLedger.of(spark, job.loaded()).batches.last()
        assert last is not None
        kinds = {state.table: state.complete_since.kind for state in last.tables.values() if state.complete_since}
        assert kinds["later"] is Since.CREATION
        assert {kinds[name] for name in TABLES} == {Since.SNAPSHOT}


def test_the_snapshot_of_a_table_that_others_are_renamed_to(
    spark: SparkSession, tmp_path: Path, landing: Path, server: Server
) -> None:
    job = Job(spark, tmp_path, landing)
    load_and_swap = (
        "create table prices_new (like prices including all); insert into prices_new values (1, {0}), ({0}, 0);"
        "begin; drop table prices; alter table prices_new rename to prices; commit"
    )
    server.psql("create table prices (id int primary key, price int)")
    server.create_slot("slot")

    def night(number: int, script: str) -> RunSummary:
        server.psql(script)
        land(job, server, number)
        return job.run()

    codes = [night(0, "insert into prices values (1, 1)").exit_code]
    codes += [night(number, load_and_swap.format(number)).exit_code for number in (2, 3)]
    assert codes == [0, 0, 3]
    server.copy_csv("public.prices", tmp_path / "prices.csv")
    lsn = parse_lsn(server.current_lsn())
    (tmp_path / "catalog.json").write_text(server.psql(QUERY))
    load(job, "prices", lsn=lsn, files=str(tmp_path / "prices.csv"), catalog=str(tmp_path / "catalog.json"))
    written = night(4, "insert into prices values (9, 9)")
    assert (written.exit_code, written.swaps) == (0, {})
    assert_equal(job, server, ["prices"])
    assert night(5, load_and_swap.format(5)).exit_code == 0
    swapped = night(6, load_and_swap.format(6))
    assert (swapped.exit_code, [*swapped.swaps]) == (3, ["public.prices"])


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

    automatic = f"source={{name: test, landing: '{job.landing}', snapshot: auto, server: '%s'}}"
    submit = [str(ROOT / "spark-submit.sh"), "--master=local[2]", str(ROOT / "jobs/apply.py")]
    apply = [*submit, "--config", str(job.config), "--set"]
    failed = run(*apply, automatic % "postgresql://127.0.0.1:1/shop")
    assert failed.returncode == 3, failed.stderr
    assert "All tables but public.gone (incomplete), public.old (incomplete) are consistent" in failed.stdout
    assert "the snapshot failed, and the next run tries again: " in failed.stderr
    assert len(job.rows("public", "old")) == 2, "the archive was applied all the same"
    loaded = run(*apply, automatic.replace("server:", "jdbc:") % f"jdbc:postgresql://127.0.0.1:{server.port}/shop")
    assert loaded.returncode == 3, loaded.stderr
    assert "All tables but public.gone (incomplete), public.old (ahead) are consistent" in loaded.stdout
    assert_equal(job, server, ["old"])
    assert len(job.rows("public", "old")) == 10
    unreachable = automatic % "postgresql://127.0.0.1:1/shop"
    again = run(*apply, unreachable)
    assert ("loading a snapshot of 1 table\n" in again.stderr, again.returncode) == (True, 3), "for the dropped one"
    skipped = run(*apply, unreachable, "--set", "tables=[{match: public.gone, skip: true}]")
    assert ("loading a snapshot" in skipped.stderr, skipped.returncode) == (False, 0)


REPAIR_OVERTAKEN = """
import sys
from pathlib import Path
from unittest.mock import patch

from pgoutput_etl.work.files.pipeline import apply
from pgoutput_etl.work.snapshot import run
from pgoutput_etl.jobs.snapshot import COMMAND

late, landing = Path(sys.argv.pop(1)), Path(sys.argv.pop(1))
staged, looks = run.Staging.run, []

def overtaken(staging):
    found = staged(staging)
    looks.append(found)
    if len(looks) == 1:  # a night while the rows were compared
        late.rename(landing / late.name)
        apply(staging.spark, staging.archive.config, lambda _: None)
    return found

with patch.object(run.Staging, "run", overtaken):
    code = COMMAND.main()
sys.exit(code if len(looks) in (0, 2) else 9)
"""

KILLED_REPAIR = """
import os
import sys
from unittest.mock import patch

from pgoutput_etl.jobs.snapshot import COMMAND
from pgoutput_etl.ledger.ledger import DeltaLedger

with patch.object(DeltaLedger, "close_backfill", lambda *_: os._exit(137)):
    sys.exit(COMMAND.main())
"""


def test_a_repair_writes_only_what_differs(
    spark: SparkSession, tmp_path: Path, landing: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGUSER", "postgres")
    monkeypatch.setenv("PGPASSWORD", "SECRET")
    job, names = Job(spark, tmp_path, landing), ["orders", "lines", "wide"]
    job.write_config()
    server.psql("create table wide (id bigint primary key, v text, gone text)")
    server.psql("insert into wide select g, g, 'x' from generate_series(1, 120000) g")
    server.create_slot("slot")
    url = f"postgresql://127.0.0.1:{server.port}/shop"
    submit = [str(ROOT / "spark-submit.sh"), "--master=local[2]"]
    loading = ["--config", str(job.config), "--tables", "public.orders,public.lines,public.wide", "--server", url]
    loaded = run(*submit, ROOT / "jobs/snapshot.py", *loading)
    assert loaded.returncode == 0, loaded.stderr

    # Columns with a DEFAULT, which the archive lacks in older rows; and damage.
    server.psql("alter table orders add column state text default 'open'")
    server.psql("alter table wide drop column gone; update wide set v = 'x' where id in (7, 60001)")
    server.psql("insert into orders select g, 'new', 1, now() from generate_series(5001, 5003) g")
    server.psql("update lines set tags = '{}' where code = 'line 3'")
    land(job, server, 0)
    job.run()
    orders, wide, lines = (f"delta.`{job.path('public', name)}`" for name in ("orders", "wide", "lines"))
    spark.sql(f"DELETE FROM {orders} WHERE id = 17")
    spark.sql(f"UPDATE {wide} SET v = 'damaged' WHERE id IN (50000, 119999)")
    spark.sql(f"UPDATE {lines} SET code = 'never there' WHERE code = 'line 9'")
    job.run()  # nothing new
    before = job.versions()
    repair = ["--config", str(job.config), "--tables", "public.wide,public.lines", "--server", url, "--repair"]
    repaired = run(*submit, ROOT / "jobs/snapshot.py", *repair, "--json")
    assert repaired.returncode == 0, repaired.stderr
    effects = {t["table"]["table"]: t["table"] for t in json.loads(repaired.stdout)["tables"]}
    assert {name: tuple(t[effect] for effect in ("inserted", "updated", "deleted")) for name, t in effects.items()} == {
        "wide": (0, 2, 0),
        "lines": (1, 0, 1),
    }
    assert job.versions() == {**before, "wide": before["wide"] + 1, "lines": before["lines"] + 1}
    assert_equal(job, server, ["lines", "wide"])

    # A night runs while the tables are compared; and the archive goes on.
    server.psql("update orders set v = 'then' where id = 5; delete from orders where id = 6")
    land(job, server, 1)
    late = tmp_path / "1.bin"
    (landing / "1.bin").rename(late)
    script = tmp_path / "overtaken.py"
    script.write_text(REPAIR_OVERTAKEN)
    repair = ["--config", str(job.config), "--tables", "public.*s,public.wide", "--server", url, "--repair"]
    overtaken = run(*submit, script, late, landing, *repair)
    assert overtaken.returncode == 0, overtaken.stderr
    assert "no difference" in overtaken.stdout
    assert_equal(job, server, names)
    server.psql("update orders set v = 'later', state = null where id < 9; insert into wide values (-1, 'low')")
    land(job, server, 2)
    assert job.run().exit_code == 0
    assert_equal(job, server, names)

    # A run that died after it wrote the tables is finished by the next one.
    spark.sql(f"DELETE FROM {orders} WHERE id < 100")
    script.write_text(KILLED_REPAIR)
    killed = run(*submit, script, *repair)
    assert killed.returncode == 137, killed.stderr
    server.psql("update orders set v = 'last' where id = 50")
    land(job, server, 3)
    assert job.run().exit_code == 0
    assert_equal(job, server, names)

    bag = ["--config", str(job.config), "--tables", "public.*", "--server", url, "--repair"]
    spark.sql(f"DELETE FROM {orders} WHERE id = 60")
    others = run(*submit, ROOT / "jobs/snapshot.py", *bag)
    assert others.returncode == 3, others.stderr
    assert "Not changed: public.bag: --repair: not possible: no run has written the table" in others.stdout
    assert_equal(job, server, names)
