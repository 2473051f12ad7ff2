"""Reads and appends one source's rows of the ledger's Delta tables."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.config.object_storage import StorageFolder
from pgoutput_etl.file_access import PRIVATE, Access
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.claim_files import ClaimFiles, claim_files
from pgoutput_etl.ledger.claims import Claim
from pgoutput_etl.ledger.few_rows import FEW_BYTES, append_few, read_few
from pgoutput_etl.ledger.private_folders import FOLDERS, TABLES, private_folders
from pgoutput_etl.ledger.tables import SCHEMAS, LedgerRows, RowRange
from pgoutput_etl.machine import THIS_MACHINE, Machine
from pgoutput_etl.places import Place, absolute_place, is_relative
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.spark.delta import delta_table, is_delta_table
from pgoutput_etl.spark.platform import local_path
from pgoutput_etl.spark.retries import again
from pgoutput_etl.spark.session import session_for_few_rows

if TYPE_CHECKING:
    from delta.tables import DeltaTable

    from pgoutput_etl.ledger.reader import LedgerReader

# Characters of a path that delta-rs interprets as in a URL: for /a%20b, it reads /a b.
_UNREADABLE = frozenset("%?#")

_ONE_FILE = 10_000  # rows; Spark would otherwise write one file per core


class Store(LedgerRows):
    """One source's rows in the ledger's tables, for reading and appending few rows."""

    def __init__(self, source: str, machine: Machine = THIS_MACHINE) -> None:
        self.source = source
        self.machine = machine
        self.dead_claims: set[Claim] = set()  # as in ClaimFiles

    @property
    @abstractmethod
    def is_local(self) -> bool:
        """True if rows on the driver are read and appended without Spark."""

    @abstractmethod
    def append_table(self, table: str, rows: pa.Table, batch: int, step: str = "") -> None:
        """Appends once per batch, table, and step, no matter how often it is called."""

    @abstractmethod
    def claim_files(self, report: Callable[[str], None] = lambda _: None) -> ClaimFiles | None:
        """See `claim_files.claim_files`."""

    def place(self, recorded: str) -> str:
        """The target's place that is recorded as `recorded`. Older versions recorded relative paths."""
        return recorded

    def private_folders(self) -> AbstractContextManager[None]:
        """Keeps what the context writes to folders for values of rows, below the root, private."""
        return nullcontext()

    def rows_before(self, table: str, names: Sequence[str], batch: Batch) -> list[dict[str, Any]]:
        """The rows that count for a batch: those of earlier batches from `batch.since` on."""
        return self.rows(table, names, batch.since, batch.number)

    def append_rows(self, table: str, rows: list[dict[str, Any]], batch: int, step: str = "") -> None:
        """Like `append_table`, for rows without the columns source and batch."""
        if rows:
            self.append_table(table, self.table(table, rows, batch), batch, step)

    def table(self, table: str, rows: list[dict[str, Any]], batch: int) -> pa.Table:
        """Rows of a table, with the columns source and batch added."""
        return pa.Table.from_pylist([{"source": self.source, "batch": batch, **row} for row in rows], SCHEMAS[table])

    def application(self, table: str, step: str) -> str:
        """The application ID in Delta's transaction identifier, whose version is the batch number."""
        return f"pgoutput_etl:{self.source}:{table}:{step}"


