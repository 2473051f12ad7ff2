"""How the job's seconds grow: with the archive, with cores, with tables and with files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from benchmarks.corpora import Corpus
from benchmarks.jobs import configured, run_job
from benchmarks.pgbench_corpus import pgbench
from benchmarks.scenarios import scaled
from benchmarks.sessions import WORK, copied, fresh, linked, session
from benchmarks.tables_corpus import many_tables
from pgoutput_etl.config import Config

Progress = Callable[[str], None]
TIMES = (1, 2, 4, 8)
_TRANSACTIONS = 60_000  # of the smallest archive
_TABLES = (1, 20, 100, 500)
_FILES = (1, 100, 1_000, 20_000)


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement. times: of the smallest in its series, as `size` and as `seconds`."""

    series: str
    size: int
    unit: str
    cores: int
    seconds: float
    size_times: float = 1.0
    seconds_times: float = 1.0


def measure_growth(scale: float, runs: int, progress: Progress) -> list[Point]:
    points: list[Point] = []
    for cores in (2, 1):
        with session(cores) as spark:
            points += _archive(spark, cores, scale, runs, progress)
            if cores == 2:
                points += _tables(spark, scale, runs, progress)
                points += _files(spark, scale, progress)
    return _as_multiples(points)


def _archive(spark: SparkSession, cores: int, scale: float, runs: int, progress: Progress) -> list[Point]:
    found = []
    for times in TIMES:
        progress(f"{times} times the archive, {cores} cores")
        corpus = pgbench(scaled(_TRANSACTIONS * times, scale), scaled(500_000, scale), 2 * times)
        night = _Night.prepared(spark, corpus, corpus.second.iterdir())
        seconds = median(night.repeated() for _ in range(runs))
        found.append(Point("the archive", corpus.landed.bytes, "bytes", cores, seconds))
    return found


def _tables(spark: SparkSession, scale: float, runs: int, progress: Progress) -> list[Point]:
    """Every table changes a little; one does and all others don't."""
    found = []
    for tables in sorted({scaled(number, scale) for number in _TABLES}):
        progress(f"{tables} tables")
        for series, changed in (("tables that change", tables), ("tables of which one changes", 1)):
            corpus = many_tables(tables, 1, changed)
            night = _Night.prepared(spark, corpus, corpus.second.iterdir())
            seconds = median(night.repeated() for _ in range(runs))
            found.append(Point(series, tables, "tables", 2, seconds))
    return found


def _files(spark: SparkSession, scale: float, progress: Progress) -> list[Point]:
    """The same archive in more and more files; then one file more; then nothing more."""
    found = []
    for files in sorted({scaled(number, scale) for number in _FILES}):
        progress(f"{files} files")
        corpus = pgbench(scaled(20_000, scale, 100), scaled(100_000, scale), files + 1)
        *most, last = sorted(corpus.second.iterdir())
        night = _Night.prepared(spark, corpus, most)
        found.append(Point("files that are new", len(most), "files", 2, night.once()))
        night.land([last])
        found.append(Point("files of which one is new", len(most), "files", 2, night.once()))
        found.append(Point("files of which none is new", len(most), "files", 2, night.once()))
    return found


@dataclass(frozen=True, slots=True)
class _Night:
    """Tables as the first night left them, and new files."""

    spark: SparkSession
    config: Config
    landing: Path
    tables: Path
    before: Path

    @classmethod
    def prepared(cls, spark: SparkSession, corpus: Corpus, new: Iterable[Path]) -> _Night:
        work = fresh(WORK / "growth")
        landing, tables, before = (work / name for name in ("landing", "tables", "before"))
        linked(corpus.first, landing)
        night = cls(spark, configured(landing, tables), landing, tables, before)
        night.once()
        copied(spark, tables, before)
        night.land(new)
        return night

    def land(self, files: Iterable[Path]) -> None:
        for path in files:
            os.link(path, self.landing / f"{path.parent.name}-{path.name}")

    def once(self) -> float:
        return run_job(self.spark, self.config, lambda _: None)[0].seconds

    def repeated(self) -> float:
        """From where the first night left the tables."""
        copied(self.spark, self.before, self.tables)
        return self.once()


def _as_multiples(points: list[Point]) -> list[Point]:
    least: dict[tuple[str, int], Point] = {}
    for point in points:
        key = (point.series, point.cores)
        if key not in least or point.size < least[key].size:
            least[key] = point
    return [_as_multiple(point, least[point.series, point.cores]) for point in points]


def _as_multiple(point: Point, of: Point) -> Point:
    times = (point.size / of.size, point.seconds / of.seconds)
    return Point(point.series, point.size, point.unit, point.cores, point.seconds, *times)
