"""Writes are repeated if rows were lost with an executor, and only then."""

from __future__ import annotations

import logging

import pytest

from pgoutput_etl.spark.retries import again, was_lost

LOST = "SparkException: [CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND] Checkpoint block rdd_1_0 not found!"


class Write:
    """Raises one error after the other, and then returns its number of calls."""

    def __init__(self, *errors: str) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> int:
        self.calls += 1
        if self.errors:
            raise RuntimeError(self.errors.pop(0))
        return self.calls


def test_a_write_is_repeated_while_rows_are_lost(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert again(Write(LOST, LOST)) == 3
    assert [record.message for record in caplog.records] == [
        "an executor was lost with rows it had computed: computing them again"
    ] * 2


def test_another_error_is_not_repeated() -> None:
    write = Write(LOST, "disk full")
    with pytest.raises(RuntimeError, match="disk full"):
        again(write)
    assert write.calls == 2


def test_it_ends() -> None:
    write = Write(*[LOST] * 100)
    with pytest.raises(RuntimeError, match="CHECKPOINT"):
        again(write)
    assert write.calls == 10


def test_a_job_that_lost_its_executors() -> None:
    aborted = "Job aborted due to stage failure: Task 0 in stage 39.0 failed 4 times, most recent failure: "
    assert was_lost(RuntimeError(f"{aborted}Lost task 0.3: ExecutorLostFailure (executor 17 exited)"))
    assert not was_lost(RuntimeError(f"{aborted}Lost task 0.3: disk full"))
