"""Makes single Delta commits: overwrite, append, move, empty, restore; reads back what a commit did."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.errors import TableError
from pgoutput_etl.identifiers import is_catalog_place
from pgoutput_etl.load.layout import StoredLayout, allow_names, keeping_comments, lay_out, possible, refused
from pgoutput_etl.schema.layout import CHANGE_FEED, NO_LAYOUT, Layout, Readers
from pgoutput_etl.spark.delta import delta_table, is_delta_table, is_in_catalog, make_schema, read_table, save
from pgoutput_etl.spark.delta_history import is_as_recorded
from pgoutput_etl.spark.delta_log import Commit, metrics_of, newest_commit
from pgoutput_etl.spark.platform import value_of
from pgoutput_etl.spark.session import session_settings

# Deletion vectors let a MERGE mark rows instead of rewriting their files. Column mapping allows names that Parquet
# rejects, and renames or drops columns without rewriting the table. Measurements favor both. A timestamp column without
# time zone can only be added later if the table has timestampNtz from the beginning. Type widening is enabled on first
# use (evolve.py), because the Rust reader rejects tables that have it.
_PROPERTIES = {
    Readers.SPARK: {
        "delta.enableDeletionVectors": "true",
        "delta.columnMapping.mode": "name",
        "delta.feature.timestampNtz": "supported",
    },
    Readers.ALL: {
        "delta.enableDeletionVectors": "false",
        "delta.columnMapping.mode": "none",
        "delta.enableTypeWidening": "false",
        "delta.checkpointPolicy": "classic",
        "delta.feature.timestampNtz": "supported",
    },
}


class TargetRows(Enum):
    """The rows in the target before the batch's changes."""

    NOTHING = "nothing"  # the table is new, was truncated, or replaces another table
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class DeltaTransaction:
    """Identifies a write: Delta accepts each version of an application once."""

    application: str  # the ledger and the table
    step: str
    batch: int
    last_commit_lsn: int

    def settings(self) -> dict[str, str]:
        return {
            "spark.databricks.delta.write.txnAppId": f"{self.application}:{self.step}",
            "spark.databricks.delta.write.txnVersion": str(self.batch),
            **self.user_metadata(),
        }

    def user_metadata(self) -> dict[str, str]:
        """The setting that stores this value with the commit in the table's history."""
        return {"spark.databricks.delta.commitInfo.userMetadata": json.dumps(asdict(self))}


@dataclass(frozen=True, slots=True)
class WriteResult:
    """A table after its commit. inserted, updated, deleted: row counts from Delta or from the net effect.

    not_found: deletes in a bag that matched no row, because the row is older than the slot or has values that were
    never sent. rows: the table's total, if the commit reports it.
    """

    version: int
    inserted: int
    updated: int
    deleted: int
    not_found: int = 0
    rows: int | None = None

    def plus(self, later: WriteResult) -> WriteResult:
        inserted, updated = self.inserted + later.inserted, self.updated + later.updated
        deleted, not_found = self.deleted + later.deleted, self.not_found + later.not_found
        return WriteResult(later.version, inserted, updated, deleted, not_found, later.rows_after(self.rows))

    def rows_after(self, rows: int | None) -> int | None:
        """The table's total, given its total before the commit; None if unknown."""
        if self.rows is not None or rows is None:
            return self.rows
        return rows + self.inserted - self.deleted


def has_rows(spark: SparkSession, path: str) -> bool:
    return is_delta_table(spark, path) and bool(read_table(spark, path).limit(1).count())


def check_target_exists(spark: SparkSession, path: str) -> None:
    """Raises TableError if the table is gone."""
    if not (is_in_catalog if is_catalog_place(path) else is_delta_table)(spark, path):
        raise TableError(
            f"there is no table at {path} any more: it was dropped or moved. Rebuild it from the archive, or load a "
            "snapshot of the server's table"
        )


