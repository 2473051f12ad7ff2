"""Runs the scenarios on the cores, the Spark master, and the storage that the user names, as `python -m benchmarks
larger` does without questions.

Each step has a process of its own, so that one that fails, or is killed, doesn't end the others. The second night of a
scenario is timed; as the model assumes, it is the first of its size in its session.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from uuid import uuid4

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import pgoutput_etl
from benchmarks.checking import Fingerprint, check_tables, expected_fingerprints
from benchmarks.corpora import Corpus
from benchmarks.jobs import JobRun, configured, run_job
from benchmarks.model import TABLES_AT_A_TIME, LargeNight, compared_nights, predicted_seconds
from benchmarks.processes import in_new_process
from benchmarks.scenarios import SCENARIOS
from benchmarks.sessions import WORK, fresh, linked, session
from pgoutput_etl.console import no_progress
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.spark.java import hadoop_path, java_class
from pgoutput_etl.spark.object_folder import ObjectFolder
from pgoutput_etl.spark.options import is_local, keep, submitted

Progress = Callable[[str], None]
_CORES_AT_SCALE_1 = 2
# Beyond it, an Arrow column of a generator would have more than 2 GiB.
_LARGEST_SCALE = 12.0
_REGISTERED_WITHIN = 300  # seconds, in which a cluster's executors start
_COPIES_AT_A_TIME = 16
# Archives whose messages cost as much as those of another one.
_COUNTED_AS = {"files": "pgbench", "tables": "pgbench"}


class UnsuitableMachineError(Exception):
    """The machine or its storage is not what the user asked for."""


class ScenarioError(Exception):
    """A scenario failed. The message is the error's name."""


@dataclass(frozen=True, slots=True)
class LargerMachine:
    """cores: of all executors together. memory: of the driver's JVM, as Spark writes it. storage: the URL of a folder;
    None for this machine's disk. spark: options of spark-submit, which may contain credentials."""

    cores: int
    memory: str
    storage: str | None = None
    spark: tuple[str, ...] = ()

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        """For a process of its own, as it keeps the options for all later sessions of the process."""
        keep(self.spark)
        master = submitted().get("spark.master", f"local[{self.cores}]")
        with session(self.cores, self.memory, {"spark.master": master}) as spark:
            yield spark

    @contextmanager
    def folder(self, spark: SparkSession) -> Iterator[ObjectFolder]:
        """A new folder on the storage, deleted at the end."""
        objects = ObjectFolder(spark, f"{self.storage or WORK / 'larger'}/benchmarks-{uuid4().hex[:12]}")
        try:
            yield objects
        finally:
            objects.delete_all()


@dataclass(frozen=True, slots=True)
class ScenarioRun:
    """The second night of a scenario: the median of several runs. failed: an error's name."""

    scenario: str
    messages: int = 0
    bytes: int = 0
    tables: int = 0
    files: int = 0
    seconds: float | None = None
    messages_per_s: float | None = None
    mb_per_s: float | None = None
    failed: str | None = None
    stages: dict[str, float] = field(default_factory=dict)


def described(machine: LargerMachine) -> dict[str, Any]:
    """What runs there, without names of hosts or folders. Raises UnsuitableMachineError if there are fewer cores, or if
    the storage can't be written and read."""
    return in_new_process(_described, machine)


def _described(machine: LargerMachine) -> dict[str, Any]:
    try:
        with machine.session() as spark:
            check_cores(_registered_cores(spark, machine.cores), machine.cores)
            _check_storage(spark, machine)
            return {
                "cores": machine.cores,
                "memory": machine.memory,
                "master": _master(spark).partition(":")[0].partition("[")[0],
                "storage": storage_kind(machine.storage),
                "java": str(java_class(spark, "java.lang.System").getProperty("java.version")),
                "spark": spark.version,
                "pgoutput_etl": pgoutput_etl.__version__,
            }
    except (ConfigError, RunError) as error:
        raise UnsuitableMachineError(str(error)) from None


def check_cores(found: int, asked: int) -> None:
    if found < asked:
        raise UnsuitableMachineError(f"expected {asked} cores, found {found}: name them with --cores")


def storage_kind(storage: str | None) -> str:
    return "local disk" if storage is None else urlsplit(storage).scheme or "file"


def _master(spark: SparkSession) -> str:
    return str(spark.sparkContext.master)


def _registered_cores(spark: SparkSession, asked: int) -> int:
    """The cores of executors, as soon as there are as many as asked for; of a local master, those that Java may use,
    which the limits of a container decide."""
    context = spark.sparkContext
    if is_local({"spark.master": _master(spark)}):
        available = int(java_class(spark, "java.lang.Runtime").getRuntime().availableProcessors())
        return min(available, context.defaultParallelism)
    until = time.monotonic() + _REGISTERED_WITHIN
    while context.defaultParallelism < asked and time.monotonic() < until:
        time.sleep(1)
    return context.defaultParallelism


