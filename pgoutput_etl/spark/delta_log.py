"""Reads a Delta table's log through Delta's own classes in the JVM, without a Spark job.

These classes are not part of Delta's API: they may be missing or different. Functions then return None, and callers use
the API.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar, cast

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.places import Place
from pgoutput_etl.spark.connect import is_connect
from pgoutput_etl.spark.delta import catalog_table, delta_table, read_table
from pgoutput_etl.spark.java import hadoop_path, java_class, scala_option
from pgoutput_etl.spark.platform import is_platform_session

_T = TypeVar("_T")

Action = dict[str, Any]

MOST_COMMITS = 5  # to read one by one

_DELTA_LOG = "org.apache.spark.sql.delta.DeltaLog"


@dataclass(frozen=True, slots=True)
class DeltaCommit:
    """metrics: Delta's, as numbers. user_metadata: the text that its writer stored with it."""

    version: int
    operation: str
    metrics: Mapping[str, int]
    user_metadata: str | None = None


def read_log(spark: SparkSession, place: Place) -> DataFrame | None:
    """Like `read_table`, but doesn't ask the storage first whether the folder has a table."""

    def read(log: Any) -> DataFrame:
        since = scala_option(spark, now)
        snapshot = log.update(False, since, getattr(log, "update$default$3")())  # lists the log unless it just did
        defaults = [getattr(log, f"createRelation$default${number}")() for number in (1, 3, 4)]
        relation = log.createRelation(defaults[0], scala_option(spark, snapshot), *defaults[1:])
        return DataFrame(cast(Any, spark)._jsparkSession.baseRelationToDataFrame(relation), spark)

    now = round(time.time() * 1000)
    return of_log(spark, place, read)


def newest_version(spark: SparkSession, place: Place) -> int | None:
    """The version that this process last read or wrote."""
    return of_log(spark, place, lambda log: int(log.unsafeVolatileSnapshot().version()))


def folder_of_log(spark: SparkSession, place: Place) -> str | None:
    """The table's folder, as a URI."""
    return of_log(spark, place, lambda log: str(log.dataPath().toString()))


def has_bytes(spark: SparkSession, place: Place, most: int) -> bool:
    """True if this version's data files have at most `most` bytes, according to its checksum file."""
    checksum = of_log(spark, place, lambda log: log.unsafeVolatileSnapshot().checksumOpt())  # sizeInBytes runs a job
    return checksum is not None and checksum.isDefined() and bool(checksum.get().tableSizeBytes() <= most)


def files_and_bytes(spark: SparkSession, place: Place) -> tuple[int, int]:
    """The number of the table's data files and their bytes, from the checksum file or else from Delta's API."""

    def read(log: Any) -> tuple[int, int] | None:
        checksum = updated(log).checksumOpt()
        return (checksum.get().numFiles(), checksum.get().tableSizeBytes()) if checksum.isDefined() else None

    found = of_log(spark, place, read)
    if found is not None:
        return found
    detail = delta_table(spark, place.table).detail().collect()[0]
    return detail["numFiles"], detail["sizeInBytes"]


def properties_of(spark: SparkSession, place: Place) -> dict[str, str] | None:
    """The table's properties in this version, including its features as delta.feature.NAME."""

    def read(log: Any) -> dict[str, str]:
        snapshot = log.unsafeVolatileSnapshot()
        features = {f"delta.feature.{name}": "supported" for name in features_of(snapshot)}
        return {**features, **items_of(snapshot.metadata().configuration())}

    return of_log(spark, place, read)


def items_of(scala_map: Any) -> dict[str, str]:
    pairs, found = scala_map.iterator(), {}
    while pairs.hasNext():
        pair = pairs.next()
        found[str(pair._1())] = str(pair._2())
    return found


def features_of(snapshot: Any) -> list[str]:
    """The names of the table's features in a Delta snapshot, or after a transaction."""
    return [name for name in snapshot.protocol().readerAndWriterFeatureNames().mkString(",").split(",") if name]


def newest_commit(spark: SparkSession, place: Place) -> DeltaCommit | None:
    """The table's last commit, by any writer."""

    def read(log: Any) -> DeltaCommit | None:
        read_table(spark, place)  # lists the log
        return _commit_of(spark, log, log.unsafeVolatileSnapshot().version())

    return of_log(spark, place, read)


def logged_after(spark: SparkSession, place: Place, version: int) -> list[DeltaCommit] | None:
    """The table's commits after a version, newest first; None if there are many."""

    def read(log: Any) -> list[DeltaCommit] | None:
        newest = int(updated(log).version())
        if newest - version > MOST_COMMITS:
            return None
        commits = [_commit_of(spark, log, later) for later in range(newest, version, -1)]
        known = [commit for commit in commits if commit is not None]
        return known if len(known) == len(commits) else None

    return of_log(spark, place, read)


def _commit_of(spark: SparkSession, log: Any, version: int) -> DeltaCommit | None:
    """None for a commit without commitInfo, which Delta's protocol allows."""
    info: Action = next((a["commitInfo"] for a in actions_of(spark, log, version) if "commitInfo" in a), {})
    if "operation" not in info:
        return None
    return DeltaCommit(version, info["operation"], metrics_of(info.get("operationMetrics")), info.get("userMetadata"))


def actions_of(spark: SparkSession, log: Any, version: int) -> list[Action]:
    """The actions of a commit. log: Delta's DeltaLog."""
    path = hadoop_path(spark, log.logPath(), f"{version:020d}.json")
    lines = log.store().read(path, log.newDeltaHadoopConf())
    return [json.loads(lines.apply(i)) for i in range(lines.size())]


def updated(log: Any) -> Any:
    """The newest snapshot of the log."""
    return log.update(*defaults(log, "update", 1))


def json_of(actions: Any) -> list[str]:
    return [str(actions.apply(n).json()) for n in range(actions.size())]


def defaults(owner: Any, method: str, first: int) -> Iterator[Any]:
    """The default values of a Scala method's parameters, starting at `first`; their number differs between versions of
    Delta."""
    with suppress(Py4JError):
        for number in count(first):
            yield getattr(owner, f"{method}$default${number}")()


def metrics_of(texts: Mapping[str, str] | None) -> dict[str, int]:
    return {key: int(value) for key, value in (texts or {}).items() if str(value).isdigit()}


def of_log(spark: SparkSession, place: Place, read: Callable[[Any], _T]) -> _T | None:
    """The result of `read` on the table's DeltaLog, or None."""
    if is_connect(spark) or is_platform_session():
        return None
    try:
        log = _log(spark, place)
        return None if log is None else read(log)
    except (Py4JError, PySparkException, TypeError):  # TypeError: there is no such class
        return None


def _log(spark: SparkSession, place: Place) -> Any | None:
    """None for a table in another catalog than Spark's own, which may control who reads and writes it."""
    session = cast(Any, spark)._jsparkSession
    table = catalog_table(spark, place) if place.is_in_catalog else place.name
    return None if table is None else java_class(spark, _DELTA_LOG).forTable(session, table)
