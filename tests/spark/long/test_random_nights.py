"""A dozen random histories of a model server, through the job."""

from __future__ import annotations

import random

import pytest

from pgoutput_etl.replay.mirror import Replay
from tests.support.fault_runs import FaultyJob
from tests.support.jobs import Nights, held
from tests.support.model.history import random_history, random_options
from tests.support.small_archives import copydata

pytestmark = [pytest.mark.spark, pytest.mark.soak]


@pytest.mark.parametrize("seed", range(9000, 9012))
def test_a_random_history_through_the_job(nights: Nights, seed: int) -> None:
    chance = random.Random(seed)
    history = random_history(chance, random_options(chance))
    replay, files = Replay(), 0
    for night in history.nights(chance):
        for messages in night:
            content = copydata(messages, 0x1000000 * (files + 1))
            (nights.job.landing / f"{files:03}.copydata").write_bytes(content)
            replay.add_file(f"{files:03}", content)
            files += 1
        assert held(nights.job.run()) == {}
        FaultyJob(nights.job).assert_as_replayed(replay)
