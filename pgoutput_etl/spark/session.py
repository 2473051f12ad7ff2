"""The session, and what is asked of Spark about files."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import unquote
from uuid import uuid4

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.spark.connect import REMOTE, connect, is_connect, server_of
from pgoutput_etl.spark.platform import active_session, is_platform_session, is_set, value_of

T = TypeVar("T")


DELTA_VERSION = "4.4.0"


# What every run needs, whatever the configuration says beside it.
_OF_SESSION = {
    # Timestamps are instants or wall clocks as PostgreSQL has them; no zone of the machine may come in between.
    "spark.sql.session.timeZone": "UTC",
    # Readers other than Spark's misread INT96, Spark's own choice, before 1677 and after 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Without it a comparison with a constant day of October 1582 goes through a calendar that skipped ten of them.
    "spark.sql.datetime.java8API.enabled": "true",
}

_SESSION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    **_OF_SESSION,
}

_DEFAULTS = {
    # Identifiers of an archive are never resolved as something else; AQE sizes what it shuffles.
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.showConsoleProgress": "false",
    # Delta reads its own log with 50 partitions unless told otherwise: seconds per table, for nothing.
    "spark.databricks.delta.snapshotPartitions": "2",
    # Files that are named are looked up by one task each, up to ten thousand: seconds, for nothing.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
    # What it takes to open a file, in bytes of reading: so that a task takes hundreds of small files, not thirty.
    "spark.sql.files.openCostInBytes": "524288",
}


# Whose values Spark's UI, event log and log files leave out: Spark's own list, and what it forgets.
_REDACTED = "(?i)secret|password|passphrase|token|(?:access|account|private)[._-]?key|fs[.]azure[.]sas"


def start_session(app_name: str, settings: Mapping[str, str], secrets: Collection[str] = frozenset()) -> SparkSession:
    """The session of a job: of the Connect server that `spark.remote` names, the platform's where one runs Spark
    (Databricks), else of a Spark that starts here.

    Under spark-submit the Delta package is there already; otherwise it is asked for, but of a server. Settings given
    to spark-submit hold, unless `settings` has others.

    The values of the settings in `secrets` are in no listing of settings, nor on a command line.
    """
    if is_platform_session() and REMOTE not in settings:
        return active_session({**_DEFAULTS, **settings, **_OF_SESSION})
    defaults = {**_DEFAULTS, **_set_by_spark_submit()}
    chosen = {**defaults, "spark.redaction.regex": _REDACTED, **settings, **_SESSION}
    if server := server_of(settings):
        return connect(server, app_name, {**_DEFAULTS, **settings, **_OF_SESSION}, [*settings, *_OF_SESSION])
    if secrets:
        names = {name for secret in secrets for name in (secret, secret.removeprefix("spark.hadoop."))}
        chosen["spark.redaction.regex"] += "".join(f"|^{re.escape(name)}$" for name in sorted(names))
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if "spark.jars" not in settings:
            chosen["spark.jars.packages"] = delta_package()
        if secrets:
            _start_jvm({key: value for key, value in chosen.items() if key not in secrets})
    builder = SparkSession.builder.appName(app_name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def end_session(spark: SparkSession) -> None:
    """A platform's session isn't ours to stop: others may be at work in it."""
    if not is_platform_session():
        spark.stop()


def check_catalog(spark: SparkSession, catalog: str) -> None:
    """Raises ConfigError for a catalog that is none, or that forgets its tables when the job ends."""
    name, current = catalog.partition(".")[0], spark.catalog.currentCatalog()
    try:
        spark.catalog.setCurrentCatalog(name)
        spark.catalog.setCurrentCatalog(current)
    except PySparkException as error:
        raise ConfigError(
            f"target.catalog: this Spark has no catalog {name}, or lets nobody in ({error.getCondition()}): "
            f"spark.sql.catalog.{name} below `spark:` says what it is"
        ) from None
    metastore = value_of(spark, "spark.sql.catalogImplementation")  # None: not set, and then it is in memory
    if name.lower() == "spark_catalog" and metastore in (None, "in-memory") and not is_platform_session():
        raise ConfigError(
            "target.catalog: Spark's own catalog forgets its tables when the job ends, unless there is a metastore: "
            "below `spark:`, spark.sql.catalogImplementation: hive"
        )


def _set_by_spark_submit() -> dict[str, str]:
    """`--conf`, and spark-defaults.conf: they come before what is only our default."""
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return {}
    from pyspark import SparkConf, SparkContext  # a client of Spark Connect alone has none

    SparkContext._ensure_initialized()
    said = dict(SparkConf().getAll())
    return {key: said[key] for key in _DEFAULTS if key in said}


def _start_jvm(settings: Mapping[str, str]) -> None:
    """Spark would put all settings on the JVM's command line, which every user of the machine can read."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll([*settings.items()]))


