"""Archives with catalog Messages: what is a fact then, on real servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.judged_targets import in_memory
from tests.support.servers.postgres import Server, Version
from tests.support.servers.sql_cases import SqlCase, all_cases
from tests.support.verdicts import Verdict

pytestmark = pytest.mark.e2e

Servers = Callable[[Version], Server]


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    """One server per version, started by the first case that needs it."""
    started: list[Server] = []

    @cache
    def server(version: Version) -> Server:
        started.append(Server(version))
        return started[-1]

    yield server
    for running in started:
        running.stop()


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in all_cases()])
def test_a_case(case: SqlCase, servers: Servers, tmp_path: Path, landing: Path) -> None:
    target = in_memory(tmp_path, landing, case.rules)
    nights = case.judged_nights(servers(case.version), landing, target, has_catalog=True)
    for number, judgments in enumerate(nights, start=1):
        wrong = {name: j.difference for name, j in judgments.items() if j.verdict is Verdict.OTHER}
        assert wrong == {}, f"night {number}"
