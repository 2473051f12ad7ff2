"""`python -m benchmarks … --check` compares figures with goals."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks.goals import GOALS, checked


def small(jobs: float, seconds: float) -> list[dict[str, Any]]:
    one = {"night": "warm", "tables": 1, "jobs": 1, "cpu": 1.0, "seconds": 1.0}
    return [
        one,
        {**one, "tables": 10, "jobs": 1 + 9 * jobs, "seconds": 1 + 9 * seconds},
        {**one, "tables": 0, "jobs": 0},
    ]


def test_each_further_table_is_the_growth_with_tables() -> None:
    found = [(row.measure, row.found, row.reached) for row in checked({"small": small(2, 0.0625)})]
    assert ("each further small table, Spark jobs", 2, False) in found
    assert ("each further small table, s", 0.0625, True) in found


@pytest.mark.parametrize(("found", "code"), [({"small": small(1, 0.05)}, 0), ({"small": small(1, 0.1)}, 1), ({}, 2)])
def test_the_exit_code(found: dict[str, Any], code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    parts = {name: lambda *_, results=results: results for name, results in (found or {"merge": []}).items()}
    monkeypatch.setattr(benchmarks, "PARTS", parts)
    given = ["benchmarks", *parts, "--check", "--json", str(tmp_path / "bench.json")]
    monkeypatch.setattr("sys.argv", given)
    assert benchmarks.main() == code


def test_goals_name_parts() -> None:
    assert {goal.part for goal in GOALS} <= benchmarks.PARTS.keys()
