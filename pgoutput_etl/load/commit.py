"""One Delta commit and what is recorded of it: overwrite, append, move and restore."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.errors import TableError
from pgoutput_etl.identifiers import is_catalog_place
from pgoutput_etl.spark.delta import delta_table, is_delta_table, is_in_catalog, make_schema, read_table, save
from pgoutput_etl.spark.platform import value_of
from pgoutput_etl.spark.session import session_settings

# Deletion vectors: a MERGE marks rows instead of rewriting their files. Column mapping: names that Parquet refuses,
# and columns renamed or dropped without rewriting the table. Both were measured to pay. A column of wall-clock times
# can only be added later if the feature was there from the beginning. Type widening is switched on where it is needed
# first (evolving.py), as the Rust reader refuses tables that have it.
_PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.columnMapping.mode": "name",
    "delta.feature.timestampNtz": "supported",
}


class TargetRows(Enum):
    """What of the target's rows is there before the batch's changes."""

    NOTHING = "nothing"  # a new table, one that was truncated, or one that takes another's place
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class DeltaTransaction:
    """How a write is told from all others: Delta takes each application's version once."""

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
        """What stands in the table's history beside the commit."""
        return {"spark.databricks.delta.commitInfo.userMetadata": json.dumps(asdict(self))}


@dataclass(frozen=True, slots=True)
class WriteResult:
    """A table after its commit. The counts are of rows, as Delta or the net effect counted them.

    not_found: deletes in a bag that took nothing: what they name was there before the slot, or has values that were
    never sent. rows: all that the table has, where the commit says so.
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
        """How many there are, if there were `rows` before."""
        if self.rows is not None or rows is None:
            return self.rows
        return rows + self.inserted - self.deleted


def has_rows(spark: SparkSession, path: str) -> bool:
    if not is_delta_table(spark, path):
        return False
    return bool(read_table(spark, path).limit(1).count())


def check_target_exists(spark: SparkSession, path: str) -> None:
    """Raises TableError if a table that was written is gone."""
    if not (is_in_catalog if is_catalog_place(path) else is_delta_table)(spark, path):
        raise TableError(
            f"there is no table at {path} any more: somebody took it away. jobs/backfill.py makes it again from the "
            "archive, jobs/snapshot.py from the server"
        )


def overwrite(spark: SparkSession, path: str, rows: DataFrame) -> None:
    """In one commit, which makes the table if there is none."""
    writer = writer_of(spark, rows).mode("overwrite").option("overwriteSchema", "true")
    if not is_delta_table(spark, path):
        writer = writer.options(**_PROPERTIES)
        if is_catalog_place(path):
            make_schema(spark, path)
    save(writer, path)


def append(spark: SparkSession, path: str, rows: DataFrame) -> None:
    """In one commit. Raises TableError if there is no table, where Spark would make one of these rows alone."""
    check_target_exists(spark, path)
    save(writer_of(spark, rows).mode("append"), path)


def initialize(spark: SparkSession, path: str, rows: DataFrame) -> WriteResult:
    """They are all that the table has."""
    overwrite(spark, path, rows)
    first = write_result(spark, path)
    return replace(first, rows=first.inserted)


def writer_of(spark: SparkSession, rows: DataFrame) -> Any:
    """With the session's transaction identifier said again, as `rows` may be another session's."""
    prefix = "spark.databricks.delta."
    names = {
        "txnAppId": "write.txnAppId",
        "txnVersion": "write.txnVersion",
        "userMetadata": "commitInfo.userMetadata",
    }
    options = {option: value_of(spark, prefix + name) for option, name in names.items()}
    return rows.write.format("delta").options(**{name: value for name, value in options.items() if value is not None})


def move(spark: SparkSession, old_path: str, old_version: int, path: str, commit: DeltaTransaction) -> None:
    """Copies a renamed table's rows, as they were at a version of its old place, over whatever is at the new one."""
    rows = read_table(spark, old_path, old_version)
    with session_settings(spark, commit.settings()) as session:
        overwrite(session, path, rows)


def empty(spark: SparkSession, path: str, commit: DeltaTransaction) -> None:
    """Empties the place that a table has left; its rows stay in reach of time travel."""
    with session_settings(spark, commit.settings()) as session:
        delta_table(session, path).delete()


def restore(spark: SparkSession, path: str, version: int | None) -> None:
    """The table as it was at a version, or empty if it is new."""
    if not is_delta_table(spark, path):
        return
    table = delta_table(spark, path)
    if version is None:
        table.delete()
    elif table.history(1).collect()[0]["version"] > version:
        table.restoreToVersion(version)


def write_result(spark: SparkSession, path: str) -> WriteResult:
    last = delta_table(spark, path).history(1).collect()[0]
    metrics = {key: int(value) for key, value in (last.operationMetrics or {}).items() if str(value).isdigit()}
    if last.operation == "MERGE":
        counts = [metrics.get(f"numTargetRows{what}", 0) for what in ("Inserted", "Updated", "Deleted")]
    else:
        counts = [metrics.get("numOutputRows", 0), 0, 0]
    return WriteResult(last.version, *counts)
