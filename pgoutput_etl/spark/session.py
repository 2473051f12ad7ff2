"""Starts sessions, and provides threads with separate sessions and background jobs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, TypeVar, cast
from uuid import uuid4

import pyspark
from pyspark.errors import PySparkException
from pyspark.find_spark_home import _find_spark_home
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import DEBUG
from pgoutput_etl.error_codes import ErrorCode
from pgoutput_etl.errors import ConfigError, RunError, coded, mark_spark_as_ended
from pgoutput_etl.spark.connect import REMOTE, connect, is_connect, server_of
from pgoutput_etl.spark.options import MODULES, is_local, joined, of_file, of_process
from pgoutput_etl.spark.packages import with_delta, write_modules
from pgoutput_etl.spark.platform import SUBSTITUTE, active_session, is_platform_session, is_set, value_of

T = TypeVar("T")

# Required by every run; the configuration can't change them.
_REQUIRED = {
    # Timestamps are PostgreSQL's instants or wall clock times, independent of the machine's time zone.
    "spark.sql.session.timeZone": "UTC",
    # Spark's default is INT96, which other readers misread before 1677 and after 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Without it, comparisons with a literal date in October 1582 use the Julian calendar, which skips ten days.
    "spark.sql.datetime.java8API.enabled": "true",
    # SQL text contains names from the archive, and Spark would replace ${env:NAME} in them.
    SUBSTITUTE: "false",
}

_SESSION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    **_REQUIRED,
}

# Also given to the JVM when it starts; otherwise, pyspark's JVM draws progress bars on standard error.
_WITHOUT_BARS = {"spark.ui.showConsoleProgress": "false"}

_DEFAULTS = {
    **_WITHOUT_BARS,
    # Adaptive query execution adjusts shuffles.
    "spark.sql.shuffle.partitions": "8",
    # Delta's default of 50 partitions for reading its own log costs seconds per table.
    "spark.databricks.delta.snapshotPartitions": "2",
    # By default, Spark looks up named files with one task each, up to ten thousand, which takes seconds.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "16",
    # The cost of opening a file, in bytes read: lets a task read hundreds of small files instead of thirty.
    "spark.sql.files.openCostInBytes": "524288",
    # Inferring filters from each pair of a plan's columns takes minutes for a few hundred columns, and gains nothing.
    "spark.sql.constraintPropagation.enabled": "false",
}

_LOCAL_FOLDER = "spark.local.dir"

# Delta writes each commit's checksum under a temporary name and renames it. Spark's default implementation takes more
# than twice as many requests to object storage (ADR 31).
_CHECKSUM_WRITER = "spark.sql.streaming.checkpointFileManagerClass"

# Settings whose values Spark hides in its UI, event log, and log files: Spark's own pattern plus names that it misses.
_REDACTED = "(?i)secret|password|passphrase|token|(?:access|account|private)[._-]?key|fs[.]azure[.]sas"


@coded(ErrorCode.SPARK_START, RunError)
def start_session(
    app_name: str | Config,
    settings: Mapping[str, str] = MappingProxyType({}),
    secrets: Collection[str] = frozenset(),
    is_light: bool = False,
    reads_few: bool = False,
) -> SparkSession:
    """A job's session: that of the Connect server in `spark.remote`, that of the platform (Databricks), or a new local
    one. app_name: a name, or a configuration, whose `spark` settings are used; `settings` override them.

    A local session downloads the Delta package, except under spark-submit, which has it already. `settings` override
    Spark's options on the command line, which override this package's defaults. Values of settings named in `secrets`
    don't appear in any listing or on a command line. is_light: the session has little work. reads_few: its queries read
    few rows; only for a local session. Raises RunError if Spark doesn't start, and ConfigError if no Delta Lake exists
    for this Spark.
    """
    _hide_python_log()
    if isinstance(app_name, Config):
        settings, secrets = {**app_name.spark, **settings}, {*secrets, *app_name.secrets} - settings.keys()
        app_name = f"pgoutput_etl {app_name.source.name}"
    if is_platform_session() and REMOTE not in settings:
        return active_session({**_DEFAULTS, **settings, **_REQUIRED})
    own, options = of_file(), of_process()
    if server := server_of({**own, **options, **settings}):
        return connect(server, app_name, {**_DEFAULTS, **settings, **_REQUIRED}, [*settings, *_REQUIRED])
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        from pgoutput_etl.spark.jvm import start_jvm  # missing in a Spark Connect client

        home = _find_spark_home()
        own = own or of_file(home)  # unless SPARK_CONF_DIR or --properties-file names another file
        given = {**_WITHOUT_BARS, **own, **options, **settings}
        _choose_python(given)
        given = with_delta({**given, **_modules(given)}, home)
        start_jvm({key: value for key, value in given.items() if key not in secrets}, is_light, own)
    defaults = {**_DEFAULTS, _CHECKSUM_WRITER: _checksum_writer(), **(FOR_FEW_ROWS if reads_few else {})}
    chosen = {**defaults, **_set_by_user(defaults), "spark.redaction.regex": _REDACTED, **settings, **_SESSION}
    if secrets:
        names = {name for secret in secrets for name in (secret, secret.removeprefix("spark.hadoop."))}
        chosen["spark.redaction.regex"] += "".join(f"|^{re.escape(name)}$" for name in sorted(names))
    from pgoutput_etl.spark.jvm import guard_output, private_temporary_folder

    if _keeps_rows_in_tmp(chosen):
        chosen[_LOCAL_FOLDER] = private_temporary_folder()
    builder = SparkSession.builder.appName(app_name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    guard_output()
    return spark


def _keeps_rows_in_tmp(settings: Mapping[str, str]) -> bool:
    """True for a new local session without a configured folder."""
    from pyspark import SparkConf, SparkContext

    given = {**dict(SparkConf().getAll()), **settings}
    is_new = SparkContext._active_spark_context is None
    return is_new and is_local(given) and _LOCAL_FOLDER not in given and "SPARK_LOCAL_DIRS" not in os.environ


def _hide_python_log() -> None:
    """Without --debug, keeps pyspark from logging the texts of errors, which may contain values of rows."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = DEBUG not in os.environ  # the first caller decides its class


