"""Tells a file that was repaired from another file under its name."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from pgoutput_etl.landing.repaired_files import resembles
from tests.support import encoder
from tests.support.mutations import SLOTS
from tests.support.scan_parts import messages_of

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


def test_damage_in_two_places_leaves_most_blocks() -> None:
    repaired = random.Random(1).randbytes(3_000_000)
    damaged = bytearray(repaired)
    damaged[100_000] ^= 1
    damaged[2_900_000] ^= 1
    assert resembles(bytes(damaged), repaired)


@pytest.mark.parametrize("slot", SLOTS)
@pytest.mark.parametrize("size", [60, 500])  # a few messages with the same long value resemble each other
def test_two_files_of_a_receiver_are_different_files(slot: str, size: int) -> None:
    messages = messages_of(slot)
    files = [encoder.length_prefixed(messages[n : n + size]) for n in range(0, len(messages), size)]
    for one, other in pairwise(files):
        assert not resembles(one, other)
        assert not resembles(other, one)
