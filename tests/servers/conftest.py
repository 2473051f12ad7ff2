"""Servers for several modules. A module has its own if its tests leave types and tables behind."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from tests.support.servers.postgres import Server, Servers, Version


@pytest.fixture(scope="module", params=[pytest.param(16, marks=pytest.mark.soak), 18])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(version=request.param) as running:
        yield running


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """One server per version, started by the first test that needs it, for tests with databases of their own."""
    started: list[Server] = []

    @cache
    def server(version: Version) -> Server:
        started.append(Server(version))
        return started[-1]

    yield server
    for running in started:
        running.stop()
