"""Runs that are killed between two of their effects, and finished by the next run: same tables, same ledger.

SIGKILL goes to a driver in its own process. Tables must equal a replay of one change after the other (replay.py) and,
in the soak tests, the tables of a run that was not killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from tests.support.fault_history import NIGHTS, NIGHTS_WITH_A_HELD_TABLE
from tests.support.fault_runs import Contents, FaultyJob, forget_files, put_back
from tests.support.faults import AFTER, BEFORE, Fault
from tests.support.jobs import Job
from tests.support.small_archives import Messages, insert, replayed, table, transaction

pytestmark = pytest.mark.spark


@pytest.fixture
def faulty(spark: SparkSession, tmp_path: Path, landing: Path) -> Iterator[FaultyJob]:
    with FaultyJob(Job(spark, tmp_path, landing)) as job:
        yield job


def assert_ledger_is_that_of(job: FaultyJob, nights: int) -> None:
    """Checks the ledger of the first of NIGHTS, each applied once."""
    batches = Counter((row["batch"], row["status"]) for row in job.ledger("batches"))
    assert batches == Counter((number, status) for number in range(1, nights + 1) for status in ("begun", "done"))
    files = Counter((row["batch"], Path(row["path"]).name) for row in job.ledger("files"))
    assert files == Counter((number + 1, f"{number:03}") for number in range(nights))
    ends: list[list[tuple[int, str]]] = [
        [(100, "committed")],
        [(100, "resent"), *((lsn, "committed") for lsn in range(200, 1001, 100)), (0, "aborted")],
        [(lsn, "committed") for lsn in (1100, 1200, 1300)],
    ]
    fates = Counter((row["commit_lsn"] or 0, row["fate"]) for row in job.ledger("transactions"))
    assert fates == Counter(end for night in ends[:nights] for end in night)
    waiting = [["s1", "p1"], ["t1"], []][nights - 1]
    assert len(job.ledger("open_transactions")) == len(waiting)
    assert [row["name"] for row in job.ledger("types")] == ["mood"]
    places = Counter((row["from_file"], row["from_ordinal"]) for row in job.ledger("relations"))
    assert set(places.values()) == {1}
    changes = Counter(
        (row["table"], row["kind"], row["column"], row["ordinal"]) for row in job.ledger("schema_changes")
    )
    assert set(changes.values()) <= {1}
    job.assert_versions_are_right()


KILLS = (
    Fault("KILL", AFTER, 1, "alter typed ADD COLUMNS"),  # between two ALTERs of a table, while others are merged
    Fault("KILL", AFTER, 1, "write transactions"),
    Fault("KILL", AFTER, 1, "write batches"),  # when only the last step is missing
)


@pytest.mark.soak
def test_a_killed_run_is_finished_with_the_same_result(faulty: FaultyJob) -> None:
    faulty.land(0, NIGHTS[0])
    faulty.run()
    faulty.land(1, NIGHTS[1])
    ended = faulty.run_with(KILLS[0])
    assert ended.was_killed, ended.errors
    faulty.run()
    faulty.assert_as_replayed(replayed(*NIGHTS[:2]))
    assert_ledger_is_that_of(faulty, 2)


@pytest.mark.soak
def test_a_repeatedly_killed_run_is_finished_with_the_same_result(faulty: FaultyJob) -> None:
    """Each run gets further than the one before."""
    faulty.land(0, NIGHTS[0])
    faulty.run()
    faulty.land(1, NIGHTS[1])
    for fault in KILLS:
        ended = faulty.run_with(fault)
        assert ended.was_killed, ended.errors
    assert len(faulty.ledger("open_transactions")) > 1, "also of transactions that have ended"

    assert faulty.run().files == 0, "the last one was done"
    faulty.assert_as_replayed(replayed(*NIGHTS[:2]))
    assert_ledger_is_that_of(faulty, 2)

    faulty.land(2, NIGHTS[2])
    faulty.run()
    faulty.assert_as_replayed(replayed(*NIGHTS))
    assert_ledger_is_that_of(faulty, 3)


def all_of(job: FaultyJob) -> tuple[Contents, Contents]:
    return job.tables(), job.ledger_contents()


@pytest.mark.soak
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("night", [0, 1])
def test_killed_after_every_effect(
    faulty: FaultyJob, night: int, part: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """And before the first one; a quarter of the effects per test. Sometimes the next night runs as well."""
    nights = NIGHTS_WITH_A_HELD_TABLE
    folder, saved = faulty.job.folder / "tables", faulty.job.folder / "saved"
    expected = []
    for number in range(night + 2):
        if number == night:
            shutil.copytree(folder, saved) if folder.exists() else saved.mkdir()
        faulty.land(number, nights[number])
        faulty.run()
        expected.append(all_of(faulty))
    places: list[str] = []
    for number in count(part, 4):
        put_back(faulty.job.spark, folder, saved)
        (faulty.job.landing / f"{night + 1:03}").unlink(missing_ok=True)
        ended = faulty.run_with(Fault("KILL", AFTER, number) if number else Fault("KILL", BEFORE, 1))
        if not ended.was_killed:
            assert ended.status in (0, 3), ended.errors
            break
        places.append(ended.effects[-1])
        faulty.run()
        assert all_of(faulty) == expected[night], places[-1]
        faulty.assert_versions_are_right()
        if number % 3 == 0:  # a third of each part
            faulty.land(night + 1, nights[night + 1])
            faulty.run()
            assert all_of(faulty) == expected[night + 1], places[-1]
        with capsys.disabled():
            print(f"\nnight {night + 1}, effect {number}: killed {places[-1]}, finished")  # noqa: T201
    assert len(places) >= 3, "a quarter of the effects of a small night"


def many_bags(lsn: int, *changes: str) -> Messages:
    oids = range(1, 13)
    relations = [table("v", oid=oid, name=f"bag{oid}", key=()) for oid in oids]
    rows = [insert(f"{value} of {oid}", oid=oid) for oid in oids for value in changes]
    return transaction(lsn, lsn, *relations, *rows)


@pytest.mark.soak
@pytest.mark.parametrize("number", [1, 2, 4, 7, 8])
def test_concurrently_written_tables_have_their_own_identifiers(faulty: FaultyJob, number: int) -> None:
    """If a table's identifier went into another's commit, the next run would omit rows or write them twice."""
    faulty.job = replace(faulty.job, overrides=["merge.parallel_tables=4"])
    nights = [many_bags(100, "a", "a"), many_bags(200, "a", "b"), many_bags(300, "c")]
    faulty.land(0, nights[0])
    faulty.run()
    faulty.land(1, nights[1])
    ended = faulty.run_with(Fault("KILL", AFTER, number, "write bag*"))
    assert ended.was_killed, ended.errors
    left = 12 - number - 3  # tables that the killed run can't have written: four were written at a time
    ended = faulty.run_with(Fault("KILL", BEFORE, min(number, left), "write bag*"))
    assert ended.was_killed, ended.errors
    faulty.run()
    faulty.assert_as_replayed(replayed(*nights[:2]))
    faulty.land(2, nights[2])
    faulty.run()
    faulty.assert_as_replayed(replayed(*nights))


@pytest.mark.soak
def test_killed_at_any_moment_with_the_jvm(faulty: FaultyJob, capsys: pytest.CaptureFixture[str]) -> None:
    """As in a power failure: at a random moment, during any step."""
    random = Random(5)
    seconds = 0.0
    killed: Counter[str] = Counter()
    for number, night in enumerate(NIGHTS):
        faulty.land(number, night)
        for _ in range(6 if seconds else 0):
            process = faulty.start_alone()
            try:
                process.communicate(timeout=random.uniform(0.3, 1.0) * seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                forget_files(faulty.job.spark)
                statuses = sorted(row["status"] for row in faulty.ledger("batches") if row["batch"] == number + 1)
                killed[" ".join(statuses) or "not begun"] += 1
        began = time.monotonic()
        finishing = faulty.start_alone()
        _, errors = finishing.communicate(timeout=300)
        assert finishing.returncode == 0, errors
        seconds = seconds or time.monotonic() - began
        forget_files(faulty.job.spark)
        faulty.assert_as_replayed(replayed(*NIGHTS[: number + 1]))
        assert_ledger_is_that_of(faulty, number + 1)
    with capsys.disabled():
        print(f"\nkilled with the JVM, by the batch's statuses in the ledger at that time: {dict(killed)}")  # noqa: T201
    assert killed.total() >= 6
