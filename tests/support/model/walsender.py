"""WAL records to the messages of one connection: logical decoding and its reorder buffer.

After decode.c, snapbuild.c, and reorderbuffer.c of PostgreSQL 14 to 18; docstrings name their functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pgoutput_etl.protocol.messages import PgoutputMessage
from tests.support.model.output_plugin import OutputPlugin
from tests.support.model.reorder import BufferedTransaction
from tests.support.model.slot import IMMEDIATE, Connection, Slot, Streaming
from tests.support.model.wal import (
    EVERY_TABLE,
    Abort,
    Change,
    Commit,
    Invalidation,
    LockRows,
    LogicalMessage,
    Prepare,
    Record,
    RunningTransactions,
    TruncateTables,
)


class Walsender:
    """aborted: the xids of transactions that end with an Abort record."""

    def __init__(self, slot: Slot, connection: Connection, aborted: frozenset[int] = frozenset()) -> None:
        self.slot, self.connection = slot, connection
        self.aborted = aborted if connection.lags else frozenset[int]()
        self.plugin = OutputPlugin(slot)
        self._buffer: dict[int, BufferedTransaction] = {}  # in the order of their first records

    def run(self, wal: Iterable[Record]) -> list[PgoutputMessage]:
        sent, ends_at = self.plugin.sent, self.connection.ends_at
        for record in wal:
            sent_before = len(sent)
            if record.lsn in self.connection.early_invalidations:
                self.plugin.relations.invalidate([EVERY_TABLE])
            self._decode(record)
            if ends_at is not None and record.lsn >= ends_at:
                del sent[sent_before + self.connection.ends_after :]
                break
        return sent

    def _decode(self, record: Record) -> None:
        match record:
            case Change() | TruncateTables():
                if self._accepts(record.origin):
                    transaction = self._transaction(record.top)
                    transaction.queue_row(record)
                    self._check_memory(record.lsn, [transaction])
            case Commit():
                self._commit(record)
            case Invalidation():
                transaction = self._transaction(record.top)
                transaction.queue_invalidation(record, self._accepts(record.origin))
                self._check_memory(record.lsn, [transaction])
            case LogicalMessage():
                self._message(record)
            case Abort():
                self._abort(record)
            case LockRows():
                self._transaction(record.top)
            case Prepare():
                self._prepare(record)
            case RunningTransactions():
                self._abort_old(record.oldest_xid)

    def _transaction(self, xid: int) -> BufferedTransaction:
        transaction = self._buffer.get(xid)
        if transaction is None:
            transaction = self._buffer[xid] = BufferedTransaction(xid)
        return transaction

    def _accepts(self, origin: str | None) -> bool:
        return origin is None or self.slot.publishes_origins

    def _is_skipped(self, lsn: int, origin: str | None) -> bool:
        """DecodeTXNNeedSkip"""
        return lsn < self.connection.begins_at or not self._accepts(origin)

    def _message(self, record: LogicalMessage) -> None:
        if record.top:
            self._transaction(record.top)
        if not self._accepts(record.origin):
            return
        if record.message.transactional:
            transaction = self._transaction(record.top)
            transaction.queue_row(record)
            self._check_memory(record.lsn, [transaction])
        elif record.lsn >= self.connection.begins_at:
            self.plugin.plain_message(record)

    # Streaming

    def _check_memory(self, lsn: int, queued: Sequence[BufferedTransaction]) -> None:
        """ReorderBufferCheckMemoryLimit. queued: the transactions that got a change."""
        eviction = self.connection.evictions.get(lsn)
        if eviction is None:
            return
        is_immediate = eviction.victim == IMMEDIATE
        candidates = queued if is_immediate else self._buffer.values()
        evictable = [t for t in candidates if t.changes and t.is_streamable and not t.is_aborted]
        if not self.slot.evicts_prepared:
            evictable = [t for t in evictable if t.prepare is None]
        if not evictable:
            return
        for transaction in evictable if is_immediate else [evictable[eviction.victim % len(evictable)]]:
            is_aborted = transaction.xid in self.aborted
            if is_aborted and self.slot.version >= 18:
                transaction.discard_as_aborted()
            elif self.slot.streaming is not Streaming.OFF and lsn >= self.connection.begins_at:
                self._stream(transaction, eviction.changes if is_aborted else None)

    def _stream(self, transaction: BufferedTransaction, limit: int | None = None) -> None:
        """One segment. limit: the number of changes after which the server finds the transaction aborted."""
        changes, transaction.changes = transaction.changes, []
        if not changes:
            return
        self.plugin.stream_start(transaction.xid, not transaction.is_streamed, changes[0])
        transaction.is_streamed = True
        transaction.mark_subtransactions_streamed(changes)
        for change in changes[:limit]:
            self.plugin.change(change, transaction.xid)
        transaction.is_aborted = limit is not None
        self.plugin.stream_stop()
        self._forget_catalog(transaction)

    def _forget_catalog(self, transaction: BufferedTransaction) -> None:
        """Invalidate the catalog as this transaction alone sees it."""
        self.plugin.relations.invalidate(transaction.altered)
        self.plugin.relations.invalidate(transaction.altered_elsewhere)

    # Ends

    def _commit(self, record: Commit) -> None:
        transaction = self._buffer.get(record.xid)
        if transaction is None:
            return
        if transaction.changes_catalog:
            self._distribute(transaction, record.lsn)
        del self._buffer[record.xid]
        if self._is_skipped(record.lsn, record.origin):
            self.plugin.relations.invalidate(transaction.altered)
        elif record.gid is not None and self.connection.two_phase_at is not None:
            self._commit_prepared(transaction, record, self.connection.two_phase_at)
        elif transaction.is_streamed:
            self._stream(transaction)
            self.plugin.stream_commit(record)
        elif transaction.has_snapshot if self.slot.version >= 14 else transaction.changes:
            self.plugin.begin(record)
            for change in transaction.changes:
                self.plugin.change(change, None)
            self.plugin.commit(record)
            self._forget_catalog(transaction)

    def _distribute(self, transaction: BufferedTransaction, lsn: int) -> None:
        """SnapBuildDistributeSnapshotAndInval: open transactions see the new catalog from this record on."""
        oids = frozenset(transaction.altered)
        concerned = [other for other in self._buffer.values() if other.has_snapshot and other.prepare is None]
        for other in concerned:
            if other is transaction:
                other.queue(Invalidation(lsn, other.xid, other.xid, None, frozenset()))  # its own snapshot
            else:
                other.queue_others_invalidation(Invalidation(lsn, other.xid, other.xid, None, oids))
        self._check_memory(lsn, concerned)

    def _prepare(self, record: Prepare) -> None:
        transaction = self._buffer.get(record.xid)
        if transaction is None or self.connection.two_phase_at is None:
            return
        transaction.prepare = record
        if self._is_skipped(record.lsn, record.origin):
            self.plugin.relations.invalidate(transaction.altered)
            return
        self._send_prepared(transaction, record)
        if not transaction.is_streamed and not transaction.has_snapshot and self.slot.version >= 18:
            self.plugin.prepare(record)  # an empty transaction has no Begin Prepare
        transaction.changes = []

    def _send_prepared(self, transaction: BufferedTransaction, prepare: Prepare) -> None:
        if transaction.is_streamed:
            self._stream(transaction)
            self.plugin.stream_prepare(prepare)
        elif transaction.has_snapshot:
            self.plugin.begin_prepare(prepare)
            # If it was rolled back meanwhile, it may be sent in part.
            eviction = self.connection.evictions.get(prepare.lsn) if prepare.xid in self.aborted else None
            for change in transaction.changes[: None if eviction is None else eviction.changes]:
                self.plugin.change(change, None)
            self.plugin.prepare(prepare)
            self._forget_catalog(transaction)

    def _commit_prepared(self, transaction: BufferedTransaction, record: Commit, two_phase_at: int) -> None:
        """Sends a transaction that was prepared before two-phase decoding was switched on."""
        assert transaction.prepare is not None
        if transaction.prepare.lsn < two_phase_at:
            self._send_prepared(transaction, transaction.prepare)
        self.plugin.commit_prepared(record)
        self.plugin.relations.invalidate(transaction.altered)

    def _abort(self, record: Abort) -> None:
        transaction = self._buffer.get(record.top)
        if transaction is None:
            return
        is_two_phase = record.gid is not None and self.connection.two_phase_at is not None
        if is_two_phase and not self._is_skipped(record.lsn, record.origin):
            assert transaction.prepare is not None
            self.plugin.rollback_prepared(transaction.prepare, record)
            self.plugin.relations.invalidate(transaction.altered)
            del self._buffer[record.top]
            return
        subxids = record.subxids if record.xid == record.top else (*record.subxids, record.xid)
        for subxid in subxids:
            transaction.drop_subtransaction(subxid)
            if subxid in transaction.streamed_subxids:
                self.plugin.stream_abort(transaction.xid, subxid, record.lsn)
        if record.xid == record.top:
            self._abort_whole(transaction, record.lsn)

    def _abort_whole(self, transaction: BufferedTransaction, lsn: int) -> None:
        if transaction.is_streamed:
            self.plugin.stream_abort(transaction.xid, transaction.xid, lsn)
            self.plugin.relations.invalidate(transaction.altered)
        del self._buffer[transaction.xid]

    def _abort_old(self, oldest_xid: int) -> None:
        """ReorderBufferAbortOld: transactions that a crash ended."""
        for transaction in list(self._buffer.values()):
            if (transaction.xid - oldest_xid) % (1 << 32) < 1 << 31:
                return
            self._abort_whole(transaction, 0)
