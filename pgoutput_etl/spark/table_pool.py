"""Works on several tables in parallel and reports progress."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

from pyspark.sql import SparkSession

from pgoutput_etl.console import Progress
from pgoutput_etl.errors import during
from pgoutput_etl.spark.session import writes_may_overlap

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True)
class TablePool:
    """threads: number of tables in parallel. verb: for progress lines, such as "verifying". pool: creates the
    threads."""

    threads: int
    verb: str
    progress: Progress
    pool: Callable[[int], Executor] = ThreadPoolExecutor
    _numbers: count[int] = field(default_factory=lambda: count(1))

    @classmethod
    def of(cls, spark: SparkSession, limit: int, verb: str, progress: Progress) -> TablePool:
        """limit: number of tables in parallel; one with Spark Connect.

        Threads share the session. Work that needs other settings gets a session from `session_settings`.
        """
        return cls(limit if writes_may_overlap(spark) else 1, verb, progress)

    def map(self, tables: Sequence[T], name: Callable[[T], str], work: Callable[[T], R]) -> list[R]:
        """The results in the tables' order. After the first error, tables that have begun are finished, and no others
        begin."""

        def run(table: T) -> R:
            number, started = next(self._numbers), time.monotonic()
            label = f"{number} of {len(tables)}: {name(table)}"
            self.progress(f"{self.verb} {label}")
            with during(f"{self.verb} {name(table)}"):
                result = work(table)
            self.progress(f"done {label}, {time.monotonic() - started:.1f} s")
            return result

        with self.pool(self.threads) as pool:
            futures = [pool.submit(run, table) for table in tables]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
