"""Measures, compacts, vacuums, and checkpoints a Delta table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import reduce
from operator import and_
from typing import Any, cast

from py4j.java_gateway import JavaClass
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.identifiers import quoted
from pgoutput_etl.ingest.binary_files import literal_paths
from pgoutput_etl.places import Place
from pgoutput_etl.spark.connect import is_connect
from pgoutput_etl.spark.delta import delta_table, folder_of, is_delta_table, read_table, remove_table
from pgoutput_etl.spark.delta_files import names_of_files
from pgoutput_etl.spark.delta_history import changes_files, commits_after, history_of, own_operations
from pgoutput_etl.spark.delta_log import properties_of
from pgoutput_etl.spark.file_index import listed_files
from pgoutput_etl.spark.java import java_class, scala_object
from pgoutput_etl.spark.object_folder import ObjectFolder
from pgoutput_etl.spark.platform import is_platform_session
from pgoutput_etl.spark.session import session_settings
from pgoutput_etl.work.upkeep.retention import SMALL_FILE, FileCounts, StoredFile, count_files

_SIZES = {
    "spark.databricks.delta.optimize.minFileSize": str(SMALL_FILE),
    "spark.databricks.delta.optimize.maxFileSize": str(SMALL_FILE),
}

_CLUSTERING = "delta.feature.clustering"

_MOST_LISTED = 500  # local files; listing more takes longer than a Spark job

# Without this, Delta 4.1 and later ignore the given hours and use the table's own retention of a week.
_HONOR_HOURS = {"spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false"}


@contextmanager
def _without_console(spark: SparkSession) -> Iterator[None]:
    """VACUUM prints its result to standard output, which is reserved for the report."""
    console = scala_object(spark, "scala.Console")
    before = console.out()
    nothing = java_class(spark, "java.io.OutputStream").nullOutputStream()
    console.setOutDirect(java_class(spark, "java.io.PrintStream")(nothing))
    try:
        yield
    finally:
        console.setOutDirect(before)


def versions_of_log(log: ObjectFolder) -> dict[str, int]:
    """The version of each file in a log, by file name; a hidden file is another file's checksum."""
    return {name: int(number) for name in log.names("") if (number := name.lstrip(".").split(".", 1)[0]).isdigit()}


