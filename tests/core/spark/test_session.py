"""Background jobs of a session, canceled if the other work fails. The session is a stand-in that records calls."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import cast

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.spark.session import background_jobs


@dataclass
class RecordingSession:
    """Tags belong to threads, as a session's do."""

    tags: threading.local = field(default_factory=threading.local)
    interrupted: list[str] = field(default_factory=list)
    canceled: threading.Event = field(default_factory=threading.Event)

    def addTag(self, tag: str) -> None:  # noqa: N802
        self.tags.of_thread = tag

    def removeTag(self, tag: str) -> None:  # noqa: N802
        assert self.tags.of_thread == tag
        del self.tags.of_thread

    def interruptTag(self, tag: str) -> None:  # noqa: N802
        self.interrupted.append(tag)
        self.canceled.set()


def test_background_jobs_have_their_own_tag_and_return_results() -> None:
    spark = RecordingSession()
    with background_jobs(cast(SparkSession, spark)) as others:
        tags = [others.submit(lambda: spark.tags.of_thread).result() for _ in range(2)]
        assert not hasattr(spark.tags, "of_thread"), "jobs of this thread are not canceled with it"
    assert tags[0] == tags[1]
    assert tags[0].startswith("pgoutput_etl-")
    with background_jobs(cast(SparkSession, spark)) as others:
        assert others.submit(lambda: spark.tags.of_thread).result() != tags[0]
    assert spark.interrupted == []


def test_background_jobs_are_canceled_if_the_other_work_fails() -> None:
    spark = RecordingSession()
    seen: list[str] = []

    def until_canceled() -> None:
        seen.append(spark.tags.of_thread)
        assert spark.canceled.wait(60)

    def failing() -> None:
        with background_jobs(cast(SparkSession, spark)) as others:
            others.submit(until_canceled)
            raise RuntimeError("another run is at work")

    with pytest.raises(RuntimeError, match="another run"):
        failing()
    assert spark.interrupted == seen
