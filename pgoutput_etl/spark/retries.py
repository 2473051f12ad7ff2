"""Repeats writes that lost to another commit to the same Delta table, or whose computed rows were lost with an
executor."""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import ParamSpec, TypeVar

from delta import exceptions

with suppress(ImportError):  # a client of Spark Connect only
    # Turns Java's errors into these classes. Delta Lake 4.0 leaves the import to its users.
    import_module("delta.exceptions.captured")

P = ParamSpec("P")

T = TypeVar("T")

# Raised when another commit wins; the write can be repeated at any time.
CONFLICTS = (
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteDeleteException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentTransactionException,
    exceptions.ConcurrentWriteException,
    exceptions.MetadataChangedException,
    exceptions.ProtocolChangedException,
)

# Spark can't compute the rows of a local checkpoint (DataFrame.localCheckpoint) again, as they have no lineage. Delta's
# MERGE makes one, too.
_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"

# A task failed too often (spark.task.maxFailures), at last because its executor was lost.
_LOST_EXECUTOR = "ExecutorLostFailure"

_CONFLICT_ATTEMPTS, _LOST_ATTEMPTS = 10, 8

_PAUSE = 0.5  # seconds, twice as long after each attempt, and at random, so that two writers part

_LONGEST_PAUSE = 30.0


def was_lost(error: Exception) -> bool:
    """True if Spark gave up a job because it lost executors."""
    return _LOST_EXECUTOR in str(error)


def again(write: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
    """The result of `write`, which is called up to ten times while other commits win, and up to eight times while a
    local checkpoint has lost rows. Raises the last error.

    write: makes its checkpoints itself, and commits that carry a transaction identifier, or that make no difference
    when they are repeated.
    """
    failures: Counter[bool] = Counter()
    while True:
        try:
            return write(*given, **named)
        except Exception as error:
            is_conflict = isinstance(error, CONFLICTS)
            failures[is_conflict] += 1
            is_last = failures[is_conflict] >= (_CONFLICT_ATTEMPTS if is_conflict else _LOST_ATTEMPTS)
            if is_last or not (is_conflict or _LOST in str(error)):
                raise
            _prepare_another(error, failures[True] if is_conflict else 0)


def _prepare_another(error: Exception, conflicts: int) -> None:
    log = logging.getLogger(__name__)
    if not conflicts:
        log.warning("an executor was lost with rows it had computed: computing them again")
        return
    log.info("another commit came first (%s): trying again", type(error).__name__)
    time.sleep(min(_PAUSE * 2 ** (conflicts - 1), _LONGEST_PAUSE) * random.uniform(0.5, 1))
