"""Spark's Python workers, in which the functions of mapInArrow run, and their knowledge of their job."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import TaskContext
from pyspark.sql import SparkSession

from pgoutput_etl.spark.session import tagged

_frozen = 0  # modules


def freeze_modules() -> None:
    """Exempts all objects of the modules that are loaded by now from garbage collection. Spark's workers collect after
    every task, which takes 40 ms with pandas, pyarrow, and numba loaded. To be called as a task begins."""
    global _frozen  # noqa: PLW0603 - of this process
    if len(sys.modules) != _frozen:
        gc.freeze()
        _frozen = len(sys.modules)


_FIRST_SCAN = "pgoutput_etl-first-scan"


@contextmanager
def first_scan(spark: SparkSession) -> Iterator[None]:
    """Within the context, the thread's Spark jobs scan files for the first time. Jobs outside that scan files do so
    because an executor was lost with what an earlier job scanned."""
    with tagged(spark, _FIRST_SCAN):
        yield


def is_first_scan() -> bool:
    """In a worker: True if its task belongs to a job within `first_scan`."""
    context = TaskContext.get()
    return context is not None and _FIRST_SCAN in (context.getLocalProperty("spark.job.tags") or "")
