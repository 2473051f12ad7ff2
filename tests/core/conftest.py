"""What tests of the core share."""

from __future__ import annotations

import sys

import pytest

from tests.support.mutations import Tell


@pytest.fixture
def tell(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> Tell:
    """Prints a figure of a test, captured or not."""

    def say(what: str, figure: object) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{request.node.name}: {what}: {figure}\n")

    return say
