"""Archives of random histories replay to the model server's tables, as far as an archive contains them."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.archived_tables import (
    assert_archived,
    assert_named,
    assert_nothing_waits_for_what_came,
    replayed_nightly,
)
from tests.support.model.history import random_history, random_options

_AT_ONCE = 50
SEEDS = [
    pytest.param(range(n, n + _AT_ONCE), marks=() if n < 150 else pytest.mark.soak) for n in range(0, 20_000, _AT_ONCE)
]


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_the_replay_equals_the_servers_tables(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        chance = random.Random(seed)
        # A transaction that was prepared in one connection and is streamed in the next stays open: see test_resends.
        history = random_history(chance, replace(random_options(chance), evicts_prepared=False))
        replay = replayed_nightly(history, chance)
        try:
            assert_archived(history, replay)
            assert_named(history, replay)
            assert_nothing_waits_for_what_came(history, replay)
            if history.commit_lsns:
                assert_archived(history, replay, chance.choice(history.commit_lsns))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        tables = history.archived_at(1 << 62).values()
        seen["knowable"] += sum(table.knowable for table in tables)
        seen["rows"] += sum(len(table.rows) for table in tables if table.knowable)
    assert seen["knowable"] > len(seeds)
    assert seen["rows"] > 2 * len(seeds)
