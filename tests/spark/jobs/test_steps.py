"""A long backlog in steps: several batches of one run, and events between two of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pgoutput_etl.errors import RunError
from pgoutput_etl.ingest.landed_files import FileBatch
from pgoutput_etl.work.files import pipeline
from pgoutput_etl.work.files.pipeline import apply
from pgoutput_etl.work.files.report import RunReport, RunSummary
from pgoutput_etl.work.plan.run import plan
from tests.core.landing.test_batching import BACKLOG
from tests.support.captures import CAPTURES, files_of, truth_tables
from tests.support.jobs import Job, Nights
from tests.support.small_archives import insert, rows_of, table, transaction

pytestmark = pytest.mark.spark
BY_TWO, ONE_BY_ONE = "merge.max_transactions=2", "merge.max_transactions=1"
TWO = [transaction(1, 100, table(), insert("1", "a")), transaction(2, 200, insert("2", "b"))]


def run(job: Job, *overrides: str) -> list[RunSummary]:
    return apply(job.spark, job.loaded(*overrides), lambda _: None)


def names(paths: tuple[str, ...]) -> list[str]:
    return [Path(path).name for path in paths]


def batches(nights: Nights) -> list[tuple[int, str]]:
    return sorted((row["batch"], row["status"]) for row in nights.ledger("batches"))


def done(*numbers: int) -> list[tuple[int, str]]:
    return [(number, status) for number in numbers for status in ("begun", "done")]


@pytest.mark.soak
def test_a_run_that_dies_between_two_batches_leaves_consistent_tables(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streamed, prepared, and split transactions begin in one batch and end in another."""

    def dies(*_: object) -> FileBatch:
        raise RunError("killed")

    for messages in BACKLOG:
        nights.land(messages)
    expected = plan(nights.job.spark, nights.job.loaded(BY_TWO), lambda _: None)
    assert (expected.batch, len(expected.files), expected.later_batches) == (1, 4, 2), "one of five is empty"
    assert names(expected.later_files) == [f"{n:03}.copydata" for n in range(5, 9)]
    assert [t.inserted for t in expected.tables] == [2]

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "read_later", dies)
        with pytest.raises(RunError, match="killed"):
            run(nights.job, BY_TWO)
    assert (batches(nights), nights.values("t")) == (done(1), rows_of(*BACKLOG[:5]))

    second, third = summaries = run(nights.job, BY_TWO)
    assert (batches(nights), nights.values("t")) == (done(1, 2, 3), rows_of(*BACKLOG))
    assert [(s.batch, s.files, s.committed_transactions) for s in summaries] == [(2, 1, 2), (3, 3, 2)]
    assert (second.last_commit_lsn, third.last_commit_lsn) == (400, 600)
    report = json.loads(RunReport(summaries).to_json())
    assert ([b["batch"] for b in report["batches"]], report["batch"]) == ([2, 3], 3)
    assert nights.job.rows("public", "t") != []
    files = sorted((Path(row["path"]).name, row["batch"]) for row in nights.ledger("files"))
    batch_of = {0: 1, 1: 1, 3: 1, 4: 1, 5: 2, 6: 3, 7: 3, 8: 3}
    assert files == [(f"{n:03}.copydata", batch) for n, batch in batch_of.items()]
    assert nights.ledger("open_transactions") == []
    [nothing] = run(nights.job, BY_TWO)
    assert (nothing.batch, nothing.files) == (3, 0)


@pytest.mark.soak
def test_a_run_between_two_batches_ends_this_one(nights: Nights) -> None:
    for messages in TWO:
        nights.land(messages)
    others: list[RunSummary] = []

    def meanwhile(step: str) -> None:
        if step.startswith("batch 1 is done; 1 more to go"):
            others.extend(run(nights.job))

    with pytest.raises(RunError, match="another run has continued after batch 1; this run changes nothing more"):
        apply(nights.job.spark, nights.job.loaded(ONE_BY_ONE), meanwhile)
    assert [other.batch for other in others] == [2]
    assert (batches(nights), nights.values("t")) == (done(1, 2), rows_of(*TWO))


@pytest.mark.soak
def test_a_file_renamed_between_two_batches_is_found(nights: Nights) -> None:
    """A file that ends within a message that the server sent again does not count as still being written."""
    torn, second = [nights.land(messages) for messages in TWO]
    torn.write_bytes(torn.read_bytes() + second.read_bytes()[:40])
    shutil.copy(second, second.with_name("002.copydata"))

    def rotated(step: str) -> None:
        if step.startswith("batch 1 is done"):
            second.rename(second.with_name("003.copydata"))

    first, last = apply(nights.job.spark, nights.job.loaded(ONE_BY_ONE), rotated)
    assert (first.files, last.files, nights.values("t")) == (1, 1, rows_of(*TWO))
    assert first.files_not_read == ()
    assert any("landed again" in line for line in last.files_not_read)
    assert {row["unfinished"] for row in nights.ledger("files")} == {False}


@pytest.mark.soak
@pytest.mark.parametrize("slot", ["random16/v3", "random16/v4b"])
def test_a_real_archive_file_by_file(nights: Nights, slot: str) -> None:
    for file in files_of(CAPTURES / slot):
        shutil.copy(file, nights.job.landing)
    assert len(run(nights.job, ONE_BY_ONE)) > 5
    nights.job.assert_equals(truth_tables(CAPTURES / "random16" / "truth"), "random16")
