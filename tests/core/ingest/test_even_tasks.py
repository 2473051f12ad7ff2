"""The size of the tasks that scan a batch's files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.ingest.listing import even_bytes, even_parts

MB = 1 << 20


@pytest.mark.parametrize(
    ("total", "cores", "tasks"),
    [(300 * MB, 2, 4), (256 * MB, 2, 2), (10 * MB, 2, 2), (1000 * MB, 2, 8), (1000 * MB, 3, 9), (5 * MB, 8, 8)],
)
def test_every_core_gets_as_many_tasks(total: int, cores: int, tasks: int) -> None:
    size = even_bytes(total, cores)
    assert -(-total // size) == tasks
    assert size <= 1.06 * (128 * MB) + 2


@given(st.lists(st.integers(0, 300 * MB), min_size=1, max_size=60), st.integers(1, 8))
def test_parts_have_every_path_once_and_in_order(sizes: list[int], cores: int) -> None:
    by_path = {f"file:/{number}": size for number, size in enumerate(sizes)}
    parts = even_parts(by_path, by_path, cores)
    assert [path for part in parts for path in part] == list(by_path)
    assert all(parts)


def test_parts_are_about_equal() -> None:
    small = {f"file:/{number}": 3000 for number in range(10_000)}
    large = {f"file:/{number}": 33 * MB for number in range(32)}
    assert {len(part) for part in even_parts(small, small, 2)} == {1000}
    assert sorted(len(part) for part in even_parts(large, large, 2)) == [3] * 8 + [4] * 2
    assert even_parts(["file:/a", "file:/b"], {}, 2) == [["file:/a"], ["file:/b"]]
