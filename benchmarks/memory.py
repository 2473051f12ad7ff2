"""Measures the peak memory of the job's processes: the driver's JVM, its Python, and the Python workers.

All run on this machine under local[2], where one JVM is both driver and executor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from benchmarks.corpora import Corpus
from benchmarks.jobs import configured, run_job
from benchmarks.processes import Peaks, Role, in_new_process, watched
from benchmarks.scenarios import scaled
from benchmarks.sessions import WORK, fresh, linked, session
from benchmarks.wide_corpus import wide

Progress = Callable[[str], None]
_ROWS_PER_MB = 900
_MB_OF_ONE_FILE = (50, 200, 400)
_MB_PER_FILE, _TIMES = 25, (1, 2, 4)


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The peaks of one job, in MB. file: size of the largest file, decompressed."""

    series: str
    archive: float
    file: float
    worker: float
    workers_together: float
    jvm: float
    driver_python: float
    worker_per_file: float


def measure_memory(scale: float, progress: Progress) -> tuple[list[PeakMemory], float]:
    """The peaks, and by how many bytes a worker's peak grows with each byte of its file."""
    nights = [("one file", megabytes, 1) for megabytes in _MB_OF_ONE_FILE]
    nights += [("the archive grows", _MB_PER_FILE * 4 * times, 4 * times) for times in _TIMES]
    results = []
    # Each job has its own process, and so its own JVM, because a process seldom returns memory.
    for series, megabytes, files in nights:
        progress(f"{series}: {megabytes * scale:,.0f} MB in {files} files")
        rows = scaled(megabytes * _ROWS_PER_MB, scale, 1000)
        results.append(in_new_process(_measure, series, rows, files))
    single = [peak for peak in results if peak.series == "one file"]
    slope, _ = np.polyfit([peak.file for peak in single], [peak.worker for peak in single], 1)
    return results, float(slope)


def _measure(series: str, rows: int, files: int) -> PeakMemory:
    corpus = wide(rows, files)
    with session() as spark:
        peaks = _peaks(spark, corpus)
    largest = max(path.stat().st_size for path in corpus.second.iterdir())
    by_role = (peaks.of(role) for role in (Role.WORKER, Role.DRIVER_JVM, Role.DRIVER_PYTHON))
    sizes = (corpus.landed.bytes, largest, peaks.worker, *by_role)
    archive, file, worker, workers, jvm, python = (size / 1e6 for size in sizes)
    return PeakMemory(series, archive, file, worker, workers, jvm, python, worker / file)


def _peaks(spark: SparkSession, corpus: Corpus) -> Peaks:
    work: Path = fresh(WORK / "memory")
    landing = work / "landing"
    linked(corpus.first, landing)
    config = configured(landing, work / "tables")
    run_job(spark, config, lambda _: None)
    linked(corpus.second, landing)
    with watched() as peaks:
        run_job(spark, config, lambda _: None)
    return peaks