def _check_storage(spark: SparkSession, machine: LargerMachine) -> None:
    """Also that executors can read what the driver writes."""
    try:
        with machine.folder(spark) as objects:
            objects.put("written", "1\n", may_exist=False)
            spark.read.text(f"{objects.folder}/written").count()
    except (Py4JError, PySparkException) as error:
        reason = next((line for line in str(error).splitlines() if ": " in line), type(error).__name__)
        raise UnsuitableMachineError(
            f"{machine.storage or WORK} can't be written and read: {reason.lstrip(': ')}"
        ) from None


def nights_to_count(scenarios: Iterable[str]) -> set[str]:
    """The nights of benchmarks/work.py on two workers from which the model predicts these scenarios."""
    return {night for name in scenarios for night in compared_nights(_COUNTED_AS.get(name, name))}


def compared(run: ScenarioRun, counted: Sequence[Mapping[str, Any]], cores: int) -> dict[str, Any]:
    """The run beside the model's most seconds, and its share of them; None where one of both is missing."""
    kind, night = _COUNTED_AS.get(run.scenario, run.scenario), LargeNight(run.messages, run.tables, run.files)
    predicted = None if run.failed else predicted_seconds(counted, kind, night, cores, TABLES_AT_A_TIME)
    ratio = run.seconds / predicted if run.seconds and predicted else None
    return {**asdict(run), "predicted": predicted, "ratio": ratio}


def measure_scenario(name: str, machine: LargerMachine, scale: float, runs: int, progress: Progress) -> ScenarioRun:
    """scale: for each two cores."""
    scale = min(scale * machine.cores / _CORES_AT_SCALE_1, _LARGEST_SCALE)
    try:
        progress("writing the archive")
        corpus, expected = in_new_process(_reported, _prepared, name, scale, machine)
        jobs = []
        for run in range(runs):
            progress(f"run {run + 1} of {runs}")
            jobs.append(in_new_process(_reported, _timed, machine, corpus, expected))
    except Exception as error:  # noqa: BLE001 # other scenarios can still be measured
        return ScenarioRun(name, failed=str(error) if isinstance(error, ScenarioError) else type(error).__name__)
    return _summary(corpus, sorted(jobs, key=lambda job: job.seconds)[(runs - 1) // 2])


def _summary(corpus: Corpus, job: JobRun) -> ScenarioRun:
    landed, seconds = corpus.landed, job.seconds
    return ScenarioRun(
        corpus.name,
        landed.messages,
        landed.bytes,
        len(corpus.tables),
        landed.files,
        seconds,
        landed.messages / seconds,
        landed.bytes / seconds / 1e6,
        stages=job.stages,
    )


def _reported(function: Callable[..., Any], *arguments: object) -> Any:
    """Prints an error here: an error of Java can't be sent to another process."""
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 # the file has the name of any
        traceback.print_exc()
        raise ScenarioError(type(error).__name__) from None


def _prepared(name: str, scale: float, machine: LargerMachine) -> tuple[Corpus, dict[str, Fingerprint]]:
    """Reads the expected tables in a local session, as a cluster's executors don't see them."""
    corpus = SCENARIOS[name](scale)
    with session(machine.cores, machine.memory) as spark:
        return corpus, expected_fingerprints(spark, corpus.tables)


def _timed(machine: LargerMachine, corpus: Corpus, expected: Mapping[str, Fingerprint]) -> JobRun:
    work = fresh(WORK / "larger")
    with machine.session() as spark, machine.folder(spark) as objects:
        landing, tables = f"{objects.folder}/landing", f"{objects.folder}/tables"
        config = configured(work / "landing", work / "tables", [f"source.landing={landing}", f"target.root={tables}"])
        land: Callable[[Path], None] = partial(linked, target=Path(landing))
        if machine.storage is not None:
            land = partial(_copied, spark, landing)
        land(corpus.first)
        run_job(spark, config, no_progress)
        land(corpus.second)
        job, _ = run_job(spark, config, no_progress)
        check_tables(spark, tables, corpus.tables, expected)
    return job


def _copied(spark: SparkSession, landing: str, night: Path) -> None:
    """Lands a night's files on any storage, in streams: S3A's copyFromLocalFile has an HTTP client of its own."""
    settings = cast(Any, spark)._jsc.hadoopConfiguration()
    here = java_class(spark, "org.apache.hadoop.fs.FileSystem").getLocal(settings)
    there = hadoop_path(spark, landing).getFileSystem(settings)
    copy = java_class(spark, "org.apache.hadoop.fs.FileUtil").copy

    def land(path: Path) -> None:
        landed = hadoop_path(spark, f"{landing}/{night.name}-{path.name}")
        copy(here, hadoop_path(spark, str(path)), there, landed, False, settings)

    with ThreadPoolExecutor(_COPIES_AT_A_TIME) as pool:
        list(pool.map(land, night.iterdir()))
