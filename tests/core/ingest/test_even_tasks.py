"""The size of the tasks that scan a batch's files."""

from __future__ import annotations

import pytest

from pgoutput_etl.ingest.listing import even_bytes

MB = 1 << 20


@pytest.mark.parametrize(
    ("total", "cores", "tasks"),
    [(300 * MB, 2, 4), (256 * MB, 2, 2), (10 * MB, 2, 2), (1000 * MB, 2, 8), (1000 * MB, 3, 9), (5 * MB, 8, 8)],
)
def test_every_core_gets_as_many_tasks(total: int, cores: int, tasks: int) -> None:
    size = even_bytes(total, cores)
    assert -(-total // size) == tasks
    assert size <= 1.06 * (128 * MB) + 2
