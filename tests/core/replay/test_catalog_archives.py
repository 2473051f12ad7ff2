"""Random archives with catalog Messages: throughout, or from or to somewhere in the middle."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.support.archived_tables import EVER, loaded_rows, replayed_nightly
from tests.support.model.history import History, Night, random_history, random_options
from tests.support.model.truth import Table
from tests.support.nights import Nights
from tests.support.small_archives import copydata

_AT_ONCE = 50
SEEDS = [
    pytest.param(range(n, n + _AT_ONCE), marks=() if n < 100 else pytest.mark.soak) for n in range(0, 10_000, _AT_ONCE)
]


def history_of(seed: int, catalog: range) -> History:
    """Messages of every transaction arrive: none is from another server."""
    chance = random.Random(seed)
    options = random_options(chance)
    while options.server_version < 14:
        options = random_options(chance)
    options = replace(options, messages=True, publishes_origins=True, evicts_prepared=False, catalog=catalog)
    return random_history(chance, options)


def current_tables(history: History) -> list[Table]:
    """Those whose last row came under their present definition."""
    current = history.truth.as_sent_at(EVER)
    return [table for oid, table in history.tables_at(EVER).items() if oid in current]


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_tables_equal_the_servers_without_a_declaration(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        history = history_of(seed, range(EVER))
        replay = replayed_nightly(history, random.Random(seed))
        definitions = replay.assembly.relations.definitions
        assert (definitions.refused, definitions.unknown()) == ({}, set()), seed
        found = replay.tables()
        for table in current_tables(history):
            columns = [column.name for column in found[table.oid].shape.columns if not column.retired]
            rows = sorted((tuple(row[name] for name in columns) for row in found[table.oid].rows), key=repr)
            if tuple(columns) == table.columns:  # a column list may leave some out
                assert rows == loaded_rows(table), f"seed {seed}, OID {table.oid}"
                seen["rows"] += len(rows)
        seen["definitions"] += len(definitions._committed)
    assert min(seen["rows"], seen["definitions"]) > len(seeds)


def tables_after(nights: list[Night]) -> dict[int, tuple[str, list[str]]]:
    """Place and rows of each complete table."""
    found = Nights()
    for night in nights:
        found.night([copydata(messages) for messages in night])
    return {oid: (str(state.path), found.rows(oid)) for oid, state in found.states.items() if state.is_complete}


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_the_division_into_nights_makes_no_difference(seeds: range) -> None:
    for seed in seeds[::2]:
        chance = random.Random(seed)
        history = history_of(seed, range(chance.choice([0, 30]), chance.choice([30, EVER])))
        nights = history.nights(chance)
        assert tables_after(nights) == tables_after([[file for night in nights for file in night]]), seed
