"""Counts the work of a night on a Spark cluster of one-core workers, on storage that is not the machine's own.

Work is what a night costs on any number of cores: processor time by process, bytes, objects, Spark jobs. The landing
folder, tables and ledger are behind Hadoop's ViewFS, so the job treats them as it treats object storage: Spark reads
the files and keeps the ledger, and no worker opens a landed file itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.corpora import Corpus
from benchmarks.event_log import LoggedWork, event_log, logged_work, now
from benchmarks.jobs import configured, run_job
from benchmarks.pgbench_corpus import pgbench
from benchmarks.processes import Role, cpu_seconds, in_new_process
from benchmarks.scenarios import scaled
from benchmarks.sessions import WORK, copied, fresh, linked, session
from benchmarks.streamed_corpus import streamed
from benchmarks.tables_corpus import many_tables
from benchmarks.wide_corpus import wide
from tests.support.spark_servers import standalone_cluster

Progress = Callable[[str], None]
WORKERS = (1, 2, 4, 8)
_EXECUTOR_MEMORY = "700m"  # enough for Spark to start; eight such executors fit into this machine
_REMOTE = "viewfs://bench"


@dataclass(frozen=True, slots=True)
class NightWork:
    """One night. cold: the session's first night of this kind; otherwise, such a night ran before, so code is compiled.

    CPU seconds: of the driver's two processes, of the executors' JVMs and of their Python workers. task_cpu: Java's in
    tasks. single: the number of stages with one task; single_cpu: their seconds, in Java and, by the bytes that went to
    and from it, in Python; longest_single: of the longest. Bytes: shuffled, read and written by Spark, collected to the
    driver. objects: new ones below the target and in the ledger.
    """

    night: str
    workers: int
    cold: bool
    messages: int
    bytes: int
    tables: int
    files: int
    seconds: float
    driver_python: float
    driver_jvm: float
    executors: float
    python_workers: float
    jobs: int
    stages: int
    tasks: int
    task_cpu: float
    single: int
    single_cpu: float
    longest_single: float
    shuffled: int
    read: int
    written: int
    collected: int
    target_objects: int
    ledger_objects: int


# Nights by name, for a scale. Two of a family differ in one size.
NIGHTS: dict[str, Callable[[float], Corpus]] = {
    "pgbench": lambda scale: pgbench(scaled(450_000, scale), scaled(500_000, scale), 8),
    "pgbench, fewer messages": lambda scale: pgbench(scaled(90_000, scale), scaled(500_000, scale), 8),
    "pgbench, more files": lambda scale: pgbench(
        scaled(90_000, scale), scaled(500_000, scale), scaled(1000, scale, 16)
    ),
    "wide": lambda scale: wide(scaled(200_000, scale, 1000), 8),
    "wide, fewer messages": lambda scale: wide(scaled(40_000, scale, 500), 8),
    "streamed": lambda scale: streamed(scaled(1_000_000, scale, 20_000), 8),
    "streamed, fewer messages": lambda scale: streamed(scaled(200_000, scale, 10_000), 8),
    "tables": lambda scale: many_tables(scaled(60, scale, 8), 1),
    "tables, fewer": lambda scale: many_tables(scaled(10, scale, 2), 1),
}
_ON_ANY_NUMBER = "pgbench, fewer messages"  # the night that runs on every number of workers


def measure_work(
    scale: float, runs: int, only: Collection[str], progress: Progress, numbers: Sequence[int] = WORKERS
) -> Iterator[list[NightWork]]:
    """Yields all results so far after each night. only: names of NIGHTS; all if empty. numbers: of workers."""
    nights = [(name, 2) for name in NIGHTS] + [(_ON_ANY_NUMBER, workers) for workers in numbers if workers != 2]
    results: list[NightWork] = []
    for name, workers in nights:
        if not only or name in only:
            progress(f"{name}, on {workers} workers")
            results = [*results, *measure_night(name, NIGHTS[name](scale), workers, runs, WORK / "work")]
            yield results


def measure_night(name: str, corpus: Corpus, workers: int, runs: int, work: Path) -> list[NightWork]:
    """A cold night, and the median of `runs` warm ones, by their CPU seconds. The driver is a separate process."""
    return in_new_process(_measure, name, corpus, workers, runs, fresh(work))


def _measure(name: str, corpus: Corpus, workers: int, runs: int, work: Path) -> list[NightWork]:
    return _Measurement(work, name, corpus, workers).nights(runs)


@dataclass(frozen=True, slots=True)
class _Measured:
    """began, ended: milliseconds since 1970. cpu: seconds by role."""

    began: int
    ended: int
    seconds: float
    cpu: dict[Role, float]
    target_objects: int
    ledger_objects: int


@dataclass(frozen=True, slots=True)
class _Measurement:
    work: Path
    name: str
    corpus: Corpus
    workers: int

    def nights(self, runs: int) -> list[NightWork]:
        with _cluster(self.work, self.workers) as spark:
            linked(self.corpus.first, self.work / "remote/landing")
            self._run(spark)
            (self.work / "remote/tables").rename(self.work / "remote/before")
            linked(self.corpus.second, self.work / "remote/landing")
            measured = [self._measured(spark) for _ in range(1 + runs)]
        log = logged_work(self.work / "events")
        cold, *warm = (self._summary(night, log, night is measured[0]) for night in measured)
        in_order = sorted(warm, key=lambda night: night.executors + night.python_workers)
        return [cold, *in_order[(runs - 1) // 2 :][:1]]

    def _run(self, spark: SparkSession) -> float:
        config = configured(
            Path("landing"),
            self.work / "remote/tables",
            [
                f"source.landing={_REMOTE}/data/landing",
                f"target.root={_REMOTE}/data/tables",
            ],
        )
        return run_job(spark, config, lambda _: None)[0].seconds

    def _measured(self, spark: SparkSession) -> _Measured:
        tables = self.work / "remote/tables"
        copied(spark, self.work / "remote/before", tables)
        before = _objects(tables)
        cpu, began = cpu_seconds(), now()
        seconds = self._run(spark)
        spent, ended = cpu_seconds() - cpu, now()
        new = _objects(tables) - before
        in_ledger = sum("_pgoutput_etl" in path.parts for path in new)
        return _Measured(began, ended, seconds, {role: spent[role] for role in Role}, len(new) - in_ledger, in_ledger)

    def _summary(self, night: _Measured, log: LoggedWork, is_cold: bool) -> NightWork:
        work = log.between(night.began, night.ended)
        landed, cpu, stages = self.corpus.landed, night.cpu, work.stages
        per_byte = cpu[Role.WORKER] / max(sum(stage.python for stage in stages), 1)
        single = [stage.cpu + stage.python * per_byte for stage in stages if stage.tasks == 1]
        return NightWork(
            self.name,
            self.workers,
            is_cold,
            landed.messages,
            landed.bytes,
            len(self.corpus.tables),
            landed.files,
            night.seconds,
            driver_python=cpu[Role.DRIVER_PYTHON],
            driver_jvm=cpu[Role.DRIVER_JVM],
            executors=cpu[Role.EXECUTOR_JVM],
            python_workers=cpu[Role.WORKER],
            jobs=len(work.jobs),
            stages=len(stages),
            tasks=sum(stage.tasks for stage in stages),
            task_cpu=sum(stage.cpu for stage in stages),
            single=len(single),
            single_cpu=sum(single),
            longest_single=max(single, default=0.0),
            shuffled=sum(stage.shuffled for stage in stages),
            read=sum(stage.read for stage in stages),
            written=sum(stage.written for stage in stages),
            collected=sum(stage.collected for stage in stages),
            target_objects=night.target_objects,
            ledger_objects=night.ledger_objects,
        )


def _objects(folder: Path) -> set[Path]:
    """All files that object storage would also have, so no checksum files of Hadoop's local file system."""
    return {path for path in folder.rglob("*") if path.is_file() and path.suffix != ".crc"}


@contextmanager
def _cluster(work: Path, workers: int) -> Iterator[SparkSession]:
    """A session of a cluster; below viewfs://bench/data is the folder `work`/remote."""
    (work / "remote").mkdir()
    settings = {
        **event_log(work / "events"),
        "spark.executor.memory": _EXECUTOR_MEMORY,
        "spark.hadoop.fs.viewfs.mounttable.bench.link./data": (work / "remote").as_uri(),
    }
    (work / "cluster").mkdir()
    with (
        standalone_cluster(work / "cluster", workers) as cluster,
        session(memory="2g", settings={**settings, "spark.master": cluster.url}) as spark,
    ):
        yield spark
