"""A receiver that is killed and connects again: its random connections, and files and nights cut at random."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import TypeVar

from tests.support.model.slot import Connection, Eviction
from tests.support.model.wal import Commit, Prepare, Record, end_of

T = TypeVar("T")
_EVERYTHING = 1 << 20


class TwoPhase(Enum):
    """LATER: switched on for an existing slot."""

    OFF = "off"
    ON = "on"
    LATER = "later"


def random_connections(
    chance: random.Random, wal: Sequence[Record], count: int, two_phase: TwoPhase, eviction_chance: float
) -> list[Connection]:
    """Each begins at an LSN that the receiver has confirmed; the last one does not end."""
    connections: list[Connection] = []
    confirmed = [0]
    two_phase_at = 0 if two_phase is TwoPhase.ON else None
    on_from = chance.randrange(count) if two_phase is TwoPhase.LATER else count
    for number in range(count):
        if chance.random() < 0.2:  # after a crash, the server has the slot's state from disk
            del confirmed[chance.randrange(len(confirmed)) + 1 :]
        begins_at = max(confirmed[-1], two_phase_at or 0)
        if number >= on_from and two_phase_at is None:
            two_phase_at = begins_at
        evictions = _random_evictions(chance, wal, eviction_chance)
        early = frozenset(record.lsn for record in wal if chance.random() < 0.02)
        connection = Connection(begins_at, two_phase_at, chance.random() < 0.4, evictions, early)
        sent = [record for record in wal if record.lsn >= begins_at]
        if number < count - 1 and sent:
            connection = _cut_off(chance, connection, sent)
            ends_at = connection.ends_at
            assert ends_at is not None
            received = [record.lsn for record in sent if record.lsn <= ends_at]
            if connection.ends_after == _EVERYTHING:
                received.append(end_of(ends_at))
            confirmed.append(chance.choice((begins_at, received[-1], chance.choice(received))))
        connections.append(connection)
        if connection.ends_at is None:
            break
    return connections


def are_possible(connections: Sequence[Connection]) -> bool:
    """True if no connection begins after the end of earlier ones, or before two-phase decoding was switched on."""
    received = 0
    two_phase_at: int | None = None
    for number, connection in enumerate(connections):
        is_last = number == len(connections) - 1
        if connection.begins_at > received or (connection.ends_at is None) != is_last:
            return False
        if two_phase_at is not None and connection.two_phase_at != two_phase_at:
            return False
        two_phase_at = connection.two_phase_at
        if connection.begins_at < (two_phase_at or 0):
            return False
        if connection.ends_at is not None:
            is_whole = connection.ends_after == _EVERYTHING
            received = max(received, end_of(connection.ends_at) if is_whole else connection.ends_at)
    return True


def _random_evictions(chance: random.Random, wal: Sequence[Record], eviction_chance: float) -> dict[int, Eviction]:
    draw = chance.random
    lsns = [record.lsn for record in wal if draw() < eviction_chance]
    return {lsn: Eviction(int(draw() * 4), int(draw() * 4)) for lsn in lsns}


def _cut_off(chance: random.Random, connection: Connection, sent: Sequence[Record]) -> Connection:
    """Ends the connection at a random record, mostly while the server sends a transaction or a segment."""
    sends_much = [record.lsn for record in sent if isinstance(record, Commit | Prepare)]
    sends_much += [lsn for lsn in connection.evictions if lsn >= connection.begins_at]
    if sends_much and chance.random() < 0.7:
        return replace(connection, ends_at=chance.choice(sends_much), ends_after=chance.choice((0, 1, 2, 3, 5, 9)))
    return replace(connection, ends_at=chance.choice(sent).lsn, ends_after=_EVERYTHING)


def divided(chance: random.Random, things: Sequence[T], most: int) -> list[list[T]]:
    """Cut anywhere into at most `most` parts, which may be empty."""
    ends = sorted(chance.randint(0, len(things)) for _ in range(chance.randrange(most)))
    return [list(things[a:b]) for a, b in zip([0, *ends], [*ends, len(things)], strict=True)]
