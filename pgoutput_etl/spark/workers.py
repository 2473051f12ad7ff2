"""Spark's Python workers, which run the functions of mapInArrow: their garbage collection, and facts about their
job."""

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
    """Exempts the objects of all loaded modules from garbage collection. Spark's workers collect after every task,
    which takes 40 ms with pandas, pyarrow, and numba loaded. Call it when a task begins."""
    global _frozen  # noqa: PLW0603 - of this process
    if len(sys.modules) != _frozen:
        gc.freeze()
        _frozen = len(sys.modules)


_FIRST_SCAN = "pgoutput_etl-first-scan"


@contextmanager
def first_scan(spark: SparkSession) -> Iterator[None]:
    """Within the context, the thread's Spark jobs scan files for the first time. Outside of it, a job scans files only
    because an executor was lost with the rows of an earlier job."""
    with tagged(spark, _FIRST_SCAN):
        yield


def is_first_scan() -> bool:
    """Called in a worker: True if its task belongs to a job within `first_scan`."""
    context = TaskContext.get()
    return context is not None and _FIRST_SCAN in (context.getLocalProperty("spark.job.tags") or "")
