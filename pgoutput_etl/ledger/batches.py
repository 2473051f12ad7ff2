"""Batches in the ledger: begun, claimed, done, the state that each one left, and the files that they read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.errors import RunError
from pgoutput_etl.landing.file_index import INDEX_SCHEMA, FileIndex
from pgoutput_etl.landing.fingerprint import FilePart
from pgoutput_etl.ledger.batch import Batch, BatchResult
from pgoutput_etl.ledger.claim_files import claim_files
from pgoutput_etl.ledger.claims import CLAIMED, Claim, Claims
from pgoutput_etl.ledger.store import LedgerStore, rows_before, with_missing_columns
from pgoutput_etl.ledger.tables import file_statistics, table_row, table_state
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS, time_of
from pgoutput_etl.transactions.outcome import ACCOUNTS


@dataclass(frozen=True, slots=True)
class LedgerBatches:
    store: LedgerStore

    def _numbers(self) -> tuple[int, int] | None:
        """The newest batch and the newest that is done, 0 if none is. None before the first batch."""
        batches = self.store.query("batches", lambda rows: rows.select("batch", "status"))
        if not batches:
            return None
        done = [row["batch"] for row in batches if row["status"] == "done"]
        return max(row["batch"] for row in batches), max(done, default=0)

    def last(self) -> Batch | None:
        """The batch to finish, if one was begun; else the last that is done; None before the first."""
        numbers = self._numbers()
        if numbers is None:
            return None
        newest, last_done = numbers
        stored = self.store.query("batches", lambda rows: rows.where(F.col("batch").isin(*{newest, last_done})))
        rows = {(row["batch"], row["status"]): row for row in stored}
        nothing: dict[str, Any] = {"state": None, "tables": [], "last_commit_lsn": 0}
        done = rows.get((last_done, "done"), nothing)
        row = rows[newest, "done" if newest == last_done else "begun"]
        files = {f.pop("file"): FilePart(**f) for f in row["files"] or []}
        tables = {t["oid"]: table_state(t) for t in done["tables"] or []}
        state = None if done["state"] is None else json.loads(done["state"])
        lsn = done["last_commit_lsn"]
        resumed, since = newest != last_done, done.get("since") or 0
        settings = row.get("settings")
        return Batch(row["ledger_id"], newest, files, resumed, state, tables, lsn, row["backfill"], since, settings)

    def last_after(self, batch: Batch) -> Batch:
        """The batch, now done, as the run's next batch needs it. Raises RunError if another run came between."""
        last = self.last()
        if last is None or (last.ledger_id, last.number, last.resumed) != (batch.ledger_id, batch.number, False):
            raise RunError(
                f"another run has continued after batch {batch.number}; this run changes nothing more. Run again"
            )
        return last

    def state_at(self, oid: int, version: int) -> TableState | None:
        """A table's state after the last batch that left it at a Delta version."""

        def states(batches: DataFrame) -> DataFrame:
            tables = batches.where(F.col("status") == "done").select("batch", F.explode("tables").alias("t"))
            return tables.where((F.col("t.oid") == oid) & (F.col("t.version") == version))

        rows = self.store.query("batches", states)
        return table_state(max(rows, key=lambda row: row["batch"])["t"]) if rows else None

    def states_after(self, batch: int) -> dict[int, TableState]:
        """OID -> table state after a batch that is done."""
        is_done = (F.col("batch") == batch) & (F.col("status") == "done")
        [row] = self.store.query("batches", lambda batches: batches.where(is_done).select("tables"))
        return {table["oid"]: table_state(table) for table in row["tables"]}

    def claims(self, progress: Callable[[str], None] = lambda _: None) -> Claims:
        """The claims of a batch and its neighbors: another run may still hold the batch before, or already the next."""
        store = self.store
        files = claim_files(store.spark, store.root, store.source, progress)

        def read(batch: int) -> list[dict[str, Any]]:
            rows = store.query("claims", lambda rows: rows.where(F.col("batch").between(batch - 1, batch + 1)))
            return rows if files is None else rows + files.read(batch)

        def append(row: Mapping[str, Any], batch: int, name: str) -> None:
            if files is not None and row["status"] == CLAIMED and not files.make({**row, "batch": batch}):
                return
            try:
                store.append_rows("claims", [dict(row)], batch, name)
            finally:  # the claim's file is released last: nothing may be written after it
                if files is not None and row["status"] != CLAIMED:
                    files.renew({**row, "batch": batch})

        return Claims(read, append)

    @contextmanager
    def claimed(
        self, last: Batch | None, batch: Batch, progress: Callable[[str], None], claim: Claim | None = None
    ) -> Iterator[Callable[[], None]]:
        """Claims `batch` and yields the claim's check.

        last, claim: the newest batch and claim (None if unknown) when the batch was prepared. Raises RunError if
        another run has added to the ledger since.
        """

        def confirm() -> None:
            numbers = self._numbers()
            newest = None if numbers is None else (numbers[0], numbers[0] != numbers[1])
            if (last and (last.number, last.resumed)) != newest:
                raise RunError("another run has just finished; this run changes nothing. Run again")

        with self.claims(progress).held(batch.number, progress, claim, confirm) as check:
            yield check

    def begin(self, batch: Batch) -> None:
        """Records a batch before anything else of it is written. A resumed batch is recorded already.

        Raises RunError if another run has begun the batch with other files: both runs would use the same transaction
        identifiers, and Delta would silently skip the second run's commits.
        """
        if batch.resumed:
            return
        files = [{"file": number, **asdict(file)} for number, file in batch.files.items()]
        row = {"ledger_id": batch.ledger_id, "status": "begun", "at": datetime.now(timezone.utc), "files": files}
        row |= {"backfill": batch.backfill, "settings": batch.settings}
        self.store.append_rows("batches", [row], batch.number, "begun")
        is_begun = (F.col("batch") == batch.number) & (F.col("status") == "begun")
        names = ("ledger_id", "files", "backfill")
        [stored] = self.store.query("batches", lambda rows: rows.where(is_begun).select(*names))
        if (stored["ledger_id"], stored["files"], stored["backfill"]) != (batch.ledger_id, files, batch.backfill):
            raise RunError(f"another run has already begun batch {batch.number}; this run changes nothing. Run again")

    def finish(
        self,
        batch: Batch,
        last_commit_lsn: int,
        state: dict[str, Any] | None,
        tables: Iterable[TableState],
        metrics: Mapping[str, Any] | None = None,
    ) -> None:
        """Records that a batch is done. metrics: as in `Ledger.close`."""
        row = {"ledger_id": batch.ledger_id, "status": "done", "at": datetime.now(timezone.utc)}
        row |= {"last_commit_lsn": last_commit_lsn, "state": json.dumps(state), "backfill": batch.backfill}
        row |= {"tables": [table_row(table) for table in tables], "since": batch.since}
        row |= {"metrics": None if metrics is None else json.dumps(metrics)}
        self.store.append_rows("batches", [row], batch.number, "done")


