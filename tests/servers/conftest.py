"""Servers for several modules. Each module has its own, as tests leave types and tables behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.servers.postgres import Server


@pytest.fixture(scope="module", params=[pytest.param(16, marks=pytest.mark.soak), 18])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(version=request.param) as running:
        yield running
