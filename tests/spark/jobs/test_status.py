"""The status job beside the nightly job: the same figures, read without Spark from a ledger that Spark wrote."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from pgoutput_etl.answers.status.report import Day, Status, WaitingFiles
from pgoutput_etl.answers.status.request import StatusRequest
from pgoutput_etl.answers.status.run import status
from pgoutput_etl.load.summary import ROW_OPERATIONS
from pgoutput_etl.work.backfill.request import BackfillRequest
from tests.support.jobs import Job, Nights, held
from tests.support.small_archives import T, copydata, delete, insert, segment, stream_commit, table, transaction, update

pytestmark = pytest.mark.spark

ODD, SPOILT = 602, 603
_ODD = table(oid=ODD, name="odd")
FIRST = [
    *transaction(1, 0x100, table(), _ODD, table(oid=SPOILT, name="spoilt"), insert("1", "a"), insert("2", "b")),
    *transaction(2, 0x180, insert("1", "a", oid=ODD), insert("1", "a", oid=SPOILT)),
]
SECOND = [
    *transaction(3, 0x200, update("1", "aa"), delete("2", None), insert("3", "c")),
    *transaction(5, 0x300, insert("2", "spoilt", oid=SPOILT), insert("4", "spoilt too", oid=SPOILT)),
    *segment(20, insert("5", "e"), insert("6", "f"), first=True),
]
THIRD = transaction(4, 0x380, replace(_ODD, columns=tuple(reversed(_ODD.columns))), insert("b", "2", oid=ODD))
FOURTH = stream_commit(20, 0x400)


def now(job: Job) -> Status:
    return status(job.loaded(), StatusRequest())


def changed_rows(day: Day) -> dict[str, tuple[int | None, ...]]:
    return {t.table: (t.inserted, t.updated, t.deleted) for t in day.tables}


@pytest.mark.soak
def test_status_has_the_figures_of_the_summaries(nights: Nights) -> None:
    job = nights.job
    nights.land(FIRST)
    assert now(job).waiting.files == 1
    first = job.run()
    report = now(job)
    assert (report.batch, report.last_commit_lsn, report.tables) == (1, 0x180, 3)
    assert (report.waiting, report.exit_code, report.claim, report.unfinished) == (WaitingFiles(), 0, None, None)

    path = nights.land(SECOND)
    path.write_bytes(copydata(SECOND).replace(b"t\0\0\0\x06spoilt", b"?\0\0\0\x06spoilt"))
    assert now(job).waiting.bytes == path.stat().st_size
    second = job.run()
    report = now(job)
    assert (report.batch, report.last_commit_lsn) == (2, second.last_commit_lsn)
    assert {table.table: table.reason for table in report.held} == held(second)
    assert {table.table: table.lsn for table in report.held} == {"spoilt": 0x200}
    aside = report.quarantine
    assert (aside.bytes, aside.transactions) == (second.accounts["quarantined"], second.quarantined_transactions)
    assert aside.ranges == second.damages
    assert report.open.transactions == second.open_transactions == 1
    assert 0 < report.open.bytes <= second.accounts["waiting"]
    assert (report.exit_code, second.exit_code) == (3, 3)
    assert report.next[-1].command.endswith("--from-quarantine")
    assert report.waiting == WaitingFiles()
    metrics = {row["batch"]: json.loads(row["metrics"]) for row in nights.ledger("batches") if row["metrics"]}
    assert metrics[2]["rows"] == {str(T): {"inserted": 1, "updated": 1, "deleted": 1}}
    assert metrics[2]["transactions"] == {"committed": 1, "quarantined": 1}

    [night] = report.days
    assert (night.batches, night.files, night.bytes) == (2, 2, first.bytes + second.bytes)
    assert night.messages == sum(first.messages.values()) + sum(second.messages.values())
    assert changed_rows(night) == {
        name: tuple(
            sum(getattr(t, n) for s in (first, second) for t in s.tables if t.table == name) for n in ROW_OPERATIONS
        )
        for name in ("t", "odd", "spoilt")
    }
    assert {t.table: t.rows for t in night.tables} == {"t": 2, "odd": 1, "spoilt": 1}
    assert set(night.seconds) == {"look", "read", "prepare", "write", "ledger"}
    assert all(seconds > 0 for seconds in night.seconds.values())

    waiting = report.open
    third = nights.night(THIRD)
    report = now(job)
    assert {table.table: (table.lsn, table.reason) for table in report.held if table.table == "odd"} == {
        "odd": (second.last_commit_lsn, held(third)["odd"])
    }
    assert report.quarantine == aside, "which says nothing about tables that are held for another reason"

    path.write_bytes(copydata(SECOND))
    job.backfill(BackfillRequest(None))
    report = now(job)
    assert (report.quarantine.bytes, report.quarantine.transactions, report.quarantine.ranges) == (0, 0, ())
    assert [table.table for table in report.held] == ["odd"]
    assert (report.batch, report.open.transactions) == (4, 1)
    assert 0 < report.open.bytes < 2 * waiting.bytes, "the earlier rows do not count"
    assert sum(night.files for night in report.days) == 3, "a redrive records all files again"

    nights.night(FOURTH)
    report = now(job)
    assert (report.open.transactions, report.open.bytes, report.last_commit_lsn) == (0, 0, 0x400)
