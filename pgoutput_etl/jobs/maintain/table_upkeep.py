"""What is done to one Delta table to keep it fast and small: measured, compacted, vacuumed, its log checkpointed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any, cast

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.identifiers import identifier, is_catalog_place, quoted
from pgoutput_etl.ingest.scan import literal_paths
from pgoutput_etl.jobs.maintain.retention import SMALL_FILE, FileCounts, counted
from pgoutput_etl.spark.connect import is_connect
from pgoutput_etl.spark.delta import delta_table, folder_of, read_table
from pgoutput_etl.spark.delta_history import changes_files
from pgoutput_etl.spark.platform import is_platform_session
from pgoutput_etl.spark.session import session_settings

# What loses to another commit at the same moment, and can be tried again at any time.
CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)

_SIZES = {
    "spark.databricks.delta.optimize.minFileSize": str(SMALL_FILE),
    "spark.databricks.delta.optimize.maxFileSize": str(SMALL_FILE),
}

# Otherwise Delta, from 4.1 on, takes the table's own retention, a week, whatever it is told.
_HOURS_COUNT = {"spark.databricks.delta.vacuum.retentionWindowIgnore.enabled": "false"}


@contextmanager
def _without_console(spark: SparkSession) -> Iterator[None]:
    """VACUUM prints on standard output what it did, which is the report's."""
    jvm = cast(Any, spark)._jvm
    console = getattr(getattr(jvm.scala, "Console$"), "MODULE$")
    before = console.out()
    console.setOutDirect(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))
    try:
        yield
    finally:
        console.setOutDirect(before)


@dataclass(frozen=True, slots=True)
class DeltaFolder:
    """A Delta table, by its folder or its name in a catalog."""

    spark: SparkSession
    path: str

    def measure(self) -> FileCounts:
        """Reads no data: lists what is stored, and asks the log which files the newest version has. Unity Catalog lets
        nobody list the files of a table that it manages: there the log alone is asked."""
        if is_catalog_place(self.path) and is_platform_session():
            [found] = delta_table(self.spark, self.path).detail().select("numFiles", "sizeInBytes").collect()
            return FileCounts(found["numFiles"], found["sizeInBytes"], None, None, None)
        current = read_table(self.spark, self.path).inputFiles()
        reader = self.spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        folder = folder_of(self.spark, self.path)
        stored = reader.load(literal_paths([folder])).select("path", "length").toArrow().to_pylist()
        return counted({row["path"]: row["length"] for row in stored}, current)

    def commits_since(self, version: int) -> tuple[int, list[str]]:
        """The newest version that may have other files than the one before it, and the operations of the commits
        behind the given one."""
        history = delta_table(self.spark, self.path).history().where(F.col("version") >= version)
        rows = history.select("version", "operation").collect()
        newest = max((row["version"] for row in rows if changes_files(row["operation"])), default=version)
        return newest, [row["operation"] for row in rows if row["version"] > version]

    def optimize(self, order: Sequence[str] = ()) -> bool:
        """Puts small files together, by the Z-order of these columns if there are any. No row changes. False if Delta
        has no statistics of these columns, and so can't order by them."""
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
                session.sql(f"OPTIMIZE {identifier(self.path)} {by}").collect()
                return
            builder = delta_table(session, self.path).optimize()
            (builder.executeZOrderBy(list(order)) if order else builder.executeCompaction()).collect()

    def vacuum(self, hours: int) -> None:
        """Removes files that no version of the last so many hours needs; Delta checks that they are enough."""
        with session_settings(self.spark, _HOURS_COUNT) as session:
            if is_connect(session):
                session.sql(f"VACUUM {identifier(self.path)} RETAIN {hours:d} HOURS").collect()
                return
            with _without_console(session):
                delta_table(session, self.path).vacuum(hours)

    def checkpoint(self) -> str | None:
        """Writes one of the log, so that readers need not go through its commits; or why that can't be asked for."""
        jvm = None if is_connect(self.spark) else cast(Any, self.spark)._jvm
        try:
            if jvm is None:
                raise AttributeError
            log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(
                cast(Any, self.spark)._jsparkSession, folder_of(self.spark, self.path)
            )
        except (AttributeError, TypeError):
            return "this Spark can't be asked for a checkpoint; Delta writes one every few commits itself"
        log.checkpoint()
        return None

    def delete(self, condition: Column) -> None:
        """By a MERGE with one row, as a Connect session has no other way. `condition`: of columns `t.…`."""
        one = self.spark.range(1).toDF("_one").alias("s")
        delta_table(self.spark, self.path).alias("t").merge(one, condition).whenMatchedDelete().execute()

    def delete_others(self, condition: Column, kept: DataFrame, key: Sequence[str]) -> None:
        """All rows with the condition, of columns `t.…`, but for those that have one of these keys."""
        same = reduce(and_, (F.col(f"t.{name}") == F.col(f"s.{name}") for name in key))
        merge = delta_table(self.spark, self.path).alias("t").merge(kept.alias("s"), same)
        merge.whenNotMatchedBySourceDelete(condition).execute()
