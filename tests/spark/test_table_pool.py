"""Work on several tables at a time."""

from __future__ import annotations

import threading
import time

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.spark.table_pool import TablePool

pytestmark = pytest.mark.spark


def test_results_keep_the_order_and_large_tables_run_alone(spark: SparkSession) -> None:
    lines: list[str] = []
    running: set[str] = set()
    most, beside_large = 0, set()
    together = threading.Barrier(2, timeout=20)

    def work(name: str) -> int:
        nonlocal most
        running.add(name)
        if name != "large":
            together.wait()
        most = max(most, len(running))
        if name == "large":
            beside_large.update(running - {name})
        time.sleep(0.01)
        running.discard(name)
        return spark.range(len(name)).count()

    pool = TablePool.of(spark, 2, "verifying", lines.append)
    names = ["large", "a", "bb", "ccc", "dddd"]
    assert pool.map(names, str, work, lambda name: name == "large") == [5, 1, 2, 3, 4]
    assert (most, beside_large) == (2, set())
    assert [line.partition(":")[0] for line in lines if line.startswith("verifying")] == [
        f"verifying {n} of 5" for n in range(1, 6)
    ]
    assert lines[-1].startswith("done 5 of 5: large, ")


def test_the_first_error_ends_the_work(spark: SparkSession) -> None:
    begun: list[int] = []

    def work(number: int) -> None:
        begun.append(number)
        raise ValueError(f"{number}")

    with pytest.raises(ValueError, match="0"):
        TablePool.of(spark, 1, "verifying", lambda _: None).map(range(50), str, work)
    assert len(begun) < 50
