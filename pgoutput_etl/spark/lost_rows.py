"""Recognizes work that was lost with an executor, and repeats writes whose computed rows were lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Spark can't compute the rows of a local checkpoint (DataFrame.localCheckpoint) again, as they have no lineage. Delta's
# MERGE makes one, too.
_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"

# A task failed too often (spark.task.maxFailures), at last because its executor was lost.
_LOST_EXECUTOR = "ExecutorLostFailure"

_ATTEMPTS = 8


def was_lost(error: Exception) -> bool:
    """True if Spark gave up a job because it lost executors."""
    return _LOST_EXECUTOR in str(error)


def again_if_lost(write: Callable[[], T]) -> T:
    """The result of `write`, which is called up to eight times while a local checkpoint has lost rows.

    write: makes its checkpoints itself, and one commit at most, however often it is called.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return write()
        except Exception as error:
            if _LOST not in str(error):
                raise
            logging.getLogger(__name__).warning("an executor was lost with rows it had computed: computing them again")
    return write()
