"""Measures how the job's time grows with the archive, tables, and files, and with the number of cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
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

Progress = Callable[[str], None]
TIMES = (1, 2, 4, 8)
UNITS = ("tables", "files", "bytes")
_TRANSACTIONS = 650_000  # of the smallest archive, 200 MB
_TABLES = (1, 20, 100, 500)
_FILES = (1, 100, 1_000, 20_000)


@dataclass(frozen=True, slots=True)
class Point:
    """One measurement. size_times, seconds_times: multiples of the smallest point in its series."""

    series: str
    size: int
    unit: str
    cores: int
    seconds: float
    size_times: float = 1.0
    seconds_times: float = 1.0


def measure_growth(
    scale: float, runs: int, progress: Progress, series: Collection[str] = UNITS, earlier: Iterable[Point] = ()
) -> list[Point]:
    """Measures the units in `series`; the points of other units come from `earlier`."""
    points = [point for point in earlier if point.unit not in series]
    archive = pgbench(scaled(_TRANSACTIONS * TIMES[-1], scale), scaled(500_000, scale), 2 * TIMES[-1])
    folder = WORK / "growth/archive"
    for cores in (2, 1):
        with session(cores) as spark:
            if cores == 2:
                points += _tables(spark, scale, runs, progress) if "tables" in series else []
                points += _files(spark, scale, progress) if "files" in series else []
            if "bytes" not in series:
                continue
            night = _Night(spark, folder)
            if cores == 2:
                progress("the first night of the archive")
                night = _Night.first(spark, archive, folder)
            points += _archive(night, archive, cores, runs, progress)
    return _as_multiples(points)


def _archive(night: _Night, corpus: Corpus, cores: int, runs: int, progress: Progress) -> list[Point]:
    """Growing parts of one archive's files."""
    points = []
    files = sorted(corpus.second.iterdir())
    for times in TIMES:
        progress(f"{times} times the archive, {cores} cores")
        some = files[: len(files) * times // TIMES[-1]]
        size = sum(path.stat().st_size for path in some)
        seconds = median(night.then(some) for _ in range(runs))
        points.append(Point("the archive", size, "bytes", cores, seconds))
    return points


def _tables(spark: SparkSession, scale: float, runs: int, progress: Progress) -> list[Point]:
    """Two series: every table changes a little, or one table changes and the others don't."""
    points = []
    for tables in sorted({scaled(number, scale) for number in _TABLES}):
        progress(f"{tables} tables: the first night")
        all_change, one_changes = many_tables(tables, 1), many_tables(tables, 1, 1)
        night = _Night.first(spark, all_change, WORK / "growth/tables")
        for series, corpus in (("tables that change", all_change), ("tables of which one changes", one_changes)):
            progress(f"{tables} {series}")
            seconds = median(night.then(corpus.second.iterdir()) for _ in range(runs))
            points.append(Point(series, tables, "tables", 2, seconds))
    return points


def _files(spark: SparkSession, scale: float, progress: Progress) -> list[Point]:
    """The same archive in a growing number of files; then a run with one new file; then one without new files."""
    points = []
    for files in sorted({scaled(number, scale) for number in _FILES}):
        progress(f"{files} files")
        corpus = pgbench(scaled(20_000, scale, 100), scaled(100_000, scale), files + 1)
        *most, last = sorted(corpus.second.iterdir())
        night = _Night.first(spark, corpus, WORK / "growth/files")
        points.append(Point("files that are new", len(most), "files", 2, night.then(most)))
        night.land([last])
        points.append(Point("files of which one is new", len(most), "files", 2, night.run()))
        points.append(Point("files of which none is new", len(most), "files", 2, night.run()))
    return points


@dataclass(frozen=True, slots=True)
class _Night:
    """A second night that can run repeatedly, each time after the same first night."""

    spark: SparkSession
    folder: Path

    @classmethod
    def first(cls, spark: SparkSession, corpus: Corpus, folder: Path) -> _Night:
        night = cls(spark, fresh(folder))
        linked(corpus.first, night.landing)
        night.run()
        copied(spark, folder / "tables", folder / "before")
        return night

    @property
    def landing(self) -> Path:
        return self.folder / "landing"

    def then(self, files: Iterable[Path]) -> float:
        """Seconds for these files, starting from the tables of the first night."""
        for path in self.landing.glob("second-*"):
            path.unlink()
        self.land(files)
        copied(self.spark, self.folder / "before", self.folder / "tables")
        return self.run()

    def land(self, files: Iterable[Path]) -> None:
        for path in files:
            os.link(path, self.landing / f"second-{path.name}")

    def run(self) -> float:
        config = configured(self.landing, self.folder / "tables")
        return run_job(self.spark, config, lambda _: None)[0].seconds


def _as_multiples(points: list[Point]) -> list[Point]:
    least: dict[tuple[str, int], Point] = {}
    for point in points:
        key = (point.series, point.cores)
        if key not in least or point.size < least[key].size:
            least[key] = point
    return [_as_multiple(point, least[point.series, point.cores]) for point in points]


def _as_multiple(point: Point, smallest: Point) -> Point:
    times = (point.size / smallest.size, point.seconds / smallest.seconds)
    return Point(point.series, point.size, point.unit, point.cores, point.seconds, *times)
