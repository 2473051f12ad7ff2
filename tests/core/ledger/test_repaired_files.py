"""Tells a file that was repaired from another file under its name."""

from __future__ import annotations

import pytest

from pgoutput_etl.ledger.archive import resembles

DAMAGED = bytes(range(200))


@pytest.mark.parametrize(
    "repaired",
    [
        DAMAGED[:150] + b"?" + DAMAGED[151:],
        DAMAGED[:90] + b"more" + DAMAGED[150:],
        b"?" * 90 + DAMAGED[90:],
        DAMAGED + b"more",
        DAMAGED[:120],
        b"more" + DAMAGED,
        DAMAGED,
    ],
)
def test_a_repaired_file_has_most_of_the_bytes(repaired: bytes) -> None:
    assert resembles(DAMAGED, repaired)


@pytest.mark.parametrize("other", [b"", DAMAGED[:50], DAMAGED[::-1], DAMAGED[:20] + DAMAGED[::-1], bytes(200)])
def test_another_file_has_few_of_them(other: bytes) -> None:
    assert not resembles(DAMAGED, other)
