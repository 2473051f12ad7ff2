"""Tells a damaged file that was repaired from another file under its name."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

# Blocks of two files at the same offset: so long that only copies of the same bytes are equal.
_BLOCK = 512

_PART = 1 << 20  # compared at once; a whole number of blocks

_Bytes = NDArray[np.uint8]


def resembles(old: bytes, new: bytes) -> bool:
    """True if the new content is the old one, repaired: at least half of the old bytes are in it, at its beginning, at
    its end, or in blocks at the same offset. A receiver that uses a renamed file's name again writes something else."""
    first, second = np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)
    at_ends = _equal_from_start(first, second) + _equal_from_start(first[::-1], second[::-1])
    return 2 * max(at_ends, _in_equal_blocks(first, second)) >= len(old)


def _equal_from_start(first: _Bytes, second: _Bytes) -> int:
    equal = 0
    for part in _compared(first, second):
        if not part.all():
            return equal + int(np.argmin(part))
        equal += len(part)
    return equal


def _in_equal_blocks(first: _Bytes, second: _Bytes) -> int:
    whole = (part[: len(part) // _BLOCK * _BLOCK].reshape(-1, _BLOCK) for part in _compared(first, second))
    return _BLOCK * sum(int(np.count_nonzero(blocks.all(axis=1))) for blocks in whole)


def _compared(first: _Bytes, second: _Bytes) -> Iterator[NDArray[np.bool_]]:
    """Which bytes at the same offset are equal, part by part, so that large files need no memory of their size."""
    for at in range(0, min(len(first), len(second)), _PART):
        end = min(at + _PART, len(first), len(second))
        yield first[at:end] == second[at:end]