def delta_package(spark_version: str = pyspark.__version__) -> str:
    """The Maven coordinates of the Delta release for a Spark release."""
    return f"io.delta:delta-spark_{'.'.join(spark_version.split('.')[:2])}_2.13:{DELTA_VERSION}"


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A session of its own for one thread's writes, with settings that no other thread sees.

    Spark Connect has no newSession; there the settings are put on the given session, so that writes must not overlap.
    """
    if is_connect(spark):
        with temporarily(spark, settings):
            yield spark
        return
    at_first = _settings_of(spark)
    key = (id(spark), frozenset(at_first.items()))
    own = _SPARE[key].pop() if _SPARE.get(key) else _session_like(spark, at_first)
    with temporarily(own, settings):
        yield own
    _SPARE.setdefault(key, []).append(own)


# Sessions that a write is done with, by the session that they are like: to make one takes as long as a small query.
_SPARE: dict[tuple[int, frozenset[tuple[str, str]]], list[SparkSession]] = {}


# For a few rows: a query's plan is compiled for longer than it runs, and a shuffle has nothing to share out.
FOR_FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}


def session_for_few_rows(spark: SparkSession) -> SparkSession:
    """A session like the given one in which what reads or writes a few rows takes half as long (ADR 18). Spark Connect
    has no newSession: there it is the given one."""
    if is_connect(spark):
        return spark
    return _session_like(spark, {**_settings_of(spark), **FOR_FEW_ROWS})


def _settings_of(spark: SparkSession) -> dict[str, str]:
    """What was set on the session: also storage's own names, as notebooks set its credentials."""
    ours = ("spark.sql.", "spark.databricks.delta.")
    return {k: v for k, v in spark.conf.getAll.items() if k.startswith(ours) or not k.startswith("spark.")}


def _session_like(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    own = spark.newSession()
    for key, value in settings.items():
        if not key.startswith("spark.") or spark.conf.isModifiable(key):  # storage's own names aren't Spark's to know
            is_set(own, key, value)
    return own


@contextmanager
def temporarily(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """For what is done within; then as they were. Those that a platform's session doesn't take are left out."""
    before = {key: value_of(spark, key) for key in settings}
    before = {key: before[key] for key, value in settings.items() if is_set(spark, key, value)}
    try:
        yield
    finally:
        for key, was in before.items():
            if was is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, was)


@dataclass(frozen=True, slots=True)
class BackgroundJobs:
    """Starts work of Spark's that can be given up."""

    spark: SparkSession
    pool: ThreadPoolExecutor
    tag: str

    def start(self, work: Callable[[], T]) -> Future[T]:
        return self.pool.submit(self._tagged, work)

    def _tagged(self, work: Callable[[], T]) -> T:
        self.spark.addTag(self.tag)
        try:
            return work()
        finally:
            self.spark.removeTag(self.tag)


@contextmanager
def background_jobs(spark: SparkSession) -> Iterator[BackgroundJobs]:
    """What is started goes on beside what is done within. Where that fails, Spark gives up on it."""
    with ThreadPoolExecutor(2) as pool:
        started = BackgroundJobs(spark, pool, f"pgoutput_etl-{uuid4().hex}")
        try:
            yield started
        except BaseException:
            spark.interruptTag(started.tag)
            raise


def writes_may_overlap(spark: SparkSession) -> bool:
    """Whether `session_settings` gives each thread its own session."""
    return not is_connect(spark)


def list_names(spark: SparkSession, landing: str) -> list[str]:
    """The paths of all files in the landing folder, with those of empty ones, which list_landing does not have: Spark
    leaves them out of whatever it reads."""
    # It gives URIs, and binaryFile has paths: file:/a b for file:///a%20b.
    return [unquote(name).replace(":///", ":/", 1) for name in _landed(spark, landing).inputFiles()]


def _landed(spark: SparkSession, landing: str) -> DataFrame:
    return spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(landing)
