"""Spark's work beside other work, and given up with it; with a session that only notes what it is told."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import cast

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.spark.session import background_jobs


@dataclass
class Noting:
    """Tags belong to threads, as a session's do."""

    tags: threading.local = field(default_factory=threading.local)
    interrupted: list[str] = field(default_factory=list)
    given_up: threading.Event = field(default_factory=threading.Event)

    def addTag(self, tag: str) -> None:  # noqa: N802
        self.tags.of_thread = tag

    def removeTag(self, tag: str) -> None:  # noqa: N802
        assert self.tags.of_thread == tag
        del self.tags.of_thread

    def interruptTag(self, tag: str) -> None:  # noqa: N802
        self.interrupted.append(tag)
        self.given_up.set()


def test_what_was_started_has_a_tag_of_its_own_and_gives_its_answer() -> None:
    spark = Noting()
    with background_jobs(cast(SparkSession, spark)) as others:
        tags = [others.start(lambda: spark.tags.of_thread).result() for _ in range(2)]
        assert not hasattr(spark.tags, "of_thread"), "this thread's own work can't be given up by it"
    assert tags[0] == tags[1]
    assert tags[0].startswith("pgoutput_etl-")
    with background_jobs(cast(SparkSession, spark)) as others:
        assert others.start(lambda: spark.tags.of_thread).result() != tags[0]
    assert spark.interrupted == []


def test_where_the_other_work_fails_spark_is_told_to_give_up_before_anybody_waits() -> None:
    spark = Noting()
    seen: list[str] = []

    def until_given_up() -> None:
        seen.append(spark.tags.of_thread)
        assert spark.given_up.wait(60)

    def failing() -> None:
        with background_jobs(cast(SparkSession, spark)) as others:
            others.start(until_given_up)
            raise RuntimeError("another run is at work")

    with pytest.raises(RuntimeError, match="another run"):
        failing()
    assert spark.interrupted == seen
