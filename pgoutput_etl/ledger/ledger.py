"""The record of everything read and applied: Delta tables under state.root, per source.

A batch is the unit of work. A run records the batch and its files before it changes anything else. Every write of a
batch carries Delta's transaction identifier (source and table, batch number), which Delta accepts only once. The
batch's final row marks it as done. A run that finds an unfinished batch first finishes it, with the same files.

    batches            one row when a batch begins and one when it is done: the state that the next run continues from,
                       the LSN through which all tables are consistent, and each table's Delta version at that point
    files              every file that was read: its batch, its contents and their relations
    relations, types   every version, with the position from which it applies
    transactions       every transaction whose end was read: committed, aborted, resent, refused; its origin; its
                       fragments, scope and aborted subtransactions unless its rows in the archive tell its status.
                       `maintain` deletes other transactions once they are old
    open_transactions  changes and Messages of transactions whose end was not read yet
    messages           logical decoding Messages, each once: transactional ones if committed, and all others
    quarantine         what could not be applied, and why
    claims             which run works, or worked, on which batch
    schema_changes     every change of a target's columns, key or name, and the first row that has it
    verifications      which table was found equal to the server's, as of which LSN
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import Config
from pgoutput_etl.file_access import PRIVATE, Access
from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.ledger.batch import Batch, BatchResult, PriorState
from pgoutput_etl.ledger.batches import LedgerBatches, LedgerFiles
from pgoutput_etl.ledger.history import LedgerHistory
from pgoutput_etl.ledger.publish import DeltaPublisher
from pgoutput_etl.ledger.quarantine import LedgerQuarantine
from pgoutput_etl.ledger.store import LedgerStore, Store
from pgoutput_etl.ledger.tables import verified_through
from pgoutput_etl.ledger.transactions import LedgerTransactions, PendingTransactions, open_fragments
from pgoutput_etl.schema.diff import SchemaChange
from pgoutput_etl.schema.relation_history import CommitPosition
from pgoutput_etl.spark.platform import check_digits, read_sql_as_it_stands
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.statistics import BatchStatistics


class Ledger:
    """One source's part of the ledger. Constructors read nothing; a ledger that doesn't exist is empty."""

    def __init__(
        self,
        store: Store,
        transactions: LedgerTransactions,
        pending: PendingTransactions,
        quarantine: LedgerQuarantine,
        publisher: DeltaPublisher | None = None,
    ) -> None:
        self.source, self.machine, self.store = store.source, store.machine, store
        self.batches, self.files, self.history = LedgerBatches(store), LedgerFiles(store), LedgerHistory(store)
        self.transactions, self.pending, self.quarantine = transactions, pending, quarantine
        self.publisher = publisher
        self.unpublished: str | None = None  # why the last batch couldn't be published
        self.verified: Mapping[int, int] = {}  # when the last batch was published

    @property
    def has_one_driver(self) -> bool:
        """True if only the claim, and not the storage, prevents two drivers from committing the same Delta version."""
        return self.store.claim_files() is not None

    def prior_state(self, assembly: Assembly) -> PriorState:
        return PriorState(len(assembly.relations.entries), dict(assembly.types), open_fragments(assembly))

    def record_ahead(self, batch: Batch, rows: MessageRows, before: PriorState, statistics: BatchStatistics) -> None:
        """Appends the rows that don't depend on the batch's tables, so the caller may write the tables at the same
        time. The batch must have begun. statistics: of the whole batch."""
        assembly = rows.assembly
        new_types = [t for oid, t in assembly.types.items() if before.types.get(oid) != t]
        self._run_in_parallel(
            partial(self.pending.append, batch, rows),
            partial(self.transactions.append, batch, rows, statistics.ended.total()),
            partial(self.transactions.append_messages, batch, rows, statistics.messages),
            partial(self.history.append_relations, assembly.relations.entries[before.relation_entries :], batch),
            partial(self.history.append_types, new_types, batch),
            partial(self.history.append_catalog, assembly.relations.definitions, batch),
            partial(self.quarantine.append_refused, batch),
        )

    def close(self, batch: Batch, results: BatchResult, metrics: Callable[[], Mapping[str, Any]] | None = None) -> None:
        """Marks the batch as done. Everything else about it must already be written.

        metrics: called last, so that it can include the time of the earlier commits. Its result is stored as JSON and
        must not contain cell values.
        """
        assembly = results.rows.assembly
        self._run_in_parallel(
            partial(self.files.append, batch, results),
            partial(self.quarantine.append, batch, results, partial(self.files.path_of, batch)),
            partial(self.history.append_schema_changes, batch, results.schema_changes),
        )
        # A complete table without changes in this batch has also reached the last commit; a held or skipped one hasn't.
        tables = [
            replace(table, last_commit_lsn=max(table.last_commit_lsn, assembly.last_commit_lsn))
            if table.is_complete
            else table
            for table in {**batch.tables, **{table.oid: table for table in results.tables}}.values()
        ]
        measured = None if metrics is None else metrics()
        done = self.batches.finish(batch, assembly.last_commit_lsn, assembly.state(), tables, measured)
        self.pending.delete_closed(results.prior.open_fragments, assembly)
        self.publish(done)

    def close_backfill(
        self,
        batch: Batch,
        tables: Mapping[int, TableState],
        rebuilt: Sequence[int],
        schema_changes: Iterable[tuple[TableState, CommitPosition | None, SchemaChange]],
        has_begun: bool = True,
    ) -> None:
        """Marks a backfill's batch as done. tables: new states of the backfilled tables; rebuilt: OIDs of complete
        ones. Everything else stays as the last batch left it. has_begun: as in LedgerBatches.finish."""
        self.history.append_schema_changes(batch, schema_changes)
        if rebuilt:
            self.quarantine.mark_redriven(batch, rebuilt)
        after = {**batch.tables, **tables}.values()
        reached = batch.last_commit_lsn
        if batch.state is None:  # there were only snapshots so far: use the LSN that all of them have reached
            reached = min((table.last_commit_lsn for table in after if table.is_complete), default=0)
        self.publish(self.batches.finish(batch, reached, batch.state, after, has_begun=has_begun))

    def publish(self, done: Batch) -> None:
        """Makes a finished batch visible to readers. A failure doesn't end the run: its reason is in `unpublished`, and
        the next run tries again."""
        self.verified = self.verified_through()
        self.unpublished = None if self.publisher is None else self.publisher.publish(done, self.verified)

    def verified_through(self) -> dict[int, int]:
        """By OID, the last LSN at which a table was found equal to the server's."""
        return verified_through(self.store.rows("verifications", ("oid", "lsn")))

    def record_verified(self, batch: int, oids: Iterable[int], lsn: int) -> None:
        """batch: the number of the last batch when the server was queried. Needs no claim."""
        self.store.append_rows("verifications", [{"oid": oid, "lsn": lsn} for oid in oids], batch, uuid4().hex)

    def verified_states(self) -> dict[int, TableState]:
        """The tables that were found equal to the server's, as in `LedgerBatches.states_left`."""
        return self.batches.states_left(verified_through(self.store.rows("verifications", ("oid", "batch")), "batch"))

    def delete_ended(self, last: Batch) -> None:
        """Deletes rows of transactions that had ended by a finished batch, in case its run died before doing so."""
        self.pending.delete_ended(self.history.assembly(Batch.after(last, {})), last)

    def _run_in_parallel(self, *commits: Callable[[], None]) -> None:
        """Each commit writes to its own table and mostly waits. Their order doesn't matter until the batch is done."""
        with self.machine.pool(len(commits)) as pool:
            for commit in [pool.submit(commit) for commit in commits]:
                commit.result()


class DeltaLedger(Ledger):
    """A ledger in Delta tables, read and written by Spark."""

    def __init__(self, store: LedgerStore, publisher: DeltaPublisher | None) -> None:
        parts = LedgerTransactions(store), PendingTransactions(store), LedgerQuarantine(store)
        super().__init__(store, *parts, publisher)
        self.store: LedgerStore = store
        self.spark, self.root, self.access = store.spark, store.root, store.access

    @classmethod
    def at(
        cls,
        spark: SparkSession,
        root: str,
        source: str,
        publisher: DeltaPublisher | None = None,
        access: Access = PRIVATE,
    ) -> DeltaLedger:
        """Raises ConfigError for a session that substitutes variables in SQL text, or uses other digits than 0 to 9."""
        read_sql_as_it_stands(spark)
        check_digits(spark)
        return cls(LedgerStore(spark, root, source, access), publisher)

    @classmethod
    def of(cls, spark: SparkSession, config: Config) -> DeltaLedger:
        publisher, state = DeltaPublisher.of(spark, config), config.state
        return cls.at(spark, state.root, config.source.name, publisher, state.access())