def end_session(spark: SparkSession, error: BaseException | None = None) -> None:
    """Stops the session, unless it is a platform's, which others may use. error: ends the job, and is marked if Spark
    has ended by itself."""
    if error is not None and not is_running(spark):
        mark_spark_as_ended(error)
    if not is_platform_session():
        spark.stop()


def is_running(spark: SparkSession) -> bool:
    """False once Spark's Java process, or the Spark in it, has ended. A Connect server is not asked: if it has ended,
    its client raises errors of its own."""
    try:
        return is_connect(spark) or not cast(Any, spark).sparkContext._jsc.sc().isStopped()
    except Exception:  # noqa: BLE001 # py4j raises many kinds, and pyspark has no attributes then
        return False


def check_catalog(spark: SparkSession, catalog: str) -> None:
    """Raises ConfigError if the catalog doesn't exist, or loses its tables when the job ends."""
    name, current = catalog.partition(".")[0], spark.catalog.currentCatalog()
    try:
        spark.catalog.setCurrentCatalog(name)
        spark.catalog.setCurrentCatalog(current)
    except PySparkException as error:
        raise ConfigError(
            f"target.catalog: this Spark has no catalog {name}, or denies access to it ({error.getCondition()}): "
            f"define it with spark.sql.catalog.{name} below `spark:`"
        ) from None
    metastore = value_of(spark, "spark.sql.catalogImplementation")  # None: not set, which means in-memory
    if name.lower() == "spark_catalog" and metastore in (None, "in-memory") and not is_platform_session():
        raise ConfigError(
            "target.catalog: without a metastore, Spark's own catalog loses its tables when the job ends: set "
            "spark.sql.catalogImplementation: hive below `spark:`"
        )


def _checksum_writer(spark_version: str = pyspark.__version__) -> str:
    """The class's full name, which Spark 4.1 moved to another package."""
    package = "org.apache.spark.sql.execution.streaming"
    if not spark_version.startswith("4.0."):
        package += ".checkpointing"
    return f"{package}.FileSystemBasedCheckpointFileManager"


def _set_by_user(defaults: Collection[str]) -> dict[str, str]:
    """Settings from `--conf` and spark-defaults.conf that override this package's defaults."""
    from pyspark import SparkConf, SparkContext  # missing in a Spark Connect client

    SparkContext._ensure_initialized()
    user = dict(SparkConf().getAll())
    return {key: user[key] for key in defaults if key in user}


def _choose_python(settings: Mapping[str, str]) -> None:
    """Sets the workers' Python: on this machine the driver's, elsewhere the one in Spark's configuration."""
    chosen = settings.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    if chosen or is_local(settings):
        os.environ["PYSPARK_PYTHON"] = chosen or sys.executable


