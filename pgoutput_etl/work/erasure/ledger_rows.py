"""Erases the ledger's copies of changes and Messages.

Reassembling the archive (`Batch.since`) gives its messages new positions. No job still uses older rows of
`open_transactions` and `quarantine`, so they are erased without a comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load.net_effect import any_of
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.work.erasure.request import MessageErasure

COPIED = ("open_transactions", "messages", "quarantine")


@dataclass(frozen=True, slots=True)
class LedgerCopies:
    """since: the batch that last assembled the archive. positions: file and ordinal of each change. messages: the
    Messages to erase."""

    ledger: DeltaLedger
    since: int
    positions: pa.Table
    messages: tuple[MessageErasure, ...]

    def count(self) -> int:
        """The number of rows with copies."""
        return sum(self._rows(table).count() for table in COPIED)

    def erase(self) -> int:
        """Returns the number of rows that had copies."""
        counts = {table: self._rows(table).count() for table in COPIED}
        for table in (table for table, count in counts.items() if count):
            target, is_own = self.ledger.store.delta(table), F.col("source") == self.ledger.source
            if table == "open_transactions":
                target.delete(is_own & self._is_outdated)
                same = (F.col("t.source") == self.ledger.source) & self._is_same
                target.alias("t").merge(self._changes, same).whenMatchedDelete().execute()
            elif table == "messages":
                target.update(is_own & self._is_chosen, {"content": F.lit(b"")})
            else:
                target.update(is_own & self._has_bytes, {"bytes": F.lit(None).cast("binary")})
        return sum(counts.values())

    def _rows(self, table: str) -> DataFrame:
        rows = self.ledger.store.read(table)
        if table == "open_transactions":
            current = rows.alias("t").join(self._changes, self._is_same, "left_semi")
            return rows.where(self._is_outdated).unionByName(current)
        return rows.where(self._is_chosen if table == "messages" else self._has_bytes)

    @property
    def _changes(self) -> DataFrame:
        return frame(self.ledger.spark, self.positions).alias("s")

    @property
    def _is_same(self) -> Column:
        same = (F.col("t.file") == F.col("s.file")) & (F.col("t.ordinal") == F.col("s.ordinal"))
        return same & (F.col("t.batch") >= self.since)

    @property
    def _is_outdated(self) -> Column:
        return F.col("batch") < self.since

    @property
    def _is_chosen(self) -> Column:
        return any_of(map(_is_chosen, self.messages)) if self.messages else F.lit(False)

    @property
    def _has_bytes(self) -> Column:
        """Selects all changes of files with an erased change, because the landed files still have the others."""
        files = pc.unique(self.positions.column("file")).to_pylist()
        return F.col("bytes").isNotNull() & (self._is_outdated | F.col("file").isin(*files))


def _is_chosen(wanted: MessageErasure) -> Column:
    is_chosen = F.contains(F.col("content"), F.lit(wanted.contains.encode()))
    return is_chosen if wanted.prefix is None else is_chosen & (F.col("prefix") == wanted.prefix)
