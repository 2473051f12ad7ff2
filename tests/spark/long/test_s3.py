"""The jobs with landing and tables on S3, through s3a, on an S3 server, alone and concurrently."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.answers.status.request import StatusRequest
from pgoutput_etl.answers.status.run import status
from tests.support.captures import CAPTURES, files_of, truth_tables
from tests.support.s3_lake import BUCKET, CLAIMS, KEY, LANDING, SECRET, TABLES, Lake, lake
from tests.support.small_archives import copydata, insert, table, transaction, update

pytestmark = pytest.mark.spark

SLOT = CAPTURES / "pg16" / "v4_twophase_parallel_binary"
TRUTH, TRUTH_MID = truth_tables(CAPTURES / "pg16" / "truth"), truth_tables(CAPTURES / "pg16" / "truth_mid")
FIRST, SECOND = files_of(SLOT)
NIGHT = transaction(1, 0x100, table(), insert("1", "a"), insert("2", "b"))
APPEND = """
import sys
from pgoutput_etl.spark.session import start_session
spark = start_session("append", {})
spark.range(1).write.format("delta").mode("append").save(sys.argv[1])
"""


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[Lake]:
    with lake(tmp_path) as s3_lake:
        yield s3_lake


def values(s3: Lake, name: str = "t", below: str = TABLES) -> list[tuple[str, str]]:
    return sorted((row["id"], row["v"]) for row in s3.rows(f"{below}/public/{name}"))


@pytest.mark.soak
def test_a_night_on_s3_leaves_no_secrets(s3: Lake) -> None:
    s3.put(f"{LANDING}/0.copydata", copydata(NIGHT))
    summary = s3.apply()
    assert (summary["files"], summary["lsn"], summary["exit_code"]) == (1, "0/100", 0)
    assert values(s3) == [("1", "a"), ("2", "b")]
    [table] = summary["tables"]
    assert table["path"] == f"s3a://{BUCKET}/{TABLES}/public/t"
    [claim] = s3.objects(CLAIMS)
    assert claim == f"{CLAIMS}/shop/1.1.json"
    report = status(s3.config(), StatusRequest())
    assert (report.batch, report.lsn, report.tables, report.exit_code) == (1, "0/100", 1, 0)
    assert report.waiting.files == 0, "paths and times are those that Spark lists"
    for output in s3.outputs:
        assert KEY not in output
        assert SECRET not in output
        assert " WARN " not in output, "no warnings without a remedy"


@pytest.mark.soak
def test_a_row_is_erased_from_objects(s3: Lake, tmp_path: Path) -> None:
    rows = transaction(1, 0x100, table(), insert("1", "Ada-Lovelace"), insert("2", "b"))
    s3.put(f"{LANDING}/0.copydata", copydata(rows))
    s3.apply()
    request = tmp_path / "erasure.yaml"
    request.write_text(
        "requested_by: x\nreference: R\ntables: [{table: public.t, keys: [{id: 1}], where: {v: Ada-Lovelace}}]\n"
    )
    done = s3.job("forget", "--request", str(request), "--execute")
    assert done.status == 0, done.errors[-3000:]
    everything = [*s3.objects(LANDING), *s3.objects()]
    assert [key for key in everything if b"Ada-Lovelace" in s3.content(key)] == []
    assert values(s3) == [("2", "b")]
    assert s3.apply()["files"] == 0
    s3.keep_versions()
    proof = s3.job("forget", "--request", str(request), "--prove")
    assert proof.status == 3, proof.errors[-3000:]
    assert proof.json()["remnants"] == []
    assert all("former versions of objects" in text for text in proof.json()["left"])
    assert len(proof.json()["left"]) == 2


@pytest.mark.soak
def test_two_nights_and_the_jobs_around_them(s3: Lake, spark: SparkSession, tmp_path: Path) -> None:
    s3.land(FIRST)
    plan = s3.job("plan")
    assert plan.status == 0, plan.errors[-3000:]
    assert s3.objects() == {}, "a plan writes nothing"
    first = s3.apply()
    assert {t["table"] for t in plan.json()["tables"]} == {t["table"] for t in first["tables"]}
    s3.assert_equals(spark, tmp_path, TRUTH_MID)

    s3.land(SECOND)
    second = s3.apply()
    assert (second["batch"], second["files"]) == (2, 1)
    assert sum(second["accounts"].values()) == second["content_bytes"]
    s3.assert_equals(spark, tmp_path, TRUTH)

    before = s3.objects()
    requests = s3.served().requests
    nothing = s3.apply()
    assert nothing["files"] == 0
    assert s3.objects() == before, "a night with nothing new writes nothing"
    assert "PUT" not in {kind for kind, _ in s3.served().requests[len(requests) :]}

    inspected = s3.end(s3.start("inspect.py", "--spark", "--json", f"s3a://{BUCKET}/{LANDING}"))
    assert inspected.status == 0, inspected.errors[-3000:]
    assert len(inspected.json()["files"]) == 2

    rebuilt = s3.job("backfill", "--tables", "public.pk")
    assert rebuilt.status == 0, rebuilt.errors[-3000:]
    s3.assert_equals(spark, tmp_path, TRUTH)

    before = s3.objects()
    dry = s3.job("maintain")
    assert dry.status == 0, dry.errors[-3000:]
    assert s3.objects() == before
    done = s3.job("maintain", "--execute")
    assert done.status == 0, done.errors[-3000:]
    assert s3.objects() != before
    s3.assert_equals(spark, tmp_path, TRUTH)
    assert not any(KEY in output or SECRET in output for output in s3.outputs)


@pytest.mark.soak
def test_one_of_two_concurrent_claims_wins(s3: Lake, spark: SparkSession, tmp_path: Path) -> None:
    """With two drivers, Delta on S3 would let both commit."""
    s3.land(FIRST)
    s3.control(meet=f"PUT /{BUCKET}/{CLAIMS}/shop/1.1.json")
    both = [s3.start_job("apply") for _ in range(2)]
    done = sorted((s3.end(process) for process in both), key=lambda d: d.status)
    assert [d.status for d in done] == [0, 75], [d.errors[-2000:] for d in done]
    assert (
        done[1]
        .errors.splitlines()[-1]
        .startswith("PGO-5100: AnotherRunError: another run is working on this source: process ")
    ), done[1].errors[-2000:]
    s3.assert_equals(spark, tmp_path, TRUTH_MID)
    assert s3.apply()["files"] == 0


@pytest.mark.soak
def test_two_drivers_that_append_at_once_lose_a_commit(s3: Lake, tmp_path: Path) -> None:
    """Delta and S3A alone don't prevent it, hence claim files. If this fails, both rows exist, and claim_files.py can
    go."""
    script = tmp_path / "append.py"
    script.write_text(APPEND)
    first = s3.end(s3.start(script, f"s3a://{BUCKET}/plain"))
    assert first.status == 0, first.errors[-3000:]
    s3.control(meet=f"PUT /{BUCKET}/plain/_delta_log/0+1.json")
    both = [s3.start(script, f"s3a://{BUCKET}/plain") for _ in range(2)]
    assert [s3.end(process).status for process in both] == [0, 0], s3.outputs[-1][-3000:]
    assert len(s3.rows("plain")) == 2, "of three rows"


@pytest.mark.soak
def test_requests_for_each_table_and_for_known_files(s3: Lake) -> None:
    """Bounds are what was counted; see ADR 31 before raising one."""
    tables = range(4)
    described = [table(oid=oid, name=f"t{oid}") for oid in tables]
    first = transaction(1, 0x100, *described, *(insert("1", "a", oid=oid) for oid in tables))
    s3.put(f"{LANDING}/0.copydata", copydata(first))
    s3.apply()
    s3.put(f"{LANDING}/1.copydata", copydata(transaction(2, 0x200, *(update("1", "b", oid=oid) for oid in tables))))
    before = len(s3.served().requests)
    s3.apply()
    paths = [path for _, path in s3.served().requests[before:]]
    assert {name: values(s3, name) for name in ("t0", "t3")} == {"t0": [("1", "b")], "t3": [("1", "b")]}
    assert sum(f"/{TABLES}/public/" in path for path in paths) <= len(tables) * 30
    assert sum("/_pgoutput_etl/" in path for path in paths) <= 272
    assert not any(path.endswith("/0.copydata") for path in paths)


@pytest.mark.soak
def test_a_killed_run_is_finished_by_the_next_one(s3: Lake, spark: SparkSession, tmp_path: Path) -> None:
    s3.land(FIRST)
    killed = s3.start_job("apply")
    s3.wait_for(f"{TABLES}/public/pk/_delta_log", f"{0:020}.json", killed)
    os.killpg(killed.pid, signal.SIGKILL)
    s3.end(killed)
    summary = s3.apply()
    assert (summary["batch"], summary["files"]) == (1, 1)
    s3.assert_equals(spark, tmp_path, TRUTH_MID)
    s3.land(SECOND)
    s3.apply()
    s3.assert_equals(spark, tmp_path, TRUTH)


@pytest.mark.soak
def test_other_sources_and_maintenance_wait_for_the_same_ledger(s3: Lake) -> None:
    s3.put(f"{LANDING}/0.copydata", copydata(NIGHT))
    s3.apply()
    s3.put(f"{LANDING}/1.copydata", copydata(transaction(2, 0x200, update("1", "aa")), 0x2000000))
    s3.put("landing/other/0.copydata", copydata(transaction(1, 0x100, table(name="u"), insert("7", "x"))))
    at_work = s3.start_job("apply")
    s3.wait_for(f"{CLAIMS}/shop", "2.1.json", at_work)
    os.killpg(at_work.pid, signal.SIGSTOP)
    others = ["--set", "source.name=other", "--set", f"source.landing=s3a://{BUCKET}/landing/other"]
    others += ["--set", f"target.root=s3a://{BUCKET}/others"]
    ledger = ["--set", f"state.root=s3a://{BUCKET}/{TABLES}/_pgoutput_etl"]
    try:
        refused = s3.job("apply", *others, *ledger)
        before = s3.objects()
        maintained = s3.job("maintain", "--execute")
        assert s3.objects() == before, "a run may write to the ledger"
    finally:
        os.killpg(at_work.pid, signal.SIGCONT)
    done = s3.end(at_work)
    assert refused.status == 75
    assert "AnotherRunError: a run of another source, shop, is using the same ledger: process " in refused.errors
    assert maintained.status == 0, maintained.errors[-3000:]
    assert "only one driver at a time may write to it" in str(maintained.json())
    assert done.status == 0, done.errors[-3000:]
    assert values(s3) == [("1", "aa"), ("2", "b")]
    accepted = s3.job("apply", *others, *ledger)
    assert accepted.status == 0, accepted.errors[-3000:]
    assert values(s3, "u", "others") == [("7", "x")]


@pytest.mark.soak
def test_storage_without_conditional_writes_is_reported(s3: Lake) -> None:
    s3.control(conditional=False)
    s3.put(f"{LANDING}/0.copydata", copydata(NIGHT))
    done = s3.job("apply")
    assert done.status == 0, done.errors[-3000:]
    assert "this storage ignores the condition of a conditional put: two runs that start" in done.errors
    assert values(s3) == [("1", "a"), ("2", "b")]


@pytest.mark.soak
def test_names_of_objects_cant_lead_out_of_the_landing_folder(s3: Lake) -> None:
    """A name may have .. and //, which Hadoop resolves: it would read another object."""
    s3.put(f"{LANDING}/0.copydata", copydata(NIGHT))
    secret, forged = (copydata(transaction(9, 0x900, table(), insert(key, "x"))) for key in ("secret", "forged"))
    s3.put("secret/f.copydata", secret)
    s3.put(f"{LANDING}/../../secret/f.copydata", forged)
    done = s3.job("apply")
    assert (done.status, values(s3)) == (3, [("1", "a"), ("2", "b")])
    [refused] = done.json()["refused_files"]
    assert "s3a://lake/secret/f.copydata: expected a file below source.landing" in refused
    assert status(s3.config(), StatusRequest()).quarantine.refused_files == (refused,)

    s3.put(f"{LANDING}/a//1.copydata", forged)
    stopped = s3.job("apply")
    assert stopped.status == 1
    [command] = re.findall(r"Next: .*jobs/apply.py .*--set '(source.ignore=.*)'", stopped.errors)
    goes_on = s3.job("apply", "--set", command)
    assert (goes_on.status, values(s3)) == (3, [("1", "a"), ("2", "b")])
