"""Bytes copied in blocks: those that are meant, and whether all of them are ASCII."""

from __future__ import annotations

import numpy as np
import pytest

from pgoutput_etl import jit
from pgoutput_etl.jit import PADDING, copied

pytestmark = pytest.mark.skipif(not jit.AVAILABLE, reason="kernels need numba")


@pytest.mark.parametrize("behind", [0, 1, 31, 32, 33])
@pytest.mark.parametrize("before", [0, 1, 40])
def test_a_run_of_any_size_is_copied_and_looked_at_to_its_end(before: int, behind: int) -> None:
    for size in range(100):
        data = np.arange(before + size + behind, dtype=np.uint8) % 127
        data[:before] = data[before + size :] = 0xFF
        meant = data[before : before + size].tobytes()
        out = np.full(3 + size + PADDING + 1, 7, np.uint8)
        assert copied(data, np.uint64(before), np.uint64(before + size), out, np.uint64(3)) == 0
        assert out[:3].tolist() == [7, 7, 7]
        assert out[3 : 3 + size].tobytes() == meant
        assert out[-1] == 7
        for at in {0, size // 2, size - 1} if size else set():
            changed = data.copy()
            changed[before + at] = 0x80
            assert copied(changed, np.uint64(before), np.uint64(before + size), out, np.uint64(0)) != 0
