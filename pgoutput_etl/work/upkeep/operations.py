"""The maintenance operations on a source's tables and ledger, and their implementation with Delta tables in Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Protocol

import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.console import Progress
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.places import Place
from pgoutput_etl.spark.retries import CONFLICTS
from pgoutput_etl.spark.session import is_running
from pgoutput_etl.spark.table_pool import TablePool
from pgoutput_etl.transactions.outcome import TRIMMED, TransactionStatus
from pgoutput_etl.work.upkeep.retention import FileCounts, RetentionRule
from pgoutput_etl.work.upkeep.table_upkeep import DeltaFolder


class TableUpkeep(Protocol):
    """The operations on one Delta table."""

    def exists(self) -> bool: ...

    def measure(self, expiry: datetime) -> FileCounts:
        """Counts the table's files. expiry: as in count_files."""

    def commits_since(self, version: int) -> tuple[int, list[str]]:
        """The newest version that may have changed files, and the operations of commits after `version`, without those
        of other sources that share the table."""

    def is_unclustered(self) -> bool | None:
        """True if a clustered table has changed since its last OPTIMIZE; None if the table is not clustered."""

    def optimize(self, order: Sequence[str] = ()) -> bool:
        """Compacts small files, or orders rows by the Z-order of the given columns. Changes no rows. Returns False if
        Delta has no statistics on these columns and therefore can't order by them."""

    def vacuum(self, hours: int) -> None:
        """Removes files that no version of the last `hours` hours needs; Delta enforces a minimum."""

    def remove(self) -> str | None:
        """Removes the table with all its versions. Returns the reason if this Spark can't."""

    def commits_since_checkpoint(self) -> int | None:
        """The number of commits that a reader of the log must replay; None if this Spark can't tell."""

    def checkpoint(self) -> str | None:
        """Writes a checkpoint, so readers don't have to replay the log. Returns the reason if this Spark can't."""


class Upkeep(Protocol):
    """conflicts: errors of a commit that conflicted with another commit. Operations can be repeated at any time."""

    @property
    def conflicts(self) -> tuple[type[Exception], ...]: ...

    def table(self, place: Place) -> TableUpkeep: ...

    def ledger_table(self, name: str) -> TableUpkeep: ...

    def ledger_path(self, name: str) -> str: ...

    def obsolete_rows(self, rule: RetentionRule) -> int: ...

    def last_obsolete_commit(self, rule: RetentionRule) -> int:
        """The highest commit LSN of the transactions that the rule deletes; 0 if it deletes none."""

    def delete_obsolete(self, rule: RetentionRule) -> None: ...

    def is_shared(self) -> bool:
        """True if other sources have rows in the ledger. This source's claim doesn't stop their runs."""

    def pool(self, verb: str, progress: Progress) -> TablePool: ...

    def is_running(self) -> bool:
        """False once Spark has ended."""


@dataclass(frozen=True, slots=True)
class DeltaUpkeep:
    """parallel_tables: number of tables processed at the same time."""

    spark: SparkSession
    ledger: DeltaLedger
    parallel_tables: int

    @property
    def conflicts(self) -> tuple[type[Exception], ...]:
        return CONFLICTS

    def table(self, place: Place) -> DeltaFolder:
        return DeltaFolder(self.spark, place)

    def ledger_table(self, name: str) -> DeltaFolder:
        return DeltaFolder(self.spark, Place(self.ledger_path(name)), partial(self.ledger.store.files, name))

    def ledger_path(self, name: str) -> str:
        return self.ledger.store.path(name)

    def obsolete_rows(self, rule: RetentionRule) -> int:
        # `redriven` is the number of a later batch, so no row of a batch from `before` on is obsolete by either column.
        numbers = self.ledger.store.columns(rule.table, [rule.column], before=rule.before).column(rule.column)
        rows: int = pc.sum(pc.less(numbers, rule.before)).as_py() or 0
        if rule.table != "transactions" or not rows:
            return rows
        ordinary = self._ordinary(rule)
        return ordinary.join(_ends_of_files(ordinary), ["batch", "file", "unit"], "left_anti").count()

    def last_obsolete_commit(self, rule: RetentionRule) -> int:
        [row] = self._ordinary(rule).agg(F.max("commit_lsn").alias("lsn")).collect()
        return row["lsn"] or 0

    def delete_obsolete(self, rule: RetentionRule) -> None:
        folder = self.ledger_table(rule.table)
        old = (F.col("t.source") == self.ledger.source) & (F.col(f"t.{rule.column}") < rule.before)
        if rule.table != "transactions":
            folder.delete(old)
            return
        remaining = _ends_of_files(self._ordinary(rule))
        folder.delete_others(old & _is_ordinary("t."), remaining, ("batch", "file", "unit"))

    def _ordinary(self, rule: RetentionRule) -> DataFrame:
        return self.ledger.store.read(rule.table).where((F.col(rule.column) < rule.before) & _is_ordinary())

    def is_shared(self) -> bool:
        batches = self.spark.read.format("delta").load(self.ledger.store.path("batches"))
        return bool(batches.where(F.col("source") != self.ledger.source).limit(1).count())

    def pool(self, verb: str, progress: Progress) -> TablePool:
        return TablePool.of(self.spark, self.parallel_tables, verb, progress)

    def is_running(self) -> bool:
        return is_running(self.spark)


def _is_ordinary(table: str = "") -> Column:
    """Selects transactions that began and ended in one file; their rows' status doesn't depend on the ledger."""
    return F.col(f"{table}units").isNull() & (F.col(f"{table}fate") != TRIMMED)


def _ends_of_files(transactions: DataFrame) -> DataFrame:
    """Batch, file, and unit of each file's first and last committed transactions, by LSN and by time."""
    committed = transactions.where(F.col("fate") == TransactionStatus.COMMITTED.value)
    orders = F.struct("commit_lsn", "unit"), F.struct("commit_ts", "unit")
    ends = [extreme(order)["unit"] for order in orders for extreme in (F.min, F.max)]
    fragments = committed.groupBy("batch", "file").agg(F.array_distinct(F.array(*ends)).alias("units"))
    return fragments.select("batch", "file", F.explode("units").alias("unit"))
