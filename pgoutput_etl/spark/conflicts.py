"""Repeats writes that lost to another commit to the same Delta table."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from delta import exceptions

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

_ATTEMPTS = 10

_PAUSE = 0.5  # seconds, twice as long after each attempt, and at random, so that two writers part

_LONGEST_PAUSE = 30.0


def again_after_conflict(write: Callable[[], T]) -> T:
    """The result of `write`, which is called up to ten times while other commits win. Raises the last one's conflict.

    write: makes commits that carry a transaction identifier, or that make no difference when they are repeated.
    """
    for attempt in range(_ATTEMPTS - 1):
        try:
            return write()
        except CONFLICTS as error:
            logging.getLogger(__name__).info("another commit came first (%s): trying again", type(error).__name__)
            time.sleep(min(_PAUSE * 2**attempt, _LONGEST_PAUSE) * random.uniform(0.5, 1))
    return write()
