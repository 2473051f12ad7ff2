"""Reads and appends one source's rows of the ledger's Delta tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from delta import exceptions
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.tables import schema_of
from pgoutput_etl.spark.arrow_types import arrow_schema
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.spark.delta import is_delta_table
from pgoutput_etl.spark.session import session_for_few_rows

# Raised by an append that lost to a concurrent one: both create the table, or both use one transaction identifier.
# In Python none of these is a DeltaConcurrentModificationException.
_CONFLICTS = (
    exceptions.ConcurrentTransactionException,
    exceptions.ConcurrentWriteException,
    exceptions.MetadataChangedException,
    exceptions.ProtocolChangedException,
)


class LedgerStore:
    """One source's rows of the tables under `root`. A missing table reads as empty."""

    def __init__(self, spark: SparkSession, root: str, source: str) -> None:
        self.spark = spark
        self.root = root.rstrip("/")
        self.source = source
        self._quick = session_for_few_rows(spark)

    def path(self, table: str) -> str:
        return f"{self.root}/{table}"

    def exists(self, table: str) -> bool:
        return is_delta_table(self.spark, self.path(table))

    def read(self, table: str) -> DataFrame:
        return self._load(self.spark, table) if self.exists(table) else _frame(self.spark, table, [])

    def read_before(self, table: str, batch: Batch) -> DataFrame:
        """The rows that count for a batch: of earlier batches, from `batch.since` on."""
        return rows_before(self.read(table), batch)

    def query(self, table: str, choose: Callable[[DataFrame], DataFrame]) -> list[dict[str, Any]]:
        """The few rows that `choose` selects."""
        columns = self.query_columns(table, choose)
        return [] if columns is None else columns.to_pylist()

    def query_columns(self, table: str, choose: Callable[[DataFrame], DataFrame]) -> pa.Table | None:
        """As `query`, in columns. None, without a Spark job, if the table doesn't exist."""
        if not is_delta_table(self._quick, self.path(table)):
            return None
        return choose(self._load(self._quick, table)).toArrow()

    def _load(self, spark: SparkSession, table: str) -> DataFrame:
        return spark.read.format("delta").load(self.path(table)).where(F.col("source") == self.source)

    def append(self, table: str, rows: DataFrame, batch: int, step: str = "") -> None:
        """Appends once per batch, table and step, however often it is called. Retries after another source's commit."""
        writer = rows.write.format("delta").mode("append").option("txnVersion", str(batch))
        writer = writer.option("txnAppId", f"pgoutput_etl:{self.source}:{table}:{step}").option("mergeSchema", "true")
        for is_last in (False, False, True):
            try:
                writer.save(self.path(table))
                return
            except _CONFLICTS:
                if is_last:
                    raise

    def append_rows(self, table: str, rows: list[dict[str, Any]], batch: int, step: str = "") -> None:
        """As `append`, for a few rows without the columns source and batch."""
        if rows:
            self.append(table, self.frame(table, rows, batch, self._quick), batch, step)

    def frame(self, table: str, rows: list[dict[str, Any]], batch: int, spark: SparkSession | None = None) -> DataFrame:
        """Rows of a table, given without the columns source and batch."""
        return _frame(spark or self.spark, table, [{"source": self.source, "batch": batch, **row} for row in rows])

    def stamp(self, batch: Batch) -> tuple[Column, Column]:
        """The columns source and batch."""
        return F.lit(self.source).alias("source"), F.lit(batch.number).cast("long").alias("batch")


def rows_before(rows: DataFrame, batch: Batch) -> DataFrame:
    return rows.where((F.col("batch") >= batch.since) & (F.col("batch") < batch.number))


def with_missing_columns(table: str, rows: DataFrame) -> DataFrame:
    """Adds, as NULL, the columns that an older version of the ledger did not write."""
    existing = set(rows.columns)
    missing = {f.name: F.lit(None).cast(f.dataType) for f in schema_of(table) if f.name not in existing}
    return rows.withColumns(missing) if missing else rows


def _frame(spark: SparkSession, table: str, rows: list[dict[str, Any]]) -> DataFrame:
    return frame(spark, pa.Table.from_pylist(rows, arrow_schema(schema_of(table))))
