"""A smaller history that fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.support.model.history import History
from tests.support.model.receiver import are_possible
from tests.support.model.slot import Connection

T = TypeVar("T")
Fails = Callable[[History], bool]


def shrink(history: History, fails: Fails) -> History:
    """The smallest history found for which `fails` is still true."""
    smaller: History | None = history
    while smaller is not None:
        history = smaller
        smaller = next((candidate for candidate in _smaller(history) if fails(candidate)), None)
    return history


def _smaller(history: History) -> Iterator[History]:
    for connections in _fewer(history.connections):
        if are_possible(connections):
            yield replace(history, connections=connections)
    for actions in _without_parts(history.actions):
        yield replace(history, actions=actions)
    for number, connection in enumerate(history.connections):
        for simpler in _simpler(connection):
            connections = [*history.connections[:number], simpler, *history.connections[number + 1 :]]
            if are_possible(connections):
                yield replace(history, connections=connections)


def _fewer(connections: Sequence[Connection]) -> Iterator[Sequence[Connection]]:
    *earlier, last = connections
    for left in _without_parts(earlier):
        yield [*left, last]
        yield [*left, replace(last, begins_at=last.two_phase_at or 0)]


def _without_parts(things: Sequence[T]) -> Iterator[Sequence[T]]:
    """The sequence without a half, a quarter, … one of its elements."""
    size = (len(things) + 1) // 2
    while size:
        for begin in range(0, len(things), size):
            yield [*things[:begin], *things[begin + size :]]
        size //= 2


def _simpler(connection: Connection) -> Iterator[Connection]:
    if connection.lags:
        yield replace(connection, lags=False)
    if connection.early_invalidations:
        yield replace(connection, early_invalidations=frozenset())
    if connection.begins_at != (connection.two_phase_at or 0):
        yield replace(connection, begins_at=connection.two_phase_at or 0)
    for evictions in _without_parts(sorted(connection.evictions.items())):
        yield replace(connection, evictions=dict(evictions))
