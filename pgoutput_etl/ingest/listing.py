"""Lists the landing folder and checks the files' sizes before they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.compression import MAX_SIZE
from pgoutput_etl.errors import ArchiveError, ConfigError
from pgoutput_etl.landing.file_index import LISTING_SCHEMA, Listing
from pgoutput_etl.landing.fingerprint import LandedFile
from pgoutput_etl.spark.platform import value_of
from pgoutput_etl.spark.session import (
    _landed,
)

MAX_LENGTH = "spark.sql.sources.binaryFile.maxLength"

_UNREADABLE = (
    "FAILED_READ_FILE",
    "FileNotFoundException",
    "NoSuchFileException",
    "AccessControlException",
    "AccessDenied",
    "Permission denied",
    "PATH_NOT_FOUND",
)


def list_landing(spark: SparkSession, landing: str) -> Listing:
    """All files below a folder, or that match a glob, without reading any. Raises ConfigError if there is no such."""
    modified = F.unix_micros("modificationTime").alias("modified")
    try:
        table = _landed(spark, landing).select("path", F.col("length").alias("size"), modified).toArrow()
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            raise ConfigError(f"source.landing: there is no {landing}") from None
        raise
    return Listing(table.cast(LISTING_SCHEMA))


def size_limit(spark: SparkSession) -> int:
    """How many bytes a file may have, and expand to if it is compressed."""
    return min(int(value_of(spark, MAX_LENGTH) or MAX_SIZE), MAX_SIZE)


def check_sizes(spark: SparkSession, files: Iterable[LandedFile]) -> None:
    """Raises ArchiveError for a file that binaryFile can't carry, before anything is read."""
    limit = size_limit(spark)
    for file in files:
        if file.size > limit:
            raise ArchiveError(
                f"{file.path} has {file.size:,} bytes, and Spark's binaryFile carries at most {limit:,} "
                f"({MAX_LENGTH}). Land smaller files: pg_recvlogical begins a new one when it gets SIGHUP after the "
                "old one was renamed, so rotate by size. A file that is too large already can be cut between any two "
                "messages."
            )


@contextmanager
def reading_files(paths: Iterable[str] = ()) -> Iterator[None]:
    """What Spark says of a file that it can't read is an ArchiveError that names it."""
    try:
        yield
    except ArchiveError:
        raise
    except Exception as error:
        said = str(error)
        if not any(sign in said for sign in _UNREADABLE):
            raise
        # Spark may write a path in another way than it lists it.
        bare = {path: path.partition(":")[2].lstrip("/") or path for path in paths}
        named = [path for path, part in bare.items() if part in said or quote(part) in said]
        which = max(named, key=len, default="a landed file")
        raise ArchiveError(f"{which}: it can't be read: it is gone, or this job has no right to") from error
