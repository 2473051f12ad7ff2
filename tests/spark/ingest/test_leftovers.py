"""Unread and quarantined bytes are reported each night until somebody fixes them, and then read.

tests/core/landing/test_selection.py and test_every_byte.py test much more without Spark.
"""

from __future__ import annotations

import json
import random
import shlex
from functools import partial

import pytest

from pgoutput_etl.errors import FramingError
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.files.report import RunReport, RunSummary
from pgoutput_etl.work.plan.report import PlanSummary
from pgoutput_etl.work.plan.run import plan
from tests.core.landing.test_selection import landed
from tests.support import jobs
from tests.support.jobs import Nights, held
from tests.support.small_archives import Messages, insert, table, transaction

pytestmark = pytest.mark.spark
JUNK = b"\xff" + random.Random(1).randbytes(131)


def one(number: int) -> Messages:
    described = [table()] if number == 1 else []
    return transaction(number, number * 100, *described, insert(str(number), "v"))


def put(nights: Nights, number: int, framing: str = "recvlogical") -> None:
    (nights.job.landing / f"{number}.bin").write_bytes(landed(one(number), framing))


def rows(*numbers: int) -> list[tuple[str, str]]:
    return [(str(n), "v") for n in numbers]


def planned(nights: Nights) -> PlanSummary:
    return plan(nights.job.spark, nights.job.loaded(), lambda _: None)


def set_aside(summary: RunSummary | PlanSummary) -> tuple[object, ...]:
    return summary.exit_code, summary.damages, summary.refused_files


@pytest.mark.soak  # the season has quarantine; the gate reads an archive again below
def test_junk_is_quarantined_and_reported_until_it_is_removed(nights: Nights) -> None:
    job = nights.job
    job.overrides.append("source.framing=recvlogical")
    put(nights, 1)
    assert job.run().exit_code == EXIT_DONE
    (job.landing / "2.bin").write_bytes(JUNK)
    summary = job.run()
    assert (summary.exit_code, summary.batch, [*held(summary)]) == (EXIT_QUARANTINE, 2, ["t"])
    assert "2.bin: 132 bytes at offset 0" in summary.damages[0]
    [row] = [row for row in nights.ledger("quarantine") if row["bytes"] is not None]
    assert (row["bytes"], row["offset"], row["length"]) == (JUNK, 0, len(JUNK))

    again = job.run()
    assert (again.files, set_aside(again), held(again)) == (0, set_aside(summary), held(summary))
    assert set_aside(planned(nights)) == set_aside(summary)
    assert json.loads(RunReport([again]).to_json())["damages"] == list(summary.damages)
    assert "In quarantine: file:" in jobs.summary_text(again)

    put(nights, 3)
    assert (job.run().exit_code, nights.values("t")) == (EXIT_QUARANTINE, rows(1)), "what comes behind it is held"
    (job.landing / "2.bin").unlink()
    assert job.backfill(BackfillRequest(None)).exit_code == EXIT_DONE
    assert nights.values("t") == rows(1, 3)
    put(nights, 4)
    assert (job.run().exit_code, nights.values("t")) == (EXIT_DONE, rows(1, 3, 4))
    assert (job.run().exit_code, planned(nights).exit_code) == (EXIT_DONE, EXIT_DONE)


def test_a_framing_that_fits_no_file_is_refused_before_any_write(nights: Nights) -> None:
    job = nights.job
    for number in (1, 2, 3):
        put(nights, number)
    job.overrides[:] = ["source.framing=pgcopy"]
    for run in (job.run, partial(planned, nights)):
        with pytest.raises(FramingError, match=r"1\.bin: expected messages in the framing pgcopy.*Set .* recvlogical"):
            run()
    assert nights.ledger("batches") == nights.ledger("files") == []
    job.overrides[:] = ["source.framing=recvlogical"]
    assert (job.run().exit_code, nights.values("t")) == (EXIT_DONE, rows(1, 2, 3))


@pytest.mark.soak
def test_a_skipped_file_is_quarantined_and_then_read_in_its_order(nights: Nights) -> None:
    """An older version did not check a file again of which it had read nothing."""
    job, folder = nights.job, nights.job.landing
    put(nights, 1)
    (folder / "2.bin").write_bytes(landed(one(2), "recvlogical")[:10])
    waiting = job.run()
    assert (waiting.exit_code, len(waiting.files_not_read)) == (EXIT_DONE, 1)
    assert job.run().files_not_read == planned(nights).files_not_read == waiting.files_not_read
    (folder / "2.bin").rename(folder / ".2.bin")
    put(nights, 3)
    job.run()
    (folder / ".2.bin").unlink()
    put(nights, 2)

    summary = job.run()
    assert (summary.exit_code, summary.files) == (EXIT_QUARANTINE, 0)
    assert [shlex.split(step.command)[-1] for step in summary.next] == ["--from-quarantine"]
    assert planned(nights).next == summary.next
    assert set_aside(job.run()) == set_aside(planned(nights)) == set_aside(summary)
    put(nights, 4)
    assert (job.run().exit_code, nights.values("t")) == (EXIT_DONE, rows(1, 3, 4))

    assert job.backfill(BackfillRequest(None)).exit_code == EXIT_DONE
    assert nights.values("t") == rows(1, 2, 3, 4), "no table was held, and all are complete"
    assert [row for row in nights.ledger("quarantine") if row["redriven"] is None] == []
    put(nights, 5)
    assert (job.run().exit_code, nights.values("t")) == (EXIT_DONE, rows(1, 2, 3, 4, 5))
    assert job.backfill(BackfillRequest(None)).batch == 0, "nothing is left to do"


@pytest.mark.soak
def test_bytes_added_before_a_redrive_are_read_by_the_next_run(nights: Nights) -> None:
    """The incomplete message at the archive's end waits as before."""
    job, folder = nights.job, nights.job.landing
    job.overrides.append("source.framing=recvlogical")
    put(nights, 1)
    (folder / "2.bin").write_bytes(JUNK)
    second = landed(one(3), "recvlogical")
    (folder / "3.bin").write_bytes(second + landed(one(4), "recvlogical")[:10])
    job.run()
    (folder / "2.bin").unlink()
    (folder / "3.bin").write_bytes(second + landed([*one(4), *one(5)], "recvlogical"))
    job.backfill(BackfillRequest(None))
    assert nights.values("t") == rows(1, 3)
    last = job.run()
    assert (last.exit_code, last.files, nights.values("t")) == (EXIT_DONE, 1, rows(1, 3, 4, 5))