@dataclass(frozen=True, slots=True)
class LedgerFiles:
    """Files that were read."""

    store: LedgerStore

    def append(self, batch: Batch, result: BatchResult) -> None:
        marks: dict[int, list[dict[str, int]]] = {}
        for mark in result.rows.assembly.watermarks:
            marks.setdefault(mark.file, []).append({"stretch": mark.epoch, "lsn": mark.lsn})
        rows = []
        for number, file in batch.files.items():
            row = {"file": number, **asdict(file), "modified": time_of(file.modified - POSTGRES_EPOCH_MICROSECONDS)}
            row |= {name: result.accounts.get(number, {}).get(name, 0) for name in ACCOUNTS.values()}
            if number in result.scans:
                row |= file_statistics(result.scans[number]) | {"watermarks": marks.get(number, [])}
            rows.append(row)
        self.store.append_rows("files", rows, batch.number)

    def path_of(self, batch: Batch, number: int) -> str:
        """The path of a file of this batch, or of an earlier one whose transactions were still open."""
        if number in batch.files:
            return batch.files[number].path
        is_file = F.col("file") == number
        rows = self.store.query("files", lambda rows: rows_before(rows, batch).where(is_file).select("path"))
        return rows[0]["path"] if rows else f"file {number}"

    def index(self, batch: Batch | None, before: int | None = None) -> FileIndex:
        """All file parts that batches from `batch.since` on have read; with `before`, only batches before that number.

        Columns that an older ledger did not write are NULL.
        """
        since = 0 if batch is None else batch.since
        modified = F.unix_micros("modified").alias("modified")
        names = [name for name in INDEX_SCHEMA.names if name != "modified"]

        def parts(rows: DataFrame) -> DataFrame:
            chosen = with_missing_columns("files", rows).where(F.col("batch") >= since)
            chosen = chosen if before is None else chosen.where(F.col("batch") < before)
            return chosen.select(modified, *names)

        columns = self.store.query_columns("files", parts)
        return FileIndex.of({}) if columns is None else FileIndex(columns.select(INDEX_SCHEMA.names).cast(INDEX_SCHEMA))
