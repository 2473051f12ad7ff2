"""Lists the landing folder and checks the files' sizes before they are read."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast
from urllib.parse import quote, unquote

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.compression import MAX_SIZE
from pgoutput_etl.errors import ArchiveError, ConfigError
from pgoutput_etl.landing.file_index import LISTING_SCHEMA, Listing
from pgoutput_etl.landing.fingerprint import LandedFile, ScanTask
from pgoutput_etl.scan.landed_tuples import RereadError
from pgoutput_etl.spark.connect import is_connect
from pgoutput_etl.spark.platform import is_platform_session, value_of

_TASK_BYTES = "spark.sql.files.maxPartitionBytes"

_MOST_BYTES = 1 << 27  # of a task, as by default in Spark

_OPENING_BYTES = 1 << 19  # that are read in about the time that opening a file and scanning a few messages take

_CORES_OF_CONNECT = 8

MAX_LENGTH = "spark.sql.sources.binaryFile.maxLength"

_LAND_SMALLER = (
    "Land smaller files: rename the current file by its size and send SIGHUP, and pg_recvlogical starts a new one. An "
    "existing file can be split between any two messages."
)

_COPIES_IN_JAVA = 2

_SURELY_FITS = 1 << 26  # bytes of a file, in the least memory with which Spark starts

_REREAD_ERROR = re.compile(rf"{RereadError.__name__}: ([^\n]*)")  # of a worker

_UNREADABLE = (
    "FAILED_READ_FILE",
    "FileNotFoundException",
    "FileNotFoundError",
    "NoSuchFileException",
    "AccessControlException",
    "AccessDenied",
    "Permission denied",
    "PATH_NOT_FOUND",
)


def list_landing(spark: SparkSession, landing: str) -> Listing:
    """All files below a folder or matching a glob; none is read. Raises ConfigError if nothing exists there."""
    modified = F.unix_micros("modificationTime").alias("modified")
    try:
        table = _binary_files(spark, landing).select("path", F.col("length").alias("size"), modified).toArrow()
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            raise ConfigError(f"source.landing: {landing} does not exist") from None
        raise
    return Listing(table.cast(LISTING_SCHEMA))


def list_names(spark: SparkSession, landing: str) -> list[str]:
    """The paths of all files in the landing folder, including empty ones, which Spark leaves out of what it reads."""
    # inputFiles returns URIs, binaryFile paths: file:///a%20b is file:/a b.
    return [unquote(name).replace(":///", ":/", 1) for name in _binary_files(spark, landing).inputFiles()]


def _binary_files(spark: SparkSession, landing: str) -> DataFrame:
    return spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(landing)


def size_limit(spark: SparkSession) -> int:
    """Maximum bytes of a file, as stored and decompressed."""
    return min(int(value_of(spark, MAX_LENGTH) or MAX_SIZE), MAX_SIZE)


def check_sizes(spark: SparkSession, files: Iterable[LandedFile]) -> None:
    """Raises ArchiveError for a file that is too large for binaryFile, or for the memory that it takes there."""
    limit = size_limit(spark)
    for file in files:
        if file.size > limit:
            raise ArchiveError(
                f"{file.path} has {file.size:,} bytes, and Spark's binaryFile carries at most {limit:,} "
                f"({MAX_LENGTH}). {_LAND_SMALLER}"
            )
        if file.size > _SURELY_FITS and not file.path.startswith("file:/"):
            _check_memory(spark, file)


def _check_memory(spark: SparkSession, file: LandedFile) -> None:
    """A worker opens a local file itself. Any other comes through Java's heap, which holds it at least twice: as Hadoop
    read it, and as a row. An executor without room for that dies, and with it the run, without naming the file."""
    heap = _heap_of(spark)
    if heap is not None and _COPIES_IN_JAVA * file.size > heap:
        raise ArchiveError(
            f"{file.path} has {file.size:,} bytes, and an executor with {heap:,} bytes of memory reads at most "
            f"{heap // _COPIES_IN_JAVA:,} from storage other than its own disk (spark.executor.memory; without a "
            f"cluster, spark.driver.memory). {_LAND_SMALLER}"
        )


def _heap_of(spark: SparkSession) -> int | None:
    """Bytes of an executor's heap, or None if this session can't tell."""
    if is_connect(spark) or is_platform_session():
        return None
    context = cast(Any, spark.sparkContext)
    if context.master.startswith("local"):
        return int(context._jvm.java.lang.Runtime.getRuntime().maxMemory())
    return int(context._jsc.sc().executorMemory()) << 20


def even_tasks(spark: SparkSession, files: Iterable[ScanTask]) -> dict[str, str]:
    """The setting with which Spark reads the files in tasks of the same size, as many as keep every core busy; none if
    the configuration has it."""
    if is_connect(spark) or value_of(spark, _TASK_BYTES) is not None:
        return {}
    opening = int(value_of(spark, "spark.sql.files.openCostInBytes") or 0)
    total = sum(file.size + opening for file in files)
    return {_TASK_BYTES: str(even_bytes(total, spark.sparkContext.defaultParallelism))}


def cores_of(spark: SparkSession) -> int:
    """Tasks at a time. A client of Spark Connect can't know."""
    return _CORES_OF_CONNECT if is_connect(spark) else spark.sparkContext.defaultParallelism


def even_parts(paths: Iterable[str], sizes: Mapping[str, int], cores: int) -> list[list[str]]:
    """The paths in order, in parts of about the same size: one part for each task."""
    weights = {path: sizes.get(path, 0) + _OPENING_BYTES for path in paths}
    total, count = sum(weights.values()), _task_count(sum(weights.values()), cores)
    parts: list[list[str]] = [[] for _ in range(count)]
    before = 0
    for path, weight in weights.items():
        parts[(2 * before + weight) * count // (2 * total)].append(path)  # where the file's middle lies
        before += weight
    return [part for part in parts if part]


def even_bytes(total: int, cores: int) -> int:
    """Bytes per task, chosen so that all cores finish at about the same time. With Spark's default of 128 MiB, 300 MB
    on two cores make three tasks, and one core idles during the third."""
    size = total // _task_count(total, cores) + 1
    return size + size // 20  # files differ in size, and none is split


def _task_count(total: int, cores: int) -> int:
    return max(-(-total // (_MOST_BYTES * cores)), 1) * cores


@contextmanager
def rereading_files() -> Iterator[None]:
    """Turns a worker's RereadError, which Spark wraps, into an ArchiveError."""
    try:
        yield
    except ArchiveError:
        raise
    except Exception as error:
        changed = _REREAD_ERROR.search(str(error))
        if changed is None:
            raise
        raise ArchiveError(changed[1]) from error


@contextmanager
def reading_files(paths: Iterable[str] = ()) -> Iterator[None]:
    """Turns Spark's error about an unreadable file into an ArchiveError that names the file."""
    try:
        yield
    except ArchiveError:
        raise
    except Exception as error:
        text = str(error)
        if not any(sign in text for sign in _UNREADABLE):
            raise
        # Spark's errors may spell a path differently from its listings.
        bare = {path: path.partition(":")[2].lstrip("/") or path for path in paths}
        named = [path for path, part in bare.items() if part in text or quote(part) in text]
        file = max(named, key=len, default="a landed file")
        raise ArchiveError(f"{file}: it can't be read: it no longer exists, or this job may not read it") from error
