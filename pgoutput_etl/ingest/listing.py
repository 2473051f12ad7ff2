"""Lists the landing folder and checks the files' sizes before they are read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.compression import MAX_SIZE
from pgoutput_etl.error_codes import ErrorCode
from pgoutput_etl.errors import ArchiveError, ConfigError, text_of_own
from pgoutput_etl.landing.file_index import LISTING_SCHEMA, Listing
from pgoutput_etl.landing.fingerprint import LandedFile, ScanTask
from pgoutput_etl.landing.local_files import LocalFiles
from pgoutput_etl.plain_file import PlainFileError, is_pattern, outside_landing, outside_root, root_of
from pgoutput_etl.scan.landed_tuples import RereadError
from pgoutput_etl.scan.message_row import ScanError
from pgoutput_etl.spark.connect import is_connect
from pgoutput_etl.spark.file_index import listed_files
from pgoutput_etl.spark.java import java_class
from pgoutput_etl.spark.options import is_local
from pgoutput_etl.spark.platform import is_platform_session, local_matches, local_path, value_of

_TASK_BYTES = "spark.sql.files.maxPartitionBytes"

_MOST_BYTES = 1 << 27  # per task, Spark's default

_OPENING_BYTES = 1 << 17  # can be read in about the time that it takes to open a file and scan a few messages

_CORES_OF_CONNECT = 8

_FEW_FILES = 1000  # local files; if there are more, a Spark job lists them faster

MAX_LENGTH = "spark.sql.sources.binaryFile.maxLength"

_LAND_SMALLER = (
    "Land smaller files: rename the current file by its size and send SIGHUP, and pg_recvlogical starts a new one. An "
    "existing file can be split between any two messages."
)

_COPIES_IN_JAVA = 2

_BLOCK_BYTES = 512  # unit of st_blocks, on any file system

_SURELY_FITS = 1 << 26  # bytes; a file of this size fits into the least memory that Spark starts with

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


class FilesChangedError(ArchiveError):
    """Files have grown, or were renamed or removed, since they were listed, selected, or scanned."""

    code = ErrorCode.CHANGED_FILE


class UnreadableFileError(ArchiveError):
    """A listed file that is missing, or that this job may not read. path: empty if the error doesn't name it."""

    code = ErrorCode.UNREADABLE_FILE

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text)
        self.path = path


def gone(path: str) -> UnreadableFileError:
    return UnreadableFileError(f"{path}: this file was listed, but was gone when it was to be read. Run again", path)


def list_landing(spark: SparkSession, landing: str) -> Listing:
    """All plain files below a folder or matching a glob, except empty ones. Reads no file. An object whose name
    contains `..` doesn't count as a plain file, because Hadoop would read another folder's object. Raises ConfigError
    if nothing exists there."""
    local = _local_listing(spark, landing)
    if local is not None:
        return local.with_content()
    try:
        files = _binary_files(spark, landing)
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            raise _missing(landing) from None
        raise
    table = _listed(files).cast(LISTING_SCHEMA)
    paths = table.column("path")
    outside = {path: outside_landing(path) for path in outside_root(paths.to_pylist(), landing)}
    return Listing(table.filter(pc.invert(pc.is_in(paths, pa.array(outside, pa.string())))), outside)


def _missing(landing: str) -> ConfigError:
    return ConfigError(f"source.landing: {landing} does not exist")


def _local_listing(spark: SparkSession, landing: str) -> Listing | None:
    """The listing of a local folder or glob, including empty files, with the paths and times that Spark uses. None for
    other storage. Spark would follow links, even circular ones."""
    pattern = local_path(spark, landing)
    if pattern is None:
        return None
    found = LocalFiles()
    if is_pattern(pattern):
        matches = local_matches(spark, landing)
        if not matches:
            raise _missing(landing)
        found.add_matched(matches, root_of(pattern))
    else:
        try:
            found.add_named(pattern)
        except ConfigError:
            raise _missing(landing) from None
    return found.listing().under_uris()


def local_root(spark: SparkSession, landing: str) -> str | None:
    """The folder above everything that a local folder or glob matches; None for other storage."""
    pattern = local_path(spark, landing)
    if pattern is None:
        return None
    return root_of(os.path.realpath(pattern) if Path(pattern).is_file() else pattern)


