"""Delta tables compared with their server, by COPY's CSV and as of the last batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.answers.verify.report import VerifiedTable
from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.answers.verify.run import verify
from pgoutput_etl.lsn import parse_lsn
from tests.servers.test_live import FIRST, SECOND, SETUP, TABLES
from tests.spark.jobs.test_apply_job import ROOT, run
from tests.support.jobs import Job
from tests.support.servers.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.e2e]
CHANGES = """
update account set owner = 'CHANGED', balance = balance + 1 where id in (3, 4);
delete from account where id = 5;
insert into account values (9999, 'NEW', 1, null, null, null);
"""


def compare_csv(job: Job, csv: Path, name: str, at_lsn: int | None = None) -> VerifiedTable:
    request = VerifyRequest(csv=str(csv), tables=(name,), at=at_lsn)
    [table] = verify(job.spark, job.loaded(), request, lambda _: None).tables
    assert table.why_not is None
    return table


@pytest.mark.soak
def test_delta_equals_the_servers_csv(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    job = Job(spark, tmp_path, landing)
    with Server(18) as server:
        server.psql(SETUP)
        server.create_slot("slot")
        server.psql(FIRST)
        server.recvlogical("slot", landing / "0.bin", publications=["p"])
        job.run()
        lsn = parse_lsn(server.current_lsn())
        copied = {}
        for number, name in enumerate(TABLES):
            copied[name] = tmp_path / f"{number}.csv"
            server.copy_csv(name, copied[name])
            table = compare_csv(job, copied[name], name)
            assert (table.differing, table.ranges_differing) == (0, 0), name
            assert table.rows == table.other_rows > 0
        server.psql(CHANGES)
        changed = tmp_path / "changed.csv"
        server.copy_csv("public.account", changed)
        table = compare_csv(job, changed, "public.account")
        assert (table.only_delta, table.only_other, table.differs) == (1, 1, 2)
        assert table.columns == {"owner": 2, "balance": 2}

        server.recvlogical("slot", landing / "1.bin", publications=["p"])
        job.run()
        assert compare_csv(job, changed, "public.account").differing == 0
        assert compare_csv(job, copied["public.account"], "public.account", lsn).differing == 0


@pytest.mark.soak
def test_a_server_that_nobody_writes_to(
    spark: SparkSession, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(spark, tmp_path, landing)
    monkeypatch.setenv("PGPASSWORD", "SECRET")
    monkeypatch.setenv("PGUSER", "postgres")
    submit: list[str | Path] = [ROOT / "spark-submit.sh", "--master=local[2]"]
    verifying: list[str | Path] = [ROOT / "jobs/verify.py", "--config", job.config, "--json"]
    with Server(16) as server:
        server.psql(SETUP)
        server.create_slot("slot", two_phase=True)
        for night, work in enumerate([FIRST, SECOND]):
            server.psql(work)
            server.recvlogical("slot", landing / f"{night}.bin", publications=["p"], proto_version=3)
            job.run()
        url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres"

        same = run(*submit, *verifying, "--jdbc", url)
        assert same.returncode == 0, same.stderr
        summary = json.loads(same.stdout)
        assert {f"{t['schema']}.{t['table']}" for t in summary["tables"]} == set(TABLES)
        assert all(t["ranges_differing"] == 0 for t in summary["tables"])
        assert summary["server_lsns"][0] <= summary["server_lsns"][1]

        server.psql(CHANGES.replace("id in (3, 4)", "id in (8, 9)").replace("id = 5", "id = 10"))
        other = run(*submit, *verifying, "--jdbc", url, "--tables", "public.acc*")
        assert other.returncode == 3, other.stderr
        [account] = json.loads(other.stdout)["tables"]
        assert (account["only_delta"], account["only_other"], account["differs"]) == (1, 1, 2)
        assert account["columns"] == {"owner": 2, "balance": 2}

        server.psql("create role reader login; grant select on account to reader")
        monkeypatch.setenv("PGUSER", "reader")
        some = run(*submit, *verifying, "--jdbc", url)
        assert some.returncode == 3, some.stderr
        refused = {t["table"]: t["why_not"] for t in json.loads(some.stdout)["tables"] if t["why_not"] is not None}
        assert refused == {
            name: f"--server: the server says: permission denied for table {name}"
            for name in {full_name.partition(".")[2] for full_name in TABLES} - {"account"}
        }
        for done in (same, other, some):
            assert "SECRET" not in done.stdout + done.stderr
            assert "CHANGED" not in done.stdout + done.stderr
