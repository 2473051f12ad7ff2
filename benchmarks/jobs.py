"""Measures the nightly job against its baseline, the floor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from benchmarks.checking import Fingerprint, check_tables, expected_fingerprints
from benchmarks.corpora import Corpus
from benchmarks.floor import append_all, merge_all
from benchmarks.sessions import copied, fresh, linked
from pgoutput_etl.config.settings import Config, load_config
from pgoutput_etl.work.batch import Watch, World
from pgoutput_etl.work.files.pipeline import apply_run
from pgoutput_etl.work.files.recorder import StageTimer
from pgoutput_etl.work.files.report import RunSummary

Progress = Callable[[str], None]
# The stages that apply enters, as the figures name them.
STAGES = {
    "look": "read the ledger, list files",
    "read": "scan",
    "prepare": "assemble, plan",
    "write": "write the tables",
    "ledger": "write the ledger",
}


@dataclass(frozen=True, slots=True)
class JobRun:
    """seconds: in total. stages: seconds by stage."""

    seconds: float
    stages: dict[str, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Medians in seconds. ratio: job to floor, of pairs that ran one after the other.

    append: the floor that appends to tables that receive only new rows; None if no such table has a key.
    """

    scenario: str
    messages: int
    bytes: int
    files: int
    tables: int
    runs: int
    floor: float
    append: float | None
    job: float
    ratio: float
    ratios: tuple[float, ...]
    ratio_to_append: float | None
    stages: dict[str, float]
    first_night: float


def configured(landing: Path, root: Path, settings: Iterable[str] = ()) -> Config:
    """The configuration that jobs/apply.py would read from a file."""
    file = root.parent / "apply.yaml"
    source = f"{{name: bench, landing: {landing}, snapshot: accept}}"
    file.write_text(f"source: {source}\ntarget: {{root: {root}}}\n")
    return load_config(str(file), [*settings])


def run_job(spark: SparkSession, config: Config, progress: Progress) -> tuple[JobRun, RunSummary]:
    timer = StageTimer(time.perf_counter)
    started = time.perf_counter()
    timer.start("look")
    summaries = apply_run(World.of(spark, config), Watch(progress, timer.start, timer.lap))
    timer.start(None)
    seconds = time.perf_counter() - started
    if summaries[-1].exit_code:
        raise AssertionError(f"expected exit code 0, found {summaries[-1].exit_code}: {summaries[-1]}")
    return JobRun(seconds, {STAGES[stage]: part for stage, part in timer.seconds.items()}), summaries[-1]


def compare(spark: SparkSession, corpus: Corpus, work: Path, runs: int, progress: Progress) -> Comparison:
    """Runs floor and job in turn, from the same tables, below the folder `work`, and checks every result.

    The first floor isn't counted: it warms up Delta's MERGE, as the first night warms up the job.
    """
    work = fresh(work)
    landing, tables, before, floor = (work / name for name in ("landing", "tables", "before", "floor"))
    linked(corpus.first, landing)
    config = configured(landing, tables)
    progress("the first night")
    first_night, _ = run_job(spark, config, progress)
    tables.rename(before)
    linked(corpus.second, landing)
    expected = expected_fingerprints(spark, corpus.tables)
    has_append = any(table.inserts_only and table.key for table in corpus.tables)
    merges, appends, jobs = [], [], []
    progress("the floor, to warm up")
    _floor(spark, before, floor, corpus, expected, merge_all)
    for run in range(runs):
        run_name = f"run {run + 1} of {runs}"
        progress(f"{run_name}: the floor")
        merges.append(_floor(spark, before, floor, corpus, expected, merge_all))
        if has_append:
            appends.append(_floor(spark, before, floor, corpus, expected, append_all))
        progress(f"{run_name}: the job")
        copied(spark, before, tables)
        jobs.append(run_job(spark, config, lambda step, name=run_name: progress(f"{name}: {step}"))[0])  # type: ignore[misc]
        check_tables(spark, tables, corpus.tables, expected)
    ratios = tuple(job.seconds / merge for job, merge in zip(jobs, merges, strict=True))
    to_append = [job.seconds / append for job, append in zip(jobs, appends, strict=False)]
    return Comparison(
        corpus.name,
        corpus.landed.messages,
        corpus.landed.bytes,
        corpus.landed.files,
        len(corpus.tables),
        runs,
        median(merges),
        median(appends) if appends else None,
        median(job.seconds for job in jobs),
        median(ratios),
        ratios,
        median(to_append) if to_append else None,
        {stage: median(job.stages.get(stage, 0.0) for job in jobs) for stage in jobs[0].stages},
        first_night.seconds,
    )


def _floor(
    spark: SparkSession,
    before: Path,
    floor: Path,
    corpus: Corpus,
    expected: Mapping[str, Fingerprint],
    write: Callable[..., float],
) -> float:
    copied(spark, before, floor)
    seconds = write(spark, floor, corpus.tables)
    check_tables(spark, floor, corpus.tables, expected)
    return seconds