def _listed(files: DataFrame) -> pa.Table:
    """Uses Spark's own listing: binaryFile would request each file's status again."""
    listed = listed_files(files, _FEW_FILES)
    if listed is None:
        modified = F.unix_micros("modificationTime").alias("modified")
        return files.select("path", F.col("length").alias("size"), modified).toArrow()
    rows = [{"path": path, "size": size, "modified": 1000 * time} for path, size, time in listed if size]
    return pa.Table.from_pylist(rows, LISTING_SCHEMA)


def sizes_of(spark: SparkSession, option: str, path: str) -> dict[str, int]:
    """Sizes, by path, of the file, or of all files below the folder, that a command-line option names. Raises
    ConfigError if nothing exists there, or if one isn't a plain file."""
    try:
        listing = list_landing(spark, path)
    except ConfigError:
        raise ConfigError(f"{option}: {path} does not exist") from None
    for reason in listing.not_plain.values():
        raise ConfigError(f"{option}: {reason}")
    return {file.path: file.size for file in listing.files()}


def list_names(spark: SparkSession, landing: str) -> list[str]:
    """The paths of all files in the landing folder, including empty ones, which Spark omits from what it reads."""
    local = _local_listing(spark, landing)
    if local is not None:
        return [str(path) for path in local.table.column("path").to_pylist()]
    # inputFiles returns URIs, and binaryFile paths: file:///a%20b is file:/a b.
    return [unquote(name).replace(":///", ":/", 1) for name in _binary_files(spark, landing).inputFiles()]


def _binary_files(spark: SparkSession, landing: str) -> DataFrame:
    return spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(landing)


def size_limit(spark: SparkSession) -> int:
    """Maximum bytes of a file, both as stored and decompressed."""
    return min(int(value_of(spark, MAX_LENGTH) or MAX_SIZE), MAX_SIZE)


def oversized(spark: SparkSession, files: Iterable[LandedFile]) -> dict[str, ScanError]:
    """The errors, by path, of files that are too large for binaryFile or for the memory that they need there."""
    limit = size_limit(spark)
    errors = dict[str, ScanError]()
    for file in files:
        if file.size > limit:
            text = (
                f"{file.path} has {file.size:,} bytes, and Spark's binaryFile carries at most {limit:,} "
                f"({MAX_LENGTH}). {_LAND_SMALLER}"
            )
            errors[file.path] = ScanError(text, is_hopeless=_is_mostly_holes(file))
        elif file.size > _SURELY_FITS and not file.path.startswith("file:/"):
            errors |= _memory_error(spark, file)
    return errors


def _is_mostly_holes(file: LandedFile) -> bool:
    """True for a sparse local file, with far fewer blocks than its size needs. No receiver writes such a file; any
    other file can be split."""
    if not file.path.startswith("file:/"):
        return False
    with suppress(OSError):
        return os.lstat(file.path.removeprefix("file:")).st_blocks * _BLOCK_BYTES < file.size // 2
    return False


def _memory_error(spark: SparkSession, file: LandedFile) -> dict[str, ScanError]:
    """The error, by path, if the file doesn't fit into memory. Workers open local files themselves. Any other file
    passes through Java's heap, at least twice: as Hadoop reads it, and as a row. An executor without room for that
    dies, and so does the run, without naming the file."""
    heap = heap_of(spark)
    if heap is None or _COPIES_IN_JAVA * file.size <= heap:
        return {}
    text = (
        f"{file.path} has {file.size:,} bytes, and an executor with {heap:,} bytes of memory reads at most "
        f"{heap // _COPIES_IN_JAVA:,} from storage other than its own disk (spark.executor.memory; without a "
        f"cluster, spark.driver.memory). {_LAND_SMALLER}"
    )
    return {file.path: ScanError(text)}


def heap_of(spark: SparkSession) -> int | None:
    """Bytes of an executor's heap, or None if this session can't tell."""
    if is_platform_session():
        return None
    if is_connect(spark):
        holder = "driver" if is_local({"spark.master": value_of(spark, "spark.master") or ""}) else "executor"
        return _heap_setting(value_of(spark, f"spark.{holder}.memory") or "1g")
    context = cast(Any, spark.sparkContext)
    if is_local({"spark.master": context.master}):
        return int(java_class(spark, "java.lang.Runtime").getRuntime().maxMemory())
    return int(context._jsc.sc().executorMemory()) << 20