# Folders that are deleted when this process ends: Spark sends their files to executors until then.
_SENT: list[TemporaryDirectory[str]] = []


def _modules(settings: Mapping[str, str]) -> dict[str, str]:
    """This package as a file for executors on other machines."""
    if is_local(settings):
        return {}
    _SENT.append(TemporaryDirectory(prefix="pgoutput-etl."))
    return {MODULES: joined(str(write_modules(Path(_SENT[-1].name))), settings.get(MODULES, ""))}


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A separate session for one thread's writes, with settings that no other thread sees.

    Spark Connect has no newSession: there, the given session gets the settings, and writes must not overlap.
    """
    if is_connect(spark):
        with temporarily(spark, settings):
            yield spark
        return
    original = _settings_of(spark)
    key = (id(spark), frozenset(original.items()))
    own = _SPARE[key].pop() if _SPARE.get(key) else _session_like(spark, original)
    with temporarily(own, settings):
        yield own
    _SPARE.setdefault(key, []).append(own)


# Idle sessions, by the session that they copy: creating one takes as long as a small query.
_SPARE: dict[tuple[int, frozenset[tuple[str, str]]], list[SparkSession]] = {}

# For a few rows, compiling a plan takes longer than running it, and a shuffle gains nothing.
FOR_FEW_ROWS = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.databricks.delta.snapshotPartitions": "1",
}

NO_BROADCAST = {"spark.sql.autoBroadcastJoinThreshold": "-1"}


def session_for_few_rows(spark: SparkSession) -> SparkSession:
    """A copy of the session that reads or writes a few rows in half the time (ADR 18). With Spark Connect, which has no
    newSession, the session itself."""
    if is_connect(spark):
        return spark
    return _session_like(spark, {**_settings_of(spark), **FOR_FEW_ROWS})


def _settings_of(spark: SparkSession) -> dict[str, str]:
    """The session's settings, including storage settings without a prefix, such as credentials set in a notebook."""
    prefixes, end = ("spark.sql.", "spark.databricks.delta."), uuid4().hex
    # All at once: spark.conf.getAll asks the JVM for each key and each value.
    texts = str(cast(Any, spark)._jsparkSession.conf().getAll().mkString(end)).split(end)
    settings = dict(text.split(" -> ", 1) for text in texts if text)
    return {k: v for k, v in settings.items() if k.startswith(prefixes) or not k.startswith("spark.")}


def _session_like(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    own = spark.newSession()
    for key, value in settings.items():
        if not key.startswith("spark.") or spark.conf.isModifiable(key):  # isModifiable doesn't know storage settings
            is_set(own, key, value)
    return own


@contextmanager
def temporarily(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Changes settings within the context and restores them afterwards. Skips settings that a platform refuses."""
    before = {key: value_of(spark, key) for key in settings}
    before = {key: before[key] for key, value in settings.items() if is_set(spark, key, value)}
    try:
        yield
    finally:
        for key, original in before.items():
            if original is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, original)


@contextmanager
def tagged(spark: SparkSession, tag: str) -> Iterator[None]:
    """Within the context, the thread's Spark jobs have this tag."""
    spark.addTag(tag)
    try:
        yield
    finally:
        spark.removeTag(tag)


class _TaggedThreads(ThreadPoolExecutor):
    """Two threads whose Spark jobs have the tag. It's set for each call, not by an initializer, whose errors would hide
    the call's."""

    def __init__(self, spark: SparkSession, tag: str) -> None:
        super().__init__(2)
        self.spark, self.tag = spark, tag

    def submit(self, work: Callable[..., T], /, *given: Any, **named: Any) -> Future[T]:
        def run() -> T:
            with tagged(self.spark, self.tag):
                return work(*given, **named)

        return super().submit(run)


@contextmanager
def background_jobs(spark: SparkSession) -> Iterator[Executor]:
    """Two threads for Spark jobs in parallel to the body of the context. Their jobs are canceled if the body fails."""
    tag = f"pgoutput_etl-{uuid4().hex}"
    with _TaggedThreads(spark, tag) as threads:
        try:
            yield threads
        except BaseException:
            spark.interruptTag(tag)
            raise


def writes_may_overlap(spark: SparkSession) -> bool:
    """True if `session_settings` gives each thread its own session."""
    return not is_connect(spark)
