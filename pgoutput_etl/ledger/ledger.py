"""What has been read and applied: Delta tables under state.root, kept per source.

A batch is the unit of work. It is written down, with its files, before anything else is changed; every write of it
carries Delta's transaction identifier (source and table, number of the batch), which Delta refuses to take twice; and
it is done once its closing row is there. A run that finds a batch without one finishes it first, with the same files.

    batches            a row when one is begun and one when it is done: the state that the next run goes on from, the
                       LSN through which all tables are consistent, and the Delta version of each at that point
    files              every file that was read, what was in it (of which relations, too), and by which batch
    relations, types   every version, with the position from which it holds
    transactions       every transaction whose end was seen: committed, aborted, resent, refused; its origin; units,
                       scope and aborted subtransactions where its rows in the archive don't tell what became of them.
                       Others are trimmed once they are old (retention.py)
    open_transactions  the changes and Messages of those whose end was not, as they came
    messages           logical decoding Messages: of committed transactions, and of none, each once
    quarantine         what could not be applied, and why
    claims             which run is, or was, at work on which batch
    schema_changes     every change of a target's columns, key or name, and the first row that showed it
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime, timezone
from functools import partial
from typing import Any

import pyarrow as pa
from delta.exceptions import (
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.errors import RunError
from pgoutput_etl.ingest.executors import TransactionFilter, blocks_of
from pgoutput_etl.ingest.quarantine import TORN, parts_of_transactions, unreadable
from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.landing.file_index import INDEX_SCHEMA, FileIndex
from pgoutput_etl.landing.fingerprint import FilePart, FileStatus
from pgoutput_etl.ledger.batch import Batch, BatchResult, PriorState
from pgoutput_etl.ledger.claim_files import claim_files
from pgoutput_etl.ledger.claims import CLAIMED, Claim, Claims
from pgoutput_etl.ledger.tables import (
    file_statistics,
    relation_of,
    relation_row,
    schema_of,
    table_row,
    table_state,
    time_of,
    transaction_row,
    type_row,
)
from pgoutput_etl.protocol.messages import Type
from pgoutput_etl.scan.blocks import BlockKind
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.schema.diff import SchemaChange
from pgoutput_etl.schema.relation_history import CommitPosition, RelationEntry, RelationHistory
from pgoutput_etl.spark.arrow_types import arrow_schema
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.spark.delta import delta_table, is_delta_table
from pgoutput_etl.spark.session import session_for_few_rows
from pgoutput_etl.targets.plan import HELD, TableState
from pgoutput_etl.timestamps import POSTGRES_EPOCH_MICROSECONDS
from pgoutput_etl.transactions.assembly import NOTHING_OPEN, Assembly, open_scopes
from pgoutput_etl.transactions.leftovers import Leftovers
from pgoutput_etl.transactions.logical_messages import IDENTIFIED_BY
from pgoutput_etl.transactions.outcome import ACCOUNTS, TRIMMED, FragmentId, TransactionStatus
from pgoutput_etl.transactions.statistics import OTHERS

# An append that lost to another one at the same moment: a table that both would make, or one identifier. In Python none
# of them is a DeltaConcurrentModificationException.
_CONFLICTS = (
    ConcurrentTransactionException,
    ConcurrentWriteException,
    MetadataChangedException,
    ProtocolChangedException,
)

_RECORD_COLUMNS = pa.schema([("relation", pa.int64()), ("uses", pa.string())])

_FRAGMENTS = pa.schema([("file", pa.int64()), ("unit", pa.int32())])


class Ledger:
    """One source's part of the ledger. Reads nothing at first; a ledger that isn't there is an empty one."""

    def __init__(self, spark: SparkSession, root: str, source: str) -> None:
        self.spark = spark
        self.root = root.rstrip("/")
        self.source = source
        self._quick = session_for_few_rows(spark)

    def path(self, table: str) -> str:
        return f"{self.root}/{table}"

    def read(self, table: str) -> DataFrame:
        if not is_delta_table(self.spark, self.path(table)):
            return _frame(self.spark, table, [])
        return self._read(self.spark, table)

    def _latest_batch(self, table: str, choose: Callable[[DataFrame], DataFrame]) -> list[dict[str, Any]]:
        """Few rows, chosen of a table; none if it isn't there, without asking Spark."""
        chosen = self._choose(table, choose)
        return [] if chosen is None else chosen.to_pylist()

    def _choose(self, table: str, choose: Callable[[DataFrame], DataFrame]) -> pa.Table | None:
        """The same, as columns; None if it isn't there."""
        if not is_delta_table(self._quick, self.path(table)):
            return None
        return choose(self._read(self._quick, table)).toArrow()

    def _read(self, spark: SparkSession, table: str) -> DataFrame:
        return spark.read.format("delta").load(self.path(table)).where(F.col("source") == self.source)

    def _append(self, table: str, rows: DataFrame, batch: int, step: str = "") -> None:
        """Once per batch, table and step, however often it is tried: again where another source's run came between."""
        writer = rows.write.format("delta").mode("append").option("txnVersion", str(batch))
        writer = writer.option("txnAppId", f"pgoutput_etl:{self.source}:{table}:{step}").option("mergeSchema", "true")
        for is_last in (False, False, True):
            try:
                writer.save(self.path(table))
                return
            except _CONFLICTS:
                if is_last:
                    raise

    def _append_rows(self, table: str, rows: list[dict[str, Any]], batch: int, step: str = "") -> None:
        if rows:
            self._append(table, self._rows(self._quick, table, rows, batch), batch, step)

    def _rows(self, spark: SparkSession, table: str, rows: list[dict[str, Any]], batch: int) -> DataFrame:
        return _frame(spark, table, [{"source": self.source, "batch": batch, **row} for row in rows])

    def _current(self) -> tuple[int, int] | None:
        """The number of the newest batch, and of the newest that is done, 0 if none is. None before the first."""
        batches = self._latest_batch("batches", lambda rows: rows.select("batch", "status"))
        if not batches:
            return None
        done = [row["batch"] for row in batches if row["status"] == "done"]
        return max(row["batch"] for row in batches), max(done, default=0)

    def last_batch(self) -> Batch | None:
        """The batch to finish, if one was begun; else the last one that is done; None before the first."""
        standing = self._current()
        if standing is None:
            return None
        newest, last_done = standing
        found = self._latest_batch("batches", lambda rows: rows.where(F.col("batch").isin(*{newest, last_done})))
        rows = {(row["batch"], row["status"]): row for row in found}
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
        """The batch, now that it is done: for the run's next one to go on from. Raises RunError if another run came
        between."""
        last = self.last_batch()
        if last is None or (last.ledger_id, last.number, last.resumed) != (batch.ledger_id, batch.number, False):
            raise RunError(
                f"another run has gone on behind batch {batch.number}; this one changes nothing more. Run again"
            )
        return last

    def extend(self, table: str, batch: Batch) -> DataFrame:
        """What assembly wrote before the batch, of the files that count."""
        return self._before(self.read(table), batch)

    def completed(self, table: str, rows: DataFrame) -> DataFrame:
        """With the columns that a ledger from before they were kept lacks, NULL."""
        there = set(rows.columns)
        lacking = {f.name: F.lit(None).cast(f.dataType) for f in schema_of(table) if f.name not in there}
        return rows.withColumns(lacking) if lacking else rows

    def _before(self, rows: DataFrame, batch: Batch) -> DataFrame:
        return rows.where((F.col("batch") >= batch.since) & (F.col("batch") < batch.number))

    def state_at(self, oid: int, version: int) -> TableState | None:
        """Where a table stood at a Delta version that a batch left it at, the last of them."""

        def of_it(batches: DataFrame) -> DataFrame:
            tables = batches.where(F.col("status") == "done").select("batch", F.explode("tables").alias("t"))
            return tables.where((F.col("t.oid") == oid) & (F.col("t.version") == version))

        found = self._latest_batch("batches", of_it)
        return table_state(max(found, key=lambda row: row["batch"])["t"]) if found else None

    def states_after(self, batch: int) -> dict[int, TableState]:
        """By OID: where all tables stood when a batch was done."""
        of_it = (F.col("batch") == batch) & (F.col("status") == "done")
        [found] = self._latest_batch("batches", lambda batches: batches.where(of_it).select("tables"))
        return {row["oid"]: table_state(row) for row in found["tables"]}

    @property
    def has_one_driver(self) -> bool:
        """Whether storage doesn't keep two drivers apart that commit at the same moment: only the claim does."""
        return claim_files(self.spark, self.root, self.source) is not None

    def claims(self, progress: Callable[[str], None] = lambda _: None) -> Claims:
        """With a batch's rows come those of its neighbours: a run may be at work on the one before still, or already on
        the one after."""
        files = claim_files(self.spark, self.root, self.source, progress)

        def read(batch: int) -> list[dict[str, Any]]:
            rows = self._latest_batch("claims", lambda rows: rows.where(F.col("batch").between(batch - 1, batch + 1)))
            return rows if files is None else rows + files.read(batch)

        def append(row: Mapping[str, Any], batch: int, name: str) -> None:
            if files is not None and row["status"] == CLAIMED and not files.make({**row, "batch": batch}):
                return
            try:
                self._append_rows("claims", [dict(row)], batch, name)
            finally:  # a claim that is released must not be followed by a write
                if files is not None and row["status"] != CLAIMED:
                    files.renew({**row, "batch": batch})

        return Claims(read, append)

    @contextmanager
    def claimed(
        self, last: Batch | None, batch: Batch, progress: Callable[[str], None], claim: Claim | None = None
    ) -> Iterator[Callable[[], None]]:
        """The claim of `batch`, and its check. Raises RunError if the ledger isn't any more as it was when the batch
        was put together: with `last` for the last one, and `claim` for the last claim, if that is known."""

        def confirm() -> None:
            standing = self._current()
            now = None if standing is None else (standing[0], standing[0] != standing[1])
            if (last and (last.number, last.resumed)) != now:
                raise RunError("another run has just finished; this one changes nothing. Run again")

        with self.claims(progress).held(batch.number, progress, claim, confirm) as check:
            yield check

    def begin(self, batch: Batch) -> None:
        """Before anything else of the batch is written. A batch that is resumed was begun before.

        Raises RunError if another run has begun it with other files: what both would write has one identifier.
        """
        if batch.resumed:
            return
        files = [{"file": number, **asdict(file)} for number, file in batch.files.items()]
        row = {"ledger_id": batch.ledger_id, "status": "begun", "at": datetime.now(timezone.utc), "files": files}
        row |= {"backfill": batch.backfill, "settings": batch.settings}
        self._append_rows("batches", [row], batch.number, "begun")
        of_it = (F.col("batch") == batch.number) & (F.col("status") == "begun")
        [found] = self._latest_batch("batches", lambda rows: rows.where(of_it).select("ledger_id", "files", "backfill"))
        if (found["ledger_id"], found["files"], found["backfill"]) != (batch.ledger_id, files, batch.backfill):
            raise RunError(
                f"another run has begun batch {batch.number} before this one, which changes nothing. Run again"
            )

    def record_ahead(self, batch: Batch, rows: MessageRows, before: PriorState, messages: Mapping[str, int]) -> None:
        """What of a batch that was begun doesn't depend on how its tables are written: this may go on beside them.
        `messages`: as `Tally.messages`."""
        assembly = rows.assembly
        _all_at_once(
            partial(self._append_open_rows, batch, rows),
            partial(self._append_transactions, batch, rows),
            partial(self._append_messages, batch, rows, messages),
            partial(self._append_relations, assembly.relations.entries[before.relation_entries :], batch.number),
            partial(self._append_types, assembly, before, batch.number),
            partial(self._append_refused, batch),
        )

    def close(self, batch: Batch, results: BatchResult) -> None:
        """After everything else of the batch is written; its last row makes it done."""
        assembly = results.rows.assembly
        _all_at_once(
            partial(self._append_files, batch, results),
            partial(self._append_quarantine, batch, results),
            partial(self._append_schema_changes, batch, results.schema_changes),
        )
        known = {**batch.tables, **{table.oid: table for table in results.tables}}
        # A table that is held or skipped stands where it stood; any other that had no changes has none that it lacks.
        tables = [
            table
            if not table.is_complete
            else replace(table, last_commit_lsn=max(table.last_commit_lsn, assembly.last_commit_lsn))
            for table in known.values()
        ]
        self._append_done(batch, assembly.last_commit_lsn, assembly.state(), tables)
        still_open = set(_open_fragments(assembly))
        self._delete([fragment for fragment in results.prior.open_units if fragment not in still_open])

    def close_backfill(
        self,
        batch: Batch,
        tables: Mapping[int, TableState],
        rebuilt: Sequence[int],
        schema_changes: Iterable[tuple[TableState, CommitPosition | None, SchemaChange]],
    ) -> None:
        """`tables`: where those stand that were done again, `rebuilt` those of them that are whole. All else stays as
        it was after the last batch."""
        self._append_schema_changes(batch, schema_changes)
        if rebuilt:
            self.redriven(batch, F.col("relation").isin(*rebuilt))
        after = {**batch.tables, **tables}.values()
        reached = batch.last_commit_lsn
        if batch.state is None:  # snapshots alone: as far as all of them
            reached = min((table.last_commit_lsn for table in after if table.is_complete), default=0)
        self._append_done(batch, reached, batch.state, after)

    def redriven(self, batch: Batch, which: Column) -> None:
        """Notes with what was in quarantine before that the batch took it up again."""
        if is_delta_table(self.spark, self.path("quarantine")):
            before = (F.col("source") == self.source) & (F.col("batch") < batch.number) & F.col("redriven").isNull()
            quarantine = delta_table(self.spark, self.path("quarantine"))
            quarantine.update(before & which, {"redriven": F.lit(batch.number).cast("long")})

    def record_trimmed(self, last: Batch, lsn: int) -> None:
        """That ordinary transactions up to a commit may be gone (retention.py). `last`: the newest batch."""
        self._append_rows("transactions", [{"fate": TRIMMED, "commit_lsn": lsn}], last.number, f"{TRIMMED}:{lsn}")

    def trimmed_to(self) -> int:
        """The last commit up to which ordinary transactions may be gone; 0 if all are there."""
        is_note = F.col("fate") == TRIMMED
        found = self._latest_batch(
            "transactions", lambda rows: rows.where(is_note).agg(F.max("commit_lsn").alias("lsn"))
        )
        return max((row["lsn"] or 0 for row in found), default=0)

    def has_lost_bytes(self) -> bool:
        """Whether any are in quarantine that nothing sent again, and that no batch has taken up since."""
        left = F.col("redriven").isNull() & F.col("relation").isNull() & F.col("offset").isNotNull()
        lost = left & ~F.col("reason").endswith(TORN)
        return bool(self._latest_batch("quarantine", lambda rows: rows.where(lost).select("file").limit(1)))

    def leftovers(self) -> Leftovers:
        """What the last batch that read files set aside, as far as none has taken it up since."""
        newest = self._latest_batch("files", lambda rows: rows.agg(F.max("batch").alias("batch")))
        of_batch = F.col("batch") >= max((row["batch"] or 0 for row in newest), default=0)
        names = ("file", "path", "offset", "length", "xid", "lsn", "reason")
        left = of_batch & F.col("redriven").isNull() & F.col("relation").isNull()
        return Leftovers.of(self._latest_batch("quarantine", lambda rows: rows.where(left).select(*names)))

    def _append_done(
        self, batch: Batch, last_commit_lsn: int, state: dict[str, Any] | None, tables: Iterable[TableState]
    ) -> None:
        row = {
            "ledger_id": batch.ledger_id,
            "status": "done",
            "at": datetime.now(timezone.utc),
            "last_commit_lsn": last_commit_lsn,
            "state": json.dumps(state),
            "tables": [table_row(table) for table in tables],
            "backfill": batch.backfill,
            "since": batch.since,
        }
        self._append_rows("batches", [row], batch.number, "done")

    def _stamp(self, batch: Batch) -> tuple[Column, Column]:
        return F.lit(self.source).alias("source"), F.lit(batch.number).cast("long").alias("batch")

    def _append_open_rows(self, batch: Batch, rows: MessageRows) -> None:
        """With what was done to the columns of protected tables, and which of theirs stayed as they were."""
        if not _open_fragments(rows.assembly):
            return
        content = rows.content_with_status()
        waiting = content.where((F.col("fate") == TransactionStatus.OPEN.value) & (F.col("file") >= batch.first_file))
        waiting = waiting.join(F.broadcast(self._stamps(rows.assembly.relations)), "relation", "left")
        of_them = (*self._stamp(batch), *MESSAGE_SCHEMA.names, "uses")
        self._append("open_transactions", waiting.select(*of_them), batch.number)

    def _stamps(self, relations: RelationHistory) -> DataFrame:
        uses = [(oid, relations.masks_of(oid)) for oid in sorted(relations.oids())]
        stamps = [{"relation": oid, "uses": json.dumps(dict(of_it))} for oid, of_it in uses if of_it]
        return frame(self.spark, pa.Table.from_pylist(stamps, _RECORD_COLUMNS))

    def _append_transactions(self, batch: Batch, rows: MessageRows) -> None:
        self._append("transactions", self.ended(batch, rows), batch.number)

    def _append_messages(self, batch: Batch, rows: MessageRows, messages: Mapping[str, int]) -> None:
        """A batch that assembles the archive anew has them all, and adds those that are not there yet."""
        if not any(messages.values()):
            return
        found = rows.logical_messages()
        of_none = ~F.col("transactional")
        others = found.where(of_none)
        if messages.get(OTHERS):
            first = F.min(F.struct("file", "ordinal")).alias("first")
            again = [F.first(name).alias(name) for name in ("transactional", "xid", "commit_lsn", "commit_ts")]
            others = others.groupBy(*IDENTIFIED_BY).agg(first, *again).select("*", "first.*").drop("first")
            found = found.where(~of_none).unionByName(self._unrecorded(others, batch))
        if batch.since == batch.number:
            found = self._unrecorded(found, batch)
        time = F.timestamp_micros(F.col("commit_ts") + POSTGRES_EPOCH_MICROSECONDS)
        self._append("messages", found.withColumn("commit_ts", time).select(*self._stamp(batch), "*"), batch.number)

    def _unrecorded(self, messages: DataFrame, batch: Batch) -> DataFrame:
        """Those that no batch before kept, as what was sent again is."""
        if not is_delta_table(self.spark, self.path("messages")):
            return messages
        [least] = messages.agg(F.min("lsn")).collect()
        if least[0] is None:
            return messages
        before = (F.col("batch") < batch.number) & (F.col("lsn") >= least[0])
        known = self.read("messages").where(before).select("transactional", *IDENTIFIED_BY)
        return messages.join(known, ["transactional", *IDENTIFIED_BY], "left_anti")

    def ended(self, batch: Batch, rows: MessageRows, which: TransactionFilter | None = None) -> DataFrame:
        """The ordinary ones within a file from the executors, which hold them; the others, all of them, are the
        driver's."""
        ended = rows.ended(which).where(F.col("fate") != TransactionStatus.QUARANTINED.value)
        ended = ended.select(
            *self._stamp(batch),
            "xid",
            F.lit(None).cast("string").alias("gid"),
            "fate",
            "commit_lsn",
            F.timestamp_micros(F.col("commit_ts") + POSTGRES_EPOCH_MICROSECONDS).alias("commit_ts"),
            "file",
            "unit",
            "changes",
            "origin",
            "origin_lsn",
        )
        others = [transaction_row(outcome) for outcome in rows.assembly.outcomes]
        found = self._rows(self.spark, "transactions", others, batch.number)
        return found.unionByName(ended, allowMissingColumns=True)

    def _append_types(self, assembly: Assembly, before: PriorState, batch: int) -> None:
        news = [t for oid, t in assembly.types.items() if before.types.get(oid) != t]
        self._append_rows("types", [type_row(t) for t in news], batch)

    def _append_quarantine(self, batch: Batch, results: BatchResult) -> None:
        """Bytes that are no message, transactions that have such, and tables that can't be brought further."""
        path_of = partial(self.path_of, batch)
        news = [t for t in results.tables if t.status == HELD and t != batch.tables.get(t.oid)]
        held = [
            {"schema": t.schema, "table": t.table, "relation": t.oid, "lsn": t.last_commit_lsn, "reason": t.reason}
            for t in news
        ]
        rows = results.rows
        keeps_bytes = rows.assembly.relations.mask is None
        parts = [
            unreadable(self.spark, rows.messages(BlockKind.DAMAGE), results.scans, path_of),
            parts_of_transactions(self.spark, rows.with_status(), rows.assembly, path_of, keeps_bytes),
        ]
        frames = [part.select(*self._stamp(batch), "*") for part in parts if part is not None]
        if held or frames:
            found = self._rows(self.spark, "quarantine", held, batch.number)
            for frame in frames:
                found = found.unionByName(frame, allowMissingColumns=True)
            self._append("quarantine", found, batch.number)

    def _append_schema_changes(
        self, batch: Batch, changes: Iterable[tuple[TableState, CommitPosition | None, SchemaChange]]
    ) -> None:
        rows = []
        for table, place, change in changes:
            lsn, file, ordinal = place or (None, None, None)
            of_table = {"oid": table.oid, "schema": table.schema, "table": table.table}
            shown = {"commit_lsn": lsn, "file": file, "ordinal": ordinal}
            what = {"kind": change.kind.value, "column": change.column or None, "detail": change.detail or None}
            rows.append({**of_table, **shown, **what})
        self._append_rows("schema_changes", rows, batch.number)

    def _append_refused(self, batch: Batch) -> None:
        """Files that bear the name of one that was read."""
        refused = [(n, f) for n, f in batch.files.items() if f.status == FileStatus.REFUSED.value]
        rows = [{"file": number, "path": file.path, "reason": file.reason} for number, file in refused]
        self._append_rows("quarantine", rows, batch.number, "files")

    def _append_files(self, batch: Batch, results: BatchResult) -> None:
        marks: dict[int, list[dict[str, int]]] = {}
        for mark in results.rows.assembly.watermarks:
            marks.setdefault(mark.file, []).append({"stretch": mark.epoch, "lsn": mark.lsn})
        rows = []
        for number, file in batch.files.items():
            row = {"file": number, **asdict(file), "modified": time_of(file.modified)}
            row |= {name: results.accounts.get(number, {}).get(name, 0) for name in ACCOUNTS.values()}
            if number in results.scans:
                row |= file_statistics(results.scans[number]) | {"watermarks": marks.get(number, [])}
            rows.append(row)
        self._append_rows("files", rows, batch.number)

    def assembly(self, batch: Batch, all_scopes: bool = False) -> Assembly:
        """Transactions, relations and types as they stood before the batch. `all_scopes`: with what described rows of
        streamed transactions that have ended, for those who read such rows again."""
        history = self._relations(batch, None if all_scopes else open_scopes(batch.state or NOTHING_OPEN))
        types = self._latest_batch("types", lambda rows: self._before(rows, batch))
        types.sort(key=lambda row: row["batch"])
        by_oid = {row["oid"]: Type(None, row["oid"], row["schema"], row["name"]) for row in types}
        if batch.state is None:
            assembly = Assembly(history)
            assembly.types = by_oid
            return assembly
        return Assembly.from_state(batch.state, history, by_oid)

    def _relations(self, batch: Batch, scopes: Sequence[int] | None) -> RelationHistory:
        """`scopes`: None for all."""

        def choose(rows: DataFrame) -> DataFrame:
            found = self._before(rows, batch)
            return found if scopes is None else found.where(F.col("scope").isNull() | F.col("scope").isin(*scopes))

        return RelationHistory.of(
            RelationEntry((row["from_file"], row["from_ordinal"]), relation_of(row), row["scope"])
            for row in self._latest_batch("relations", choose)
        )

    def append_relations(self, relations: Iterable[RelationEntry], batch: Batch) -> None:
        """Of a batch that has them from elsewhere than the archive."""
        self._append_relations(relations, batch.number)

    def append_types(self, types: Iterable[Type], batch: Batch) -> None:
        """Of a batch that has them from elsewhere than the archive."""
        self._append_rows("types", [type_row(t) for t in types], batch.number)

    def prior_state(self, assembly: Assembly) -> PriorState:
        return PriorState(len(assembly.relations.entries), dict(assembly.types), _open_fragments(assembly))

    def path_of(self, batch: Batch, number: int) -> str:
        """A file's path, of the batch's or of one before it whose transactions waited."""
        if number in batch.files:
            return batch.files[number].path
        of_it = (F.col("file") == number) & (F.col("batch") >= batch.since) & (F.col("batch") < batch.number)
        found = self._latest_batch("files", lambda rows: rows.where(of_it).select("path"))
        return found[0]["path"] if found else f"file {number}"

    def file_index(self, batch: Batch | None, before: int | None = None) -> FileIndex:
        """What was read of landed files since the batch that `batch` counts from, and before batch `before`. A ledger
        from before a column was kept has NULL in it."""
        since = 0 if batch is None else batch.since
        modified = F.unix_micros("modified").alias("modified")
        names = [name for name in INDEX_SCHEMA.names if name != "modified"]

        def of_parts(rows: DataFrame) -> DataFrame:
            chosen = self.completed("files", rows).where(F.col("batch") >= since)
            chosen = chosen if before is None else chosen.where(F.col("batch") < before)
            return chosen.select(modified, *names)

        found = self._choose("files", of_parts)
        return FileIndex.of({}) if found is None else FileIndex(found.select(INDEX_SCHEMA.names).cast(INDEX_SCHEMA))

    def _append_relations(self, entries: Iterable[RelationEntry], batch: int) -> None:
        rows = [
            {"from_file": e.position[0], "from_ordinal": e.position[1], "scope": e.scope} | relation_row(e.relation)
            for e in entries
        ]
        self._append_rows("relations", rows, batch)

    def open_rows(self, assembly: Assembly, batch: Batch) -> DataFrame | None:
        """Blocks of the message rows of transactions that earlier batches left open, if there are any."""
        waiting = self._waiting(assembly, batch)
        return None if waiting is None else blocks_of(waiting.select(*MESSAGE_SCHEMA.names), BlockKind.WAITING)

    def _waiting(self, assembly: Assembly, batch: Batch) -> DataFrame | None:
        fragments = _open_fragments(assembly)
        if not fragments:
            return None
        rows = self.completed("open_transactions", self.extend("open_transactions", batch))
        return rows.join(F.broadcast(self._units(fragments)), ["file", "unit"], "left_semi")

    def masks_of_open_rows(self, assembly: Assembly, batch: Batch) -> list[tuple[int, dict[str, str]]]:
        """Of changes that earlier batches left open: relations, and what was done to their columns then."""
        waiting = self._waiting(assembly, batch)
        if waiting is None:
            return []
        found = waiting.where(F.col("relation").isNotNull()).select("relation", "uses").distinct()
        return [(row["relation"], json.loads(row["uses"] or "{}")) for row in found.toArrow().to_pylist()]

    def delete_ended(self, last: Batch) -> None:
        """Once more for all that has ended by a batch that is done, whose run may have died before it got to it."""
        still_open = set(_open_fragments(self.assembly(Batch.after(last, {}))))
        waiting = self.read("open_transactions").select("file", "unit").distinct().collect()
        self._delete([fragment for fragment in map(tuple, waiting) if fragment not in still_open])

    def _delete(self, ended: list[FragmentId]) -> None:
        """Drops the rows of transactions that have ended. They would do no harm: only open units are read."""
        if not ended:
            return
        target = delta_table(self.spark, self.path("open_transactions")).alias("t")
        same = (F.col("t.file") == F.col("s.file")) & (F.col("t.unit") == F.col("s.unit"))
        here = same & (F.col("t.source") == self.source)
        target.merge(self._units(ended).alias("s"), here).whenMatchedDelete().execute()

    def _units(self, fragments: list[FragmentId]) -> DataFrame:
        listed = [{"file": file, "unit": fragment} for file, fragment in fragments]
        return frame(self.spark, pa.Table.from_pylist(listed, _FRAGMENTS))


def _frame(spark: SparkSession, table: str, rows: list[dict[str, Any]]) -> DataFrame:
    return frame(spark, pa.Table.from_pylist(rows, arrow_schema(schema_of(table))))


def _all_at_once(*effects: Callable[[], None]) -> None:
    """Each is a commit of its own table, most of it waiting; their order doesn't matter before the batch is done."""
    with ThreadPoolExecutor(len(effects)) as pool:
        for written in [pool.submit(effect) for effect in effects]:
            written.result()


def _open_fragments(assembly: Assembly) -> list[FragmentId]:
    return [fragment for outcome in assembly.open_outcomes() for fragment in outcome.fragments]