def _heap_setting(text: str) -> int | None:
    """Bytes of a setting such as 4g, where a plain number is in MiB; None for any other format."""
    match = re.fullmatch(r"(\d+)([kmgt]?)b?", text.strip().lower())
    return None if match is None else int(match[1]) << {"k": 10, "": 20, "m": 20, "g": 30, "t": 40}[match[2]]


def even_tasks(spark: SparkSession, files: Iterable[ScanTask]) -> dict[str, str]:
    """The setting that makes Spark read the files in tasks of equal size, enough to keep every core busy. Empty with
    Spark Connect, or if the configuration already has this setting."""
    if is_connect(spark) or value_of(spark, _TASK_BYTES) is not None:
        return {}
    opening = int(value_of(spark, "spark.sql.files.openCostInBytes") or 0)
    total = sum(file.size + opening for file in files)
    return {_TASK_BYTES: str(even_bytes(total, spark.sparkContext.defaultParallelism))}


def cores_of(spark: SparkSession) -> int:
    """The number of tasks that run in parallel; a guess for Spark Connect, whose client can't know it."""
    return _CORES_OF_CONNECT if is_connect(spark) else spark.sparkContext.defaultParallelism


def even_parts(paths: Iterable[str], sizes: Mapping[str, int], cores: int) -> list[list[str]]:
    """The paths in order, in parts of about equal size, one per task."""
    weights = {path: sizes.get(path, 0) + _OPENING_BYTES for path in paths}
    total, count = sum(weights.values()), _task_count(sum(weights.values()), cores)
    parts: list[list[str]] = [[] for _ in range(count)]
    before = 0
    for path, weight in weights.items():
        parts[(2 * before + weight) * count // (2 * total)].append(path)  # the part that contains the file's middle
        before += weight
    return [part for part in parts if part]


def even_bytes(total: int, cores: int) -> int:
    """Bytes per task, such that all cores finish at about the same time. With Spark's default of 128 MiB, 300 MB on two
    cores make three tasks, and one core idles during the third."""
    size = total // _task_count(total, cores) + 1
    return size + size // 20  # files differ in size, and none is split


def _task_count(total: int, cores: int) -> int:
    return max(-(-total // (_MOST_BYTES * cores)), 1) * cores


@contextmanager
def rereading_files(paths: Iterable[str]) -> Iterator[None]:
    """Turns errors about files that were scanned before into a FilesChangedError: a worker's RereadError, which Spark
    wraps, and any error about reading one of these files."""
    try:
        yield
    except RereadError as error:
        raise FilesChangedError(str(error)) from error
    except ArchiveError:
        raise
    except Exception as error:
        if (changed := text_of_own(error, RereadError)) is not None:
            raise FilesChangedError(changed) from error
        if named := _unreadable_among(paths, str(error)):
            raise FilesChangedError(_cant_be_read(named)) from error
        raise


@contextmanager
def reading_files(paths: Iterable[str] = ()) -> Iterator[None]:
    """Turns Spark's error about an unreadable file into an UnreadableFileError."""
    try:
        yield
    except ArchiveError:
        raise
    except Exception as error:
        if (replaced := text_of_own(error, PlainFileError)) is not None:
            raise PlainFileError(replaced) from error
        named = _unreadable_among(paths, str(error))
        if named is None:
            raise
        raise UnreadableFileError(_cant_be_read(named or "a landed file"), named) from error


def _unreadable_among(paths: Iterable[str], error: str) -> str | None:
    """The path that an error names, or ""; None if the error isn't about an unreadable file."""
    if not any(sign in error for sign in _UNREADABLE):
        return None
    # Spark's errors may spell a path differently from its listings.
    bare = {path: path.partition(":")[2].lstrip("/") or path for path in paths}
    return max((path for path, part in bare.items() if part in error or quote(part) in error), key=len, default="")


def _cant_be_read(file: str) -> str:
    return (
        f"{file}: it can't be read: it no longer exists, this job may not read it, or its name has a part that Spark "
        "leaves out of paths (such as //)"
    )