@dataclass(frozen=True, slots=True)
class DeltaFolder:
    """A Delta table. place: a path, a name in a catalog, or a tag's rows in a table that several sources share. files:
    the paths of its data files, if known without Spark."""

    spark: SparkSession
    place: Place
    files: Callable[[], list[str] | None] = lambda: None

    @property
    def path(self) -> Place:
        """The place of the whole table."""
        return self.place.table

    @property
    def log(self) -> ObjectFolder:
        """The folder of Delta's log."""
        return ObjectFolder(self.spark, f"{folder_of(self.spark, self.path)}/_delta_log")

    def exists(self) -> bool:
        return bool(self.files()) or is_delta_table(self.spark, self.path)

    def measure(self, expiry: datetime) -> FileCounts:
        """Lists stored files and reads the newest version's files from the log, but no data. Unity Catalog doesn't
        allow listing the files of a managed table, so its counts come from the log alone. expiry: as in count_files."""
        if self.path.is_in_catalog and is_platform_session():
            [detail] = delta_table(self.spark, self.path).detail().select("numFiles", "sizeInBytes").collect()
            return FileCounts(detail["numFiles"], detail["sizeInBytes"], None, None, None, None)
        current = self.files()
        if current is None:
            current = names_of_files(self.spark, self.path)
        if current is None:
            current = list(read_table(self.spark, self.path).inputFiles())
        return count_files(self._stored(), current, expiry)

    def _stored(self) -> Iterator[StoredFile]:
        reader = self.spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        files = reader.load(literal_paths([folder_of(self.spark, self.path)]))
        listed = listed_files(files, _MOST_LISTED)
        if listed is not None:
            for path, size, modified in listed:
                yield StoredFile(path, size, datetime.fromtimestamp(modified / 1000, timezone.utc))
            return
        for row in files.select("path", "length", "modificationTime").toArrow().to_pylist():
            yield StoredFile(row["path"], row["length"], row["modificationTime"])

    def commits_since(self, version: int) -> tuple[int, list[str]]:
        """The newest version that may have changed files, and the operations of commits after `version`, without those
        of other sources that share the table."""
        commits = commits_after(self.spark, self.path, version)
        newest = max((commit.version for commit in commits if changes_files(commit.operation)), default=version)
        return newest, own_operations(self.place, commits)

    def is_unclustered(self) -> bool | None:
        """True if a clustered table has changed since its last OPTIMIZE; None if the table is not clustered."""
        properties = properties_of(self.spark, self.path)
        if properties is not None and _CLUSTERING not in properties:
            return None
        if not delta_table(self.spark, self.path).detail().select("clusteringColumns").collect()[0][0]:
            return None
        operations = (commit.operation for commit in history_of(self.spark, self.path))
        return next(filter(changes_files, operations), "") != "OPTIMIZE"

    def optimize(self, order: Sequence[str] = ()) -> bool:
        """Compacts small files, or orders rows by the Z-order of the given columns. Changes no rows. Returns False if
        Delta has no statistics on these columns and therefore can't order by them."""
        try:
            self._optimize(order)
        except AnalysisException:
            if not order:
                raise
            self._optimize(())
            return False
        return True

    def _optimize(self, order: Sequence[str]) -> None:
        with session_settings(self.spark, _SIZES) as session:
            if is_connect(session):
                by = f"ZORDER BY ({', '.join(quoted(name) for name in order)})" if order else ""
                session.sql(f"OPTIMIZE {self.path.identifier} {by}").collect()
                return
            builder = delta_table(session, self.path).optimize()
            (builder.executeZOrderBy(list(order)) if order else builder.executeCompaction()).collect()

    def vacuum(self, hours: int) -> None:
        """Removes files that no version of the last `hours` hours needs; Delta enforces a minimum."""
        with session_settings(self.spark, _HONOR_HOURS) as session:
            if is_connect(session):
                session.sql(f"VACUUM {self.path.identifier} RETAIN {hours:d} HOURS").collect()
                return
            with _without_console(session):
                delta_table(session, self.path).vacuum(hours)

    def remove(self) -> str | None:
        """Removes the table with all its versions. Returns the reason if this Spark can't."""
        is_removed = remove_table(self.spark, self.path)
        return None if is_removed else f"this Spark can't remove a folder: remove {self.path} by other means"

    def commits_since_checkpoint(self) -> int | None:
        """The number of commits that a reader of the log must replay; None if this Spark can't tell."""
        if self._logs() is None:
            return None
        versions = versions_of_log(self.log)
        checkpoint = max((version for name, version in versions.items() if ".checkpoint." in name), default=-1)
        return sum(version > checkpoint and name.endswith(".json") for name, version in versions.items())

    def checkpoint(self) -> str | None:
        """Writes a checkpoint, so readers don't have to replay the log. Returns the reason if this Spark can't."""
        logs = self._logs()
        if logs is None:
            return "this Spark can't write a checkpoint on request; Delta writes one every few commits itself"
        logs.forTable(cast(Any, self.spark)._jsparkSession, folder_of(self.spark, self.path)).checkpoint()
        return None

    def _logs(self) -> JavaClass | None:
        """Delta's DeltaLog class; None without a JVM that has it."""
        if is_connect(self.spark):
            return None
        found = cast(Any, self.spark)._jvm.org.apache.spark.sql.delta.DeltaLog
        return found if isinstance(found, JavaClass) else None

    def delete(self, condition: Column) -> None:
        """Deletes with a one-row MERGE, the only way in a Connect session. condition: refers to columns `t.…`."""
        one = self.spark.range(1).toDF("_one").alias("s")
        delta_table(self.spark, self.path).alias("t").merge(one, condition).whenMatchedDelete().execute()

    def delete_others(self, condition: Column, remaining: DataFrame, key: Sequence[str]) -> None:
        """Deletes rows that meet the condition on columns `t.…`, except those whose key is in `remaining`."""
        same = reduce(and_, (F.col(f"t.{name}") == F.col(f"s.{name}") for name in key))
        merge = delta_table(self.spark, self.path).alias("t").merge(remaining.alias("s"), same)
        merge.whenNotMatchedBySourceDelete(condition).execute()
