"""Catalog Messages of the versions that the other tests leave out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.test_catalog import SENDER, assert_as_expected, assert_right_every_night
from tests.servers.test_sql_cases import ONLY_THE_JOB
from tests.support.judged_targets import in_memory
from tests.support.servers import embedded
from tests.support.servers.postgres import Servers, Version
from tests.support.servers.sql_cases import SqlCase, all_cases

pytestmark = [
    *(pytest.mark.e2e, pytest.mark.soak),
    pytest.mark.skipif(not embedded.is_available(), reason="npm, which has these servers, is not installed"),
]

OPTIONS: list[tuple[Version, int, dict[str, str]]] = [
    (14, 1, {}),
    (17, 4, {"streaming": "parallel"}),
    (14, 2, {"streaming": "on", "binary": "true"}),
    (17, 3, {"streaming": "on", "binary": "true"}),
]


@pytest.mark.parametrize("seed", range(1000, 1200))
def test_a_random_history(seed: int, servers: Servers, tmp_path: Path) -> None:
    version, protocol, options = OPTIONS[seed % len(OPTIONS)]
    assert_right_every_night(servers(version), seed, tmp_path, protocol, options)


_NEWER = {"column_list_without_key_part"}  # than 14, like all cases for 18

_CASES = [
    pytest.param(version, case, id=f"{version}-{case.name}")
    for version in (14, 17)
    for case in all_cases()
    if case.name not in {**SENDER, **ONLY_THE_JOB} and "generated" not in case.flags
    if version == 17 or (case.version < 18 and case.name not in _NEWER)
]


@pytest.mark.parametrize(("version", "case"), _CASES)
def test_a_case(version: Version, case: SqlCase, servers: Servers, tmp_path: Path, landing: Path) -> None:
    assert_as_expected(case, servers(version), landing, in_memory(tmp_path, landing, case.rules))
