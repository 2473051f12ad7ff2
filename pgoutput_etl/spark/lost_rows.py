"""Repeats a write whose computed rows were lost with the executor that held them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

# Spark can't compute the rows of a local checkpoint (DataFrame.localCheckpoint) again, as they have no lineage. Delta's
# MERGE makes one, too.
_LOST = "CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND"

_ATTEMPTS = 8


def again_if_lost(write: Callable[[], T]) -> T:
    """The result of `write`, which is called up to eight times while a local checkpoint has lost rows.

    write: makes its checkpoints itself, and one commit at most, however often it is called.
    """
    for left in reversed(range(_ATTEMPTS)):
        try:
            return write()
        except Exception as error:
            if not left or _LOST not in str(error):
                raise
            logging.getLogger(__name__).warning("an executor was lost with rows it had computed: computing them again")
    raise AssertionError