def overwrite(spark: SparkSession, path: str, rows: DataFrame, layout: Layout = NO_LAYOUT) -> WriteResult:
    """Replaces the table's rows and schema, or creates the table. What the layout leaves open stays as it is.

    One commit, and others for the parts of the layout that Delta takes only from a table that exists.
    """
    stored = StoredLayout.of(spark, path) if is_delta_table(spark, path) else None
    if stored is not None:
        allow_names(spark, path, rows.columns)
        layout, rows = stored.after_overwrite(layout), keeping_comments(rows, stored.comments)
    layout = possible(layout, rows.schema)
    writer = writer_of(spark, rows).mode("overwrite").option("overwriteSchema", "true")
    if stored is None:
        # Delta can't create a table with column mapping and a feed by a write (DELTA_BLOCK_COLUMN_MAPPING_AND_CDC_...).
        of_new = {name: value for name, value in layout.properties.items() if name != CHANGE_FEED}
        writer = writer.options(**{**_PROPERTIES[layout.readers], **of_new})
        if is_catalog_place(path):
            make_schema(spark, path)
    if layout.partition_by:
        writer = writer.partitionBy(*layout.partition_by)
    try:
        save(writer, path)
    except (AnalysisException, IllegalArgumentException) as error:
        if not replace(layout, readers=Readers.SPARK):
            raise
        raise refused(path, error) from None
    result = write_result(spark, path)
    if layout and lay_out(spark, path, layout).statements:
        result = replace(result, version=write_result(spark, path).version)
    return result


def append(spark: SparkSession, path: str, rows: DataFrame) -> WriteResult:
    """Raises TableError if the table is gone; Spark would create a table with only these rows."""
    check_target_exists(spark, path)
    save(writer_of(spark, rows).mode("append"), path)
    return write_result(spark, path)


def initialize(spark: SparkSession, path: str, rows: DataFrame, layout: Layout = NO_LAYOUT) -> WriteResult:
    """Overwrites the table; the result has its total, because Delta reports every row as inserted."""
    result = overwrite(spark, path, rows, layout)
    return replace(result, rows=result.inserted)


def writer_of(spark: SparkSession, rows: DataFrame) -> Any:
    """Repeats the session's transaction identifier as writer options, because `rows` may belong to another session."""
    prefix = "spark.databricks.delta."
    names = {"txnAppId": "write.txnAppId", "txnVersion": "write.txnVersion", "userMetadata": "commitInfo.userMetadata"}
    options = {option: value_of(spark, prefix + name) for option, name in names.items()}
    return rows.write.format("delta").options(**{name: value for name, value in options.items() if value is not None})


def move(spark: SparkSession, old_path: str, old_version: int, path: str, commit: DeltaTransaction) -> None:
    """Copies a table's rows at `old_version` from its old path over whatever is at the new path."""
    since = delta_table(spark, old_path).history().where(F.col("version") > old_version).select("operation")
    # Another table may have taken the place meanwhile.
    is_own = is_as_recorded(row[0] for row in since.collect())
    stored = StoredLayout.of(spark, old_path) if is_own else None
    layout = NO_LAYOUT if stored is None else stored.to_copy(_PROPERTIES[stored.layout.readers])
    rows = read_table(spark, old_path, old_version)
    with session_settings(spark, commit.settings()) as session:
        overwrite(session, path, rows, layout)


def empty(spark: SparkSession, path: str, commit: DeltaTransaction) -> None:
    """Deletes all rows at a path that a table has left. Time travel still reaches them."""
    with session_settings(spark, commit.settings()) as session:
        delta_table(session, path).delete()


def restore(spark: SparkSession, path: str, version: int | None) -> None:
    """Restores the table to a version, or empties it if the version is None."""
    if not is_delta_table(spark, path):
        return
    table = delta_table(spark, path)
    if version is None:
        table.delete()
    elif table.history(1).collect()[0]["version"] > version:
        table.restoreToVersion(version)


def write_result(spark: SparkSession, path: str) -> WriteResult:
    """What the last commit that changed rows did, with the table's newest version."""
    newest = newest_commit(spark, path) or _history(spark, path, 1)[0]
    last = newest
    if is_as_recorded([newest.operation]):
        last = next((commit for commit in _history(spark, path) if not is_as_recorded([commit.operation])), newest)
    if last.operation == "MERGE":
        counts = [last.metrics.get(f"numTargetRows{action}", 0) for action in ("Inserted", "Updated", "Deleted")]
    else:
        counts = [last.metrics.get("numOutputRows", 0), 0, 0]
    return WriteResult(newest.version, *counts)


def _history(spark: SparkSession, path: str, limit: int | None = None) -> list[Commit]:
    """Commits, newest first."""
    table = delta_table(spark, path)
    rows = (table.history() if limit is None else table.history(limit)).collect()
    return [Commit(row.version, row.operation, metrics_of(row.operationMetrics)) for row in rows]
