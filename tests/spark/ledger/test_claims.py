"""Simultaneous runs: one works, the others end at once and change nothing. Suspended runs lose their claim."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.errors import RunError
from pgoutput_etl.exit_codes import EXIT_TRY_LATER
from pgoutput_etl.ledger import claims
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.machine import Process
from tests.support.fault_runs import FaultyJob, forget_files
from tests.support.faults import BEFORE, Fault
from tests.support.jobs import Job
from tests.support.small_archives import insert, replayed, table, transaction, update

pytestmark = pytest.mark.spark

NIGHTS = [
    transaction(1, 100, table(), insert("1", "a"), table(oid=2, name="u"), insert("1", "a", oid=2)),
    transaction(2, 200, insert("2", "b"), update("1", "b"), insert("2", "b", oid=2), update("1", "b", oid=2)),
]


@pytest.fixture
def faulty(spark: SparkSession, tmp_path: Path, landing: Path) -> Iterator[FaultyJob]:
    with FaultyJob(Job(spark, tmp_path, landing, ["merge.parallel_tables=1"])) as job:
        yield job


def commits(job: FaultyJob) -> dict[str, int]:
    """The number of commits of each table, including the ledger's except `claims`."""
    logs = (job.job.folder / "tables").rglob("_delta_log")
    return {log.parent.name: len(list(log.glob("*.json"))) for log in logs if log.parent.name != "claims"}


