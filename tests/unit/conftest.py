"""Servers that several modules ask for. Each module has its own, as it leaves types and tables behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.mutations import Tell
from tests.postgres import Server


@pytest.fixture(scope="module", params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(version=request.param) as running:
        yield running


@pytest.fixture
def tell(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Tell:
    """Prints a figure of a test, captured or not."""

    def say(what: str, figure: object) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{request.node.name}: {what}: {figure}\n")

    return say
