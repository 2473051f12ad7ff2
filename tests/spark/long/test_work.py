"""What more cores don't shorten stays small: the driver's work, what goes to the driver, and stages of a single task.

Shares of processor time within one night, and counts. The limits are those of docs/performance.md, "Scaling out".
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import corpora
from benchmarks.streamed_corpus import streamed
from benchmarks.tables_corpus import many_tables
from benchmarks.work import NightWork, measure_night

pytestmark = [pytest.mark.spark, pytest.mark.soak]

LONGEST_TASK = 0.15  # of the executors' processor time: a stage with a single task, in a night of one large table
TO_THE_DRIVER = 0.05  # of the landed bytes; 0.03 were counted
STAGES_PER_TABLE = 14  # with a single task
DRIVER_PYTHON = 0.1  # of the processor time of all processes


@pytest.fixture(autouse=True)
def build_in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "BUILD", tmp_path)


def _executors(night: NightWork) -> float:
    return night.executors + night.python_workers


def test_a_large_table_is_not_reduced_in_one_task(tmp_path: Path) -> None:
    """It has more than the 64 MB of changes that one task reduces."""
    corpus = streamed(800_000, 4)
    assert corpus.landed.bytes > 80_000_000

    [night] = measure_night("streamed", corpus, 2, 0, tmp_path / "work")

    assert night.longest_single < LONGEST_TASK * _executors(night)
    assert night.driver_python < DRIVER_PYTHON * (night.driver_python + night.driver_jvm + _executors(night))
    assert night.collected < TO_THE_DRIVER * corpus.landed.bytes


def test_a_further_table_adds_a_few_stages_of_one_task(tmp_path: Path) -> None:
    few, more = (measure_night("tables", many_tables(n, 1), 2, 0, tmp_path / f"work{n}")[0] for n in (2, 10))

    assert 0 < (more.single - few.single) / 8 <= STAGES_PER_TABLE
    # Starting a Python worker takes most of it, so it is no share of a night that has hardly any work.
    assert more.longest_single < 2 * few.longest_single
    assert more.driver_python < DRIVER_PYTHON * (more.driver_python + more.driver_jvm + _executors(more))
