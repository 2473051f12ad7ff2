"""Bytes, transactions, files, and tables in the ledger's quarantine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc
from pyspark.sql import functions as F

from pgoutput_etl.ingest.quarantine import parts_of_transactions, unreadable
from pgoutput_etl.ledger.batch import Batch, BatchResult
from pgoutput_etl.ledger.store import LedgerStore
from pgoutput_etl.reasons import ReasonKind, columns_of, kind_of, with_reason
from pgoutput_etl.targets.plan import HELD
from pgoutput_etl.transactions.cutoff import Leftovers


@dataclass(frozen=True, slots=True)
class LedgerQuarantine:
    store: LedgerStore

    def append(self, batch: Batch, result: BatchResult, path_of: Callable[[int], str]) -> None:
        """Adds unreadable bytes, the transactions that contain them, and tables that are newly held."""
        held = [
            {"schema": t.schema, "table": t.table, "relation": t.oid, "lsn": t.last_commit_lsn, **columns_of(t.reason)}
            for t in result.tables
            if t.status == HELD and t != batch.tables.get(t.oid)
        ]
        rows = result.rows
        keeps_bytes = rows.assembly.relations.mask is None
        parts = [
            unreadable(self.store.spark, rows.damages(), result.scans, path_of),
            parts_of_transactions(self.store.spark, rows.with_status(), rows.assembly, path_of, keeps_bytes),
        ]
        frames = [part.select(*self.store.stamp(batch), "*") for part in parts if part is not None]
        if held or frames:
            quarantine = self.store.frame("quarantine", held, batch.number)
            for frame in frames:
                quarantine = quarantine.unionByName(frame, allowMissingColumns=True)
            self.store.append("quarantine", quarantine, batch.number)

    def append_refused(self, batch: Batch) -> None:
        """Adds files that are set aside as a whole."""
        refused = [(n, f) for n, f in batch.files.items() if f.is_set_aside]
        rows = [{"file": number, "path": file.path, "reason": file.reason} for number, file in refused]
        self.store.append_rows("quarantine", rows, batch.number, "files")

    def mark_redriven(self, batch: Batch, relations: Iterable[int], with_bytes: bool = False) -> None:
        """Marks rows of earlier batches as redriven by this one. relations: OIDs of tables; with_bytes: also marks rows
        about bytes and files."""
        if self.store.exists("quarantine"):
            is_before = (F.col("source") == self.store.source) & (F.col("batch") < batch.number)
            is_chosen = F.col("relation").isin(*relations)
            if with_bytes:
                is_chosen = F.col("relation").isNull() | is_chosen
            table = self.store.delta("quarantine")
            number = F.lit(batch.number).cast("long")
            table.update(is_before & F.col("redriven").isNull() & is_chosen, {"redriven": number})

    def has_lost_bytes(self) -> bool:
        """True if the quarantine has bytes that were neither sent again nor redriven."""
        return any(row["offset"] is not None and kind_of(row["reason"]) is not ReasonKind.TORN for row in self._left())

    def leftovers(self) -> Leftovers:
        """The bytes and files that the last batch with files set aside, unless they were redriven since."""
        newest = pc.max(self.store.columns("files", ("batch",)).column("batch")).as_py()
        return Leftovers.of(self._left(newest or 0))

    def _left(self, first: int = 0) -> list[dict[str, Any]]:
        """Rows about bytes and files that were not redriven, from batches with the number `first` or higher."""
        names = ("relation", "redriven", "file", "path", "offset", "length", "xid", "lsn", "reason", "reason_kind")
        rows = map(with_reason, self.store.rows("quarantine", names, first))
        return [row for row in rows if row["relation"] is None and row["redriven"] is None]
