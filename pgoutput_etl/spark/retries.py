"""Repeats writes that lost to another commit on the same Delta table, or whose computed rows were lost with an
executor."""

from __future__ import annotations

import logging
from contextlib import suppress
from importlib import import_module

from delta import exceptions
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

with suppress(ImportError):  # a client of Spark Connect only
    # Turns Java's errors into these classes. Delta Lake 4.0 leaves the import to its users.
    import_module("delta.exceptions.captured")

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

# Spark can't recompute the rows of a local checkpoint (DataFrame.localCheckpoint), which have no lineage. Delta's MERGE
# makes one, too.
_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"

# A task failed too often (spark.task.maxFailures), the last time because its executor was lost.
_LOST_EXECUTOR = "ExecutorLostFailure"

_ATTEMPTS = 10

# In seconds: longer after each attempt, and random, so that two writers get out of step.
_PAUSES = wait_random_exponential(multiplier=0.5, max=30)


def was_lost(error: Exception) -> bool:
    """True if Spark gave up on a job because it lost executors."""
    return _LOST_EXECUTOR in str(error)


def _may_succeed(error: BaseException) -> bool:
    return isinstance(error, CONFLICTS) or _LOST in str(error)


def _pause(state: RetryCallState) -> float:
    return _PAUSES(state) if isinstance(_error(state), CONFLICTS) else 0.0


def _log(state: RetryCallState) -> None:
    log, error = logging.getLogger(__name__), _error(state)
    if isinstance(error, CONFLICTS):
        log.info("another commit came first (%s): trying again", type(error).__name__)
    else:
        log.warning("an executor was lost with rows it had computed: computing them again")


def _error(state: RetryCallState) -> BaseException | None:
    return None if state.outcome is None else state.outcome.exception()


# Calls a function that writes, up to ten times, while other commits win or a local checkpoint has lost rows. Raises the
# last error. The function must make its checkpoints itself, and its commits must carry a transaction identifier or be
# harmless when repeated.
again = Retrying(
    retry=retry_if_exception(_may_succeed),
    stop=stop_after_attempt(_ATTEMPTS),
    wait=_pause,
    before_sleep=_log,
    reraise=True,
)