class LedgerStore(Store):
    """The tables under `root`.

    A ledger on local storage is read with delta-rs, which also appends small numbers of rows: a Spark job would take
    longer than the work itself. On other storage, Spark has the credentials and knows how to commit: a small table is
    read and appended to on the driver with Spark's file system and Delta's transaction, and others by Spark jobs.
    """

    def __init__(self, spark: SparkSession, root: str, source: str, access: Access = PRIVATE) -> None:
        super().__init__(source)
        self.access = access
        self.spark = spark
        self.root = root.rstrip("/")
        self._local = _local_reader(spark, self.root, source)
        self._existing: set[str] = set()  # tables known to exist; none is ever dropped, and each check takes requests

    @property
    def is_local(self) -> bool:
        return self._local is not None

    @cached_property
    def _quick(self) -> SparkSession:
        return session_for_few_rows(self.spark)

    def path(self, table: str) -> str:
        return f"{self.root}/{table}"

    def place(self, recorded: str) -> str:
        return recorded if is_relative(self.root) else absolute_place(recorded)

    def delta(self, table: str) -> DeltaTable:
        return delta_table(self.spark, Place(self.path(table)))

    def exists(self, table: str) -> bool:
        if table not in self._existing and is_delta_table(self._quick, Place(self.path(table))):
            self._existing.add(table)
        return table in self._existing

    def files(self, table: str) -> list[str] | None:
        """The paths of a table's data files, with all sources' rows. None if only Spark can read them."""
        return None if self._local is None else self._local.files(table)

    def read(self, table: str) -> DataFrame:
        return self._load(self.spark, table) if self.exists(table) else frame(self.spark, SCHEMAS[table].empty_table())

    def read_before(self, table: str, batch: Batch) -> DataFrame:
        """The rows that count for a batch: those of earlier batches from `batch.since` on."""
        return self.read(table).where((F.col("batch") >= batch.since) & (F.col("batch") < batch.number))

    def few_before(self, table: str, batch: Batch) -> pa.Table | None:
        """Like `read_before`, without Spark, and with the columns that an older ledger lacks. None if Spark is quicker:
        its first query of a Delta table takes seconds."""
        names, chosen = SCHEMAS[table].names, RowRange(batch.since, batch.number)
        if self._local is None:
            return self._few(table, names, chosen)
        return None if self._local.bytes(table) > FEW_BYTES else self._local.columns_where(table, names, chosen)

    def _few(self, table: str, names: Sequence[str], chosen: RowRange) -> pa.Table | None:
        return read_few(self._quick, Place(self.path(table)), table, self.source, names, chosen)

    def columns_where(self, table: str, names: Sequence[str], chosen: RowRange) -> pa.Table:
        """Starts no Spark job if the table doesn't exist."""
        if self._local is not None:
            return self._local.columns_where(table, names, chosen)
        few = self._few(table, names, chosen)
        if few is not None:
            return few
        if not self.exists(table):
            return pa.schema([SCHEMAS[table].field(name) for name in names]).empty_table()
        rows = with_missing_columns(table, self._load(self._quick, table))
        return (rows if chosen.sql is None else rows.where(chosen.sql)).select(*names).toArrow()

    def _load(self, spark: SparkSession, table: str) -> DataFrame:
        return spark.read.format("delta").load(self.path(table)).where(F.col("source") == self.source)

    def append(self, table: str, rows: DataFrame, batch: int, step: str = "") -> None:
        """Appends once per batch, table, and step, no matter how often it is called. Retries after another source's
        commit."""
        writer = rows.write.format("delta").mode("append").option("txnVersion", str(batch))
        writer = writer.option("txnAppId", self.application(table, step)).option("mergeSchema", "true")
        with self._private(table):
            again(lambda: writer.save(self.path(table)))

    def append_table(self, table: str, rows: pa.Table, batch: int, step: str = "") -> None:
        with self._private(table):
            if self._append_few(table, rows, (self.application(table, step), batch)):
                return
        few = frame(self._quick, rows)
        self.append(table, few.coalesce(1) if rows.num_rows <= _ONE_FILE else few, batch, step)

    def _append_few(self, table: str, rows: pa.Table, application: tuple[str, int]) -> bool:
        if self._local is None:
            return append_few(self._quick, Place(self.path(table)), rows, application)
        from pgoutput_etl.ledger.local_append import append_once

        return append_once(self._local.url(table), rows, *application)

    def _private(self, table: str) -> AbstractContextManager[None]:
        return private_folders(self.spark, self.root, TABLES.intersection({table}), self.access)

    def private_folders(self) -> AbstractContextManager[None]:
        return private_folders(self.spark, self.root, FOLDERS, self.access)

    def claim_files(self, report: Callable[[str], None] = lambda _: None) -> ClaimFiles | None:
        files = claim_files(self.spark, self.root, self.source, report, self.machine)
        return files and replace(files, dead=self.dead_claims)

    def frame(self, table: str, rows: list[dict[str, Any]], batch: int) -> DataFrame:
        """Like `table`, but as a DataFrame."""
        return frame(self.spark, self.table(table, rows, batch))

    def stamp(self, batch: Batch) -> tuple[Column, Column]:
        """The columns source and batch."""
        return F.lit(self.source).alias("source"), F.lit(batch.number).cast("long").alias("batch")


def with_missing_columns(table: str, rows: DataFrame) -> DataFrame:
    """Adds columns that an older ledger doesn't have, as NULL."""
    existing = set(rows.columns)
    missing = {f.name: F.lit(None).cast(f.dataType) for f in spark_schema(SCHEMAS[table]) if f.name not in existing}
    return rows.withColumns(missing) if missing else rows


def _local_reader(spark: SparkSession, root: str, source: str) -> LedgerReader | None:
    path = local_path(spark, root)
    if path is None or not _UNREADABLE.isdisjoint(path):
        return None
    try:
        from pgoutput_etl.ledger.reader import LedgerReader
    except ImportError:  # delta-rs is not in the archive for clusters
        return None
    return LedgerReader(StorageFolder(path), source)
