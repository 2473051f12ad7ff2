"""Copying bytes in blocks, and detecting those that are not ASCII."""

from __future__ import annotations

import numpy as np
import pytest

from pgoutput_etl import jit
from pgoutput_etl.jit import PADDING, copy_bytes

pytestmark = pytest.mark.skipif(not jit.AVAILABLE, reason="kernels need numba")


@pytest.mark.parametrize("after", [0, 1, 31, 32, 33])
@pytest.mark.parametrize("before", [0, 1, 40])
def test_bytes_of_any_size_are_copied_and_checked_to_the_end(before: int, after: int) -> None:
    for size in range(100):
        data = np.arange(before + size + after, dtype=np.uint8) % 127
        data[:before] = data[before + size :] = 0xFF
        content = data[before : before + size].tobytes()
        out = np.full(3 + size + PADDING + 1, 7, np.uint8)
        assert copy_bytes(data, np.uint64(before), np.uint64(before + size), out, np.uint64(3)) == 0
        assert out[:3].tolist() == [7, 7, 7]
        assert out[3 : 3 + size].tobytes() == content
        assert out[-1] == 7
        for at in {0, size // 2, size - 1} if size else set():
            changed = data.copy()
            changed[before + at] = 0x80
            assert copy_bytes(changed, np.uint64(before), np.uint64(before + size), out, np.uint64(0)) != 0
