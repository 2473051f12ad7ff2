"""The five nights that the job is measured with."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.corpora import Corpus
from benchmarks.pgbench_corpus import pgbench


def scaled(number: int, scale: float, least: int = 1) -> int:
    return max(round(number * scale), least)


# By name: an archive of a size; 1 is what is reported.
SCENARIOS: dict[str, Callable[[float], Corpus]] = {
    "pgbench": lambda scale: pgbench(scaled(840_000, scale), scaled(1_000_000, scale), 8),
}
