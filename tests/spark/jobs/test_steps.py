"""A long backlog in steps: several batches of one run, the same tables, and what comes between two of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pgoutput_etl.errors import RunError
from pgoutput_etl.ingest.landed_files import FileBatch
from pgoutput_etl.jobs.apply import pipeline
from pgoutput_etl.jobs.apply.pipeline import apply
from pgoutput_etl.jobs.apply.report import RunSummary, to_json
from pgoutput_etl.jobs.plan.run import plan
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
def test_a_run_that_dies_between_two_batches_leaves_tables_that_are_whole(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streamed and prepared transactions, and one that is cut, begin in one batch and end in another."""

    def dies(*_: object) -> FileBatch:
        raise RunError("killed")

    for messages in BACKLOG:
        nights.land(messages)
    said = plan(nights.job.spark, nights.job.loaded(BY_TWO), lambda _: None)
    assert (said.batch, len(said.files), said.later_batches) == (1, 4, 2), "one of five is empty"
    assert names(said.later_files) == [f"{n:03}.copydata" for n in range(5, 9)]
    assert [t.inserted for t in said.tables] == [2]

    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "read_later", dies)
        with pytest.raises(RunError, match="killed"):
            run(nights.job, BY_TWO)
    assert (batches(nights), nights.values("t")) == (done(1), rows_of(*BACKLOG[:5]))

    second, third = summaries = run(nights.job, BY_TWO)
    assert (batches(nights), nights.values("t")) == (done(1, 2, 3), rows_of(*BACKLOG))
    assert [(s.batch, s.files, s.committed_transactions) for s in summaries] == [(2, 1, 2), (3, 3, 2)]
    assert (second.last_commit_lsn, third.last_commit_lsn) == (400, 600)
    told = json.loads(to_json(summaries))
    assert ([b["batch"] for b in told["batches"]], told["batch"]) == ([2, 3], 3)
    assert nights.job.rows("public", "t") != []
    files = sorted((Path(row["path"]).name, row["batch"]) for row in nights.ledger("files"))
    of_batches = {0: 1, 1: 1, 3: 1, 4: 1, 5: 2, 6: 3, 7: 3, 8: 3}
    assert files == [(f"{n:03}.copydata", batch) for n, batch in of_batches.items()]
    assert nights.ledger("open_transactions") == []
    [nothing] = run(nights.job, BY_TWO)
    assert (nothing.batch, nothing.files) == (3, 0)


@pytest.mark.soak
def test_another_run_that_comes_between_ends_this_one(nights: Nights) -> None:
    for messages in TWO:
        nights.land(messages)
    others: list[RunSummary] = []

    def meanwhile(step: str) -> None:
        if step.startswith("batch 1 is done; what is left makes 1 more"):
            others.extend(run(nights.job))

    with pytest.raises(RunError, match="another run has gone on behind batch 1; this one changes nothing more"):
        apply(nights.job.spark, nights.job.loaded(ONE_BY_ONE), meanwhile)
    assert [other.batch for other in others] == [2]
    assert (batches(nights), nights.values("t")) == (done(1, 2), rows_of(*TWO))


@pytest.mark.soak
def test_a_file_that_is_renamed_between_two_batches_is_looked_for_anew(nights: Nights) -> None:
    """And one that ends within a message, which the server sent again, is none that is still being written."""
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
