"""Measures the nightly job against the floor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from benchmarks.checking import Fingerprint, check_tables, expected_fingerprints
from benchmarks.corpora import Corpus
from benchmarks.floor import append_all, merge_all
from benchmarks.sessions import copied, fresh, linked
from pgoutput_etl.config.settings import Config, load_config
from pgoutput_etl.jobs.apply.pipeline import apply
from pgoutput_etl.jobs.apply.report import RunSummary

Progress = Callable[[str], None]
_FIRST = "read the ledger, list files"
_STAGES = {
    "looking for": _FIRST,
    "looking into": "scan",
    "applying": "assemble, plan",
    "writing the ledger": "write the ledger",
}


@dataclass(slots=True)
class Stages:
    """A job's progress, as the seconds at which its parts began. `also`: who else is to hear of it."""

    also: Progress
    began: dict[str, float] = field(default_factory=lambda: {_FIRST: time.perf_counter()})

    def __call__(self, step: str) -> None:
        self.also(step)
        said = step.partition(": ")[2] if step.startswith("batch") else step
        stage = next((stage for prefix, stage in _STAGES.items() if said.startswith(prefix)), "write the tables")
        self.began.setdefault(stage, time.perf_counter())

    def taken(self, ended: float) -> dict[str, float]:
        ends = [*list(self.began.values())[1:], ended]
        return {stage: end - begin for (stage, begin), end in zip(self.began.items(), ends, strict=True)}


@dataclass(frozen=True, slots=True)
class JobRun:
    """Seconds, all told and by stage."""

    seconds: float
    stages: dict[str, float]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Medians in seconds; ratio: job to floor, of the pairs that ran one after the other.

    append: the floor with tables that receive only new rows appended to; None where there are none with a key.
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
    """As jobs/apply.py would read it from a file."""
    file = root.parent / "apply.yaml"
    file.write_text(f"source: {{name: bench, landing: {landing}}}\ntarget: {{root: {root}}}\n")
    return load_config(str(file), [*settings])


def run_job(spark: SparkSession, config: Config, progress: Progress) -> tuple[JobRun, RunSummary]:
    started = time.perf_counter()
    stages = Stages(progress)
    summaries = apply(spark, config, stages)
    ended = time.perf_counter()
    if summaries[-1].exit_code:
        raise AssertionError(f"expected exit code 0, found {summaries[-1].exit_code}: {summaries[-1]}")
    return JobRun(ended - started, stages.taken(ended)), summaries[-1]


def compare(spark: SparkSession, corpus: Corpus, work: Path, runs: int, progress: Progress) -> Comparison:
    """Floor and job in turn, each from the same tables, below a folder `work`; every result is checked.

    The first floor isn't counted: the first night has warmed up the job, and nothing Delta's MERGE.
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
        said = f"run {run + 1} of {runs}"
        progress(f"{said}: the floor")
        merges.append(_floor(spark, before, floor, corpus, expected, merge_all))
        if has_append:
            appends.append(_floor(spark, before, floor, corpus, expected, append_all))
        progress(f"{said}: the job")
        copied(spark, before, tables)
        jobs.append(run_job(spark, config, lambda step, said=said: progress(f"{said}: {step}"))[0])  # type: ignore[misc]
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
