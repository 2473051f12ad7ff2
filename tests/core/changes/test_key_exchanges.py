"""Rows that exchange their keys within a transaction."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.deferred_keys import DeferredKeys
from tests.support.small_archives import Messages, T, replayed, transaction

KEY = {"public.t": ("pos",)}


@pytest.mark.parametrize("seed", range(20))
def test_random_exchanges_replayed(seed: int) -> None:
    server = DeferredKeys(Random(seed))
    messages: Messages = []
    for number in range(12):
        described = [] if number else [server.relation]
        messages += transaction(100 + number, (number + 1) * 1000, *described, *server.transaction())
        found = replayed(messages).tables(KEY)[T]
        assert sorted((row["pos"], row["v"], row["big"]) for row in found.rows) == sorted(server.rows)
        assert found.mismatches is None
