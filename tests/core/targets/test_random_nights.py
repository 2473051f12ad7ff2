"""Random histories of a model server, divided into nights at any place: after each night the planned tables equal the
replay's, and each has the state that its committed rows imply."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pgoutput_etl.config.rules import TableRule
from pgoutput_etl.config.settings import Config
from pgoutput_etl.targets.plan import SKIPPED
from pgoutput_etl.targets.write_method import WriteMethod
from tests.support.archived_tables import EVER
from tests.support.model.history import History, Night, random_history, random_options
from tests.support.nights import CONFIG, Nights
from tests.support.small_archives import copydata

SEEDS, OF_SOAK = 40, 6000
_AT_ONCE = 20


def history_of(seed: int) -> tuple[History, Sequence[Night]]:
    chance = random.Random(seed)
    history = random_history(chance, random_options(chance))
    return history, history.nights(chance)


def run(seed: int) -> Nights:
    history, nights = history_of(seed)
    known = history.archived_at(EVER)
    found = Nights(unknowable={oid for oid, table in known.items() if not table.knowable})
    for night in nights:
        found.night([copydata(messages) for messages in night])
        found.assert_as_replayed()
    return found


def skipping(chance: random.Random) -> Config:
    """One night's configuration, which skips some tables."""
    names = [f"public.table{n}" for n in range(1, 12)]
    rules = tuple(TableRule(name, skip=True) for name in names if chance.random() < 0.3)
    return replace(CONFIG, tables=rules if chance.random() < 0.7 else ())


@pytest.mark.parametrize("first", range(0, SEEDS, _AT_ONCE))
def test_every_night_equals_the_replay(first: int) -> None:
    methods = Counter[WriteMethod]()
    for seed in range(first, first + _AT_ONCE):
        methods += run(seed).methods
    assert methods.keys() >= {WriteMethod.OVERWRITE, WriteMethod.APPEND, WriteMethod.MERGE}


@pytest.mark.parametrize("first", range(0, SEEDS // 2, _AT_ONCE))
def test_a_table_that_is_sometimes_skipped_is_complete_or_marked_incomplete(first: int) -> None:
    skipped = 0
    for seed in range(first, first + _AT_ONCE):
        found, chance = Nights(), random.Random(seed)
        _, nights = history_of(seed)
        for night in nights:
            found.night([copydata(messages) for messages in night], skipping(chance))
            found.assert_as_replayed()
        skipped += sum(state.status == SKIPPED for state in found.states.values())
    assert skipped


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, OF_SOAK, _AT_ONCE))
def test_thousands_more(first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        run(seed)
