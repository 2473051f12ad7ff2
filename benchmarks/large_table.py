"""A table of many rows, of which a night changes a few, anywhere in it.

The archive has the first rows; the others are appended by Spark, ordered by key as years of inserts would leave them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.checking import WrongResultError
from benchmarks.landing_files import Block, Landed, even_cuts, interleaved, land
from benchmarks.typed_columns import BEGUN, decimals, instant, printed
from benchmarks.wire_arrays import Column, Ints, Table, begins, commits, deletes, inserts, relation, updates
from pgoutput_etl.protocol.framing import Framing

_TABLE = Table(
    16700,
    "orders",
    (
        Column("id", 20, is_key=True),
        Column("customer", 23),
        Column("amount", 1700, (12 << 16) + 2 + 4),
        Column("note", 25),
        Column("at", 1184),
    ),
)
_IN_ARCHIVE, _PER_TRANSACTION = 100_000, 100
_LSN, _LSN_STEP, _XID = 0x6_0000_0000, 1 << 16, 20_000
_APPENDED_FILES = 64
_UPDATED, _INSERTED = 0.7, 0.2  # of a night's changes; the rest are deletes


@dataclass(frozen=True, slots=True)
class LargeTable:
    """rows: after the nights before the measured one."""

    rows: int
    changes: int

    def land_first(self, folder: Path) -> None:
        ids = 1 + np.arange(_IN_ARCHIVE)
        messages = inserts(_TABLE, _values(ids, ids), len(ids))
        land(folder / "first", [_transactions(0, messages, describes=True)], Framing.COPYDATA)

    def append_rest(self, spark: SparkSession, table: Path) -> None:
        """The rows that the archive doesn't have, in the columns and types of the table."""
        ids = spark.range(_IN_ARCHIVE + 1, self.rows + 1, 1, _APPENDED_FILES).withColumnRenamed("id", "n")
        values = {
            "id": F.col("n"),
            "customer": F.col("n") % 1_000_000,
            "amount": (F.col("n") * 7919 % 10**9) / 100,
            "note": F.concat(F.lit("note "), F.pmod(F.xxhash64("n"), F.lit(1_000_000))),
            "at": F.timestamp_seconds(F.lit(1_700_000_000) + F.col("n") % 10**7),
            "_pg_commit_lsn": F.lit(_LSN),
            "_pg_commit_ts": F.timestamp_seconds(F.lit(1_766_000_000)),
            "_pg_xid": F.lit(_XID),
        }
        schema = spark.read.format("delta").load(str(table)).schema
        columns = [values.get(f.name, F.lit(None)).cast(f.dataType).alias(f.name) for f in schema]
        ids.select(*columns).write.format("delta").mode("append").save(str(table))

    def land_one_update(self, folder: Path) -> None:
        """After this night, the ledger knows how many rows the table has."""
        one = np.array([1])
        block = _transactions(_IN_ARCHIVE, updates(_TABLE, _values(one, one), 1))
        land(folder / "one", [block], Framing.COPYDATA)

    def land_night(self, folder: Path, files: int) -> Landed:
        """Changes at random keys, at most one for each."""
        updated, inserted, deleted = self._counts()
        keys = 1 + np.random.default_rng(8).choice(self.rows, updated + deleted, replace=False)
        new = self.rows + 1 + np.arange(inserted)
        gone = [pa.array(keys[updated:]).cast(pa.string()), *[None] * (len(_TABLE.columns) - 1)]
        kinds = [
            updates(_TABLE, _values(keys[:updated], keys[:updated] + 1), updated),
            inserts(_TABLE, _values(new, new), inserted),
            deletes(_TABLE, gone, deleted),
        ]
        messages = pa.concat_arrays(kinds).take(pa.array(np.random.default_rng(9).permutation(self.changes)))
        block = _transactions(2 * _IN_ARCHIVE, messages)
        return land(folder / "second", [block], Framing.COPYDATA, even_cuts(len(block.messages), files))

    def _counts(self) -> tuple[int, int, int]:
        updated, inserted = int(self.changes * _UPDATED), int(self.changes * _INSERTED)
        return updated, inserted, self.changes - updated - inserted

    def check(self, spark: SparkSession, table: Path) -> None:
        """Raises WrongResultError unless the table has the night's rows, and as many others as before."""
        updated, inserted, deleted = self._counts()
        rows = spark.read.format("delta").load(str(table))
        night = rows.where(
            F.col("_pg_commit_lsn") > _lsn(np.array([2 * _IN_ARCHIVE // _PER_TRANSACTION]))[0].item() - 1
        )
        found = (rows.count(), night.count(), _changed_amounts(night))
        expected_rows = self.rows + inserted - deleted
        if found != (expected_rows, updated + inserted, updated):
            raise WrongResultError(f"orders: expected {expected_rows} rows, {updated} updated, found {found}")


def _changed_amounts(night: DataFrame) -> int:
    """Number of rows whose amount is that of an update, and not that of the row's INSERT."""
    return night.where(F.col("amount").cast("decimal(12,2)") * 100 == (F.col("id") + 1) * 7919 % 10**9).count()


def _values(ids: Ints, amounts: Ints) -> list[pa.Array]:
    columns = [
        pa.array(ids, pa.int64()),
        pa.array(ids % 1_000_000, pa.int32()),
        decimals(amounts * 7919 % 10**9, 12, 2),
        pa.array([f"note {number}" for number in (ids * 40_503 % 1_000_000).tolist()]),
        instant(BEGUN + ids % 10**13),
    ]
    return [printed(column) for column in columns]


def _lsn(transaction: Ints) -> Ints:
    return _LSN + _LSN_STEP * (1 + transaction)


def _transactions(before: int, changes: pa.Array, describes: bool = False) -> Block:
    """Transactions of some changes each, after `before` changes. describes: with the table's Relation message."""
    size = len(changes)
    belongs = (before + np.arange(size)) // _PER_TRANSACTION
    numbers = np.unique(belongs)
    lsns, times = _lsn(numbers), BEGUN + 1_000_000 * numbers
    kinds = [changes, begins(lsns, times, _XID + numbers), commits(lsns, times), pa.array([relation(_TABLE)])]
    transaction = np.r_[belongs, numbers, numbers, numbers[:1]]
    stage = np.r_[np.full(size, 2), np.zeros_like(numbers), np.full_like(numbers, 3), 1]
    order = np.lexsort((stage, transaction))
    order = order if describes else order[order != len(transaction) - 1]
    return Block(interleaved(kinds, order), _lsn(transaction[order] - 1) + 64 * (1 + stage[order]))
