"""Work on several tables at a time."""

from __future__ import annotations

import threading
import time

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.spark.table_pool import TablePool

pytestmark = pytest.mark.spark


def test_results_keep_the_order(spark: SparkSession) -> None:
    lines: list[str] = []
    running: set[str] = set()
    most = 0
    together = threading.Barrier(2, timeout=20)

    def work(name: str) -> int:
        nonlocal most
        running.add(name)
        together.wait()
        most = max(most, len(running))
        time.sleep(0.01)
        running.discard(name)
        return spark.range(len(name)).count()

    pool = TablePool.of(spark, 2, "verifying", lines.append)
    assert (pool.map(["large", "a", "bb", "ccc"], str, work), most) == ([5, 1, 2, 3], 2)
    assert [line.partition(":")[0] for line in lines if line.startswith("verifying")] == [
        f"verifying {n} of 4" for n in range(1, 5)
    ]
    assert lines[-1].startswith("done ")


def test_the_first_error_ends_the_work(spark: SparkSession) -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        raise ValueError(f"{number}")

    with pytest.raises(ValueError, match="0"):
        TablePool.of(spark, 1, "verifying", lambda _: None).map(range(50), str, work)
    assert len(begun) < 50
