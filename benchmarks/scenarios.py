"""The job's five scenarios."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.corpora import Corpus
from benchmarks.pgbench_corpus import pgbench
from benchmarks.streamed_corpus import streamed
from benchmarks.tables_corpus import many_tables
from benchmarks.wide_corpus import wide


def scaled(number: int, scale: float, least: int = 1) -> int:
    return max(round(number * scale), least)


# Archives by name, for a scale; reported figures have scale 1. Beyond it, archives have more files, not larger ones.
SCENARIOS: dict[str, Callable[[float], Corpus]] = {
    "pgbench": lambda scale: pgbench(scaled(840_000, scale), scaled(1_000_000, scale), scaled(8, scale, 8)),
    "wide": lambda scale: wide(scaled(950_000, scale, 1000), scaled(32, scale, 32)),
    "tables": lambda scale: many_tables(scaled(200, scale, 2), scaled(4, scale, 4)),
    "files": lambda scale: pgbench(scaled(100_000, scale), scaled(100_000, scale), scaled(10_000, scale), name="files"),
    "streamed": lambda scale: streamed(scaled(5_000_000, scale, 10_000), scaled(8, scale, 8)),
}