def test_a_second_run_and_a_superseded_run_change_nothing(faulty: FaultyJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run is stopped after it has claimed the batch, before it begins it."""
    faulty.land(0, NIGHTS[0])
    first = faulty.start(Fault("STOP", BEFORE, 1, "write batches"))
    faulty.wait_until_stopped(first)
    claim_rows = len(faulty.ledger("claims"))
    empty = faulty.job.folder / "empty"
    empty.mkdir()
    for overrides in ([], [f"source.landing={empty}"]):
        with pytest.raises(RunError, match=f"another run is working on this source: process {first.pid} of"):
            faulty.job.run(*overrides)
    assert commits(faulty) == {}
    assert len(faulty.ledger("claims")) == claim_rows

    faulty.land(1, NIGHTS[1])
    with monkeypatch.context() as patched:
        patched.setattr(claims, "LEASE", timedelta(0))
        assert faulty.run().files == 2, "its lease has expired"
    before = commits(faulty)
    first.send_signal(signal.SIGCONT)
    ended = faulty.end(first)
    assert ended.status == EXIT_TRY_LATER
    assert ended.errors.startswith(
        "PGO-5100: AnotherRunError: another run has already begun batch 1; this run changes nothing more"
    )
    assert commits(faulty) == before
    faulty.assert_as_replayed(replayed(*NIGHTS))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("night", "where"),
    [(0, "write t"), (0, "write u"), (0, "write files"), (1, "write t"), (1, "write u")],
)
def test_a_run_superseded_in_the_middle_stops_writing(
    faulty: FaultyJob, monkeypatch: pytest.MonkeyPatch, night: int, where: str
) -> None:
    for number in range(night):
        faulty.land(number, NIGHTS[number])
        faulty.run()
    faulty.land(night, NIGHTS[night])
    first = faulty.start(Fault("STOP", BEFORE, 1, where), lease=30)  # so short that each check reads the ledger
    faulty.wait_until_stopped(first)
    with monkeypatch.context() as patched:
        patched.setattr(claims, "LEASE", timedelta(0))
        faulty.run()
    before = commits(faulty)
    first.send_signal(signal.SIGCONT)
    ended = faulty.end(first)
    # Its next commit was made by the other run, so Delta skips it; the check then stops the run.
    if where == "write files":
        assert ended.status in (0, EXIT_TRY_LATER), ended.errors
    else:
        assert ended.status == EXIT_TRY_LATER
        assert "has done this run's work" in ended.errors
    assert commits(faulty) == before
    faulty.assert_as_replayed(replayed(*NIGHTS[: night + 1]))


@pytest.mark.soak
def test_a_claim_of_another_machine_blocks_until_its_lease_ends(
    faulty: FaultyJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty.land(0, NIGHTS[0])
    ledger = DeltaLedger.at(faulty.job.spark, str(faulty.job.folder / "tables" / "_pgoutput_etl"), "test")
    elsewhere = Process("elsewhere boot pid:[1]", 4711, 99)
    at = datetime.now(timezone.utc) - claims.LEASE * 0.5
    ledger.batches.claims().report(claims.Claim(1, 1, "theirs", elsewhere, claims.CLAIMED, at), "1")
    with pytest.raises(RunError, match=r"process 4711 of elsewhere, last heard of \d+ s ago"):
        faulty.run()
    assert commits(faulty) == {}
    monkeypatch.setattr(claims, "LEASE", timedelta(seconds=2))
    monkeypatch.setattr(claims, "RETRY", timedelta(seconds=0.3))
    monkeypatch.setattr(claims, "RENEWAL", timedelta(seconds=0.3))
    assert faulty.run().files == 1
    statuses = {row["status"] for row in faulty.ledger("claims") if row["attempt"] == 2}
    assert statuses == {"claimed", "renewed", "released"}, "a separate thread renews it while the run works"


def test_one_of_several_simultaneous_runs_gets_the_claim(spark: SparkSession, tmp_path: Path) -> None:
    """Without a ledger, so each would create its tables. A run of another source gets its own claim."""
    at_once = threading.Barrier(4)
    inside: list[str] = []
    refused: list[str] = []
    enough = threading.Event()

    def run(source: str) -> None:
        held = DeltaLedger.at(spark, str(tmp_path), source).batches.claims()
        at_once.wait()
        try:
            with held.held(1):
                inside.append(source)
                enough.wait(60)
        except Exception as error:  # noqa: BLE001  # checked below
            refused.append(f"{source}: {error}")

    threads = [threading.Thread(target=run, args=(source,)) for source in ("one", "one", "one", "two")]
    for thread in threads:
        thread.start()
    while len(inside) + len(refused) < len(threads):
        time.sleep(0.01)
    enough.set()
    for thread in threads:
        thread.join()
    assert sorted(inside) == ["one", "two"]
    assert len(refused) == 2
    assert all(text.startswith("one: another run is working on this source") for text in refused), refused


@pytest.mark.soak
def test_the_next_run_finishes_a_batch_after_storage_failed(faulty: FaultyJob) -> None:
    faulty.land(0, NIGHTS[0])
    in_the_way = faulty.job.folder / "tables" / "_pgoutput_etl" / "transactions"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()
    with pytest.raises(Exception, match="transactions"):  # of delta-rs or Java
        faulty.run()
    assert {row["status"] for row in faulty.ledger("claims")} == {"claimed", "released"}
    assert [row["status"] for row in faulty.ledger("batches")] == ["begun"]
    in_the_way.unlink()
    assert faulty.run().files == 1
    faulty.assert_as_replayed(replayed(NIGHTS[0]))


@pytest.mark.soak
def test_one_of_two_simultaneous_jobs_works(faulty: FaultyJob) -> None:
    """Two JVMs, two drivers, without a ledger."""
    for number, night in enumerate(NIGHTS):
        faulty.land(number, night)
        both = [faulty.start_alone() for _ in range(2)]
        results = [(process.communicate(timeout=300), process.returncode) for process in both]
        assert sorted(status for _, status in results) == [0, EXIT_TRY_LATER], results
        [error] = [errors for (_, errors), status in results if status]
        assert re.search(
            r"^PGO-5100: AnotherRunError: another run (is working on this source|has just finished)",
            error,
            re.MULTILINE,
        )
        assert "Traceback" not in error
        forget_files(faulty.job.spark)
        faulty.assert_as_replayed(replayed(*NIGHTS[: number + 1]))
        assert len(faulty.ledger("files")) == number + 1
