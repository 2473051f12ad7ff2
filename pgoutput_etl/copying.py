"""Kernels: short runs of bytes copied in blocks, which is faster than to ask how long each of them is."""

from __future__ import annotations

from typing import Any

import numpy

from pgoutput_etl.compiled import copy_block, inlined

np: Any = numpy  # its stubs know nothing of numba's scalars

PADDING = 32  # bytes: as many as are copied at once
_BLOCK = np.uint64(PADDING)
_BLOCK_BITS = np.uint64(0xFFFFFFFF)
_HIGH_BIT = np.uint64(0x80)
_0, _1 = np.uint64(0), np.uint64(1)


@inlined
def copied(data: Any, begin: Any, end: Any, out: Any, to: Any) -> Any:
    """Copies data[begin:end] to out[to:], which has room for PADDING bytes more; 0 if all of them are ASCII.

    All places are uint64. What is behind the copy is overwritten; so copies are made in order.
    """
    past_ascii = _0
    room = data.shape[0] - PADDING
    if room >= 0:
        while end - begin > _BLOCK and begin <= np.uint64(room):
            past_ascii |= copy_block(data, begin, out, to)
            begin += _BLOCK
            to += _BLOCK
        if begin <= np.uint64(room):
            return past_ascii | copy_block(data, begin, out, to) & (_BLOCK_BITS >> (_BLOCK - (end - begin)))
    while begin < end:
        past_ascii |= np.uint64(data[begin]) & _HIGH_BIT
        out[to] = data[begin]
        begin += _1
        to += _1
    return past_ascii
