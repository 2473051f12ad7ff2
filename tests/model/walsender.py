"""WAL records to the messages of one connection, as logical decoding and pgoutput make them.

After decode.c, snapbuild.c, reorderbuffer.c and pgoutput.c of PostgreSQL 14 to 18. Servers before 14 differ in nothing
that this model shows but what is said at `version`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple

from pgoutput_etl.messages import (
    Begin,
    BeginPrepare,
    CommitPrepared,
    Delete,
    Insert,
    Origin,
    PgoutputMessage,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Update,
)
from pgoutput_etl.messages import Commit as CommitMessage
from pgoutput_etl.messages import Prepare as PrepareMessage
from tests.model.catalog import TRUNCATE, Layout
from tests.model.relation_sync import RelationSyncCache
from tests.model.reorder import BufferedTransaction, Queued
from tests.model.wal import (
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
    end_of,
    time_at,
)


class Streaming(Enum):
    OFF = "off"
    ON = "on"
    PARALLEL = "parallel"


EVERY = -1


class Eviction(NamedTuple):
    """The memory limit is reached at some record. victim: which of the open transactions has to go, or EVERY. changes:
    how many of its changes are sent before the server notices that the transaction is aborted, if it is."""

    victim: int
    changes: int


@dataclass(frozen=True, slots=True)
class Connection:
    """One connection of a receiver to the slot.

    begins_at: records before this LSN are not sent. two_phase_at: where the slot's two-phase decoding was switched on;
    None where it is off. lags: the server knows how transactions ended long before their end is decoded. evictions: by
    the LSN of a record. ends_at, ends_after: the connection ends at this record after so many messages that it causes;
    None for one that lasts.
    """

    begins_at: int = 0
    two_phase_at: int | None = None
    lags: bool = False
    evictions: Mapping[int, Eviction] = field(default_factory=dict)
    early_invalidations: frozenset[int] = frozenset()
    ends_at: int | None = None
    ends_after: int = 0


@dataclass(frozen=True, slots=True)
class Slot:
    """What is the same in all connections. version: PostgreSQL's. messages: send logical decoding Messages.
    publishes_origins: send transactions that came from another server."""

    version: int
    streaming: Streaming = Streaming.OFF
    messages: bool = True
    publishes_origins: bool = True


class Walsender:
    """aborted: the xids of transactions that end with an Abort record."""

    def __init__(self, slot: Slot, connection: Connection, aborted: frozenset[int]) -> None:
        self.slot, self.connection = slot, connection
        self.version = slot.version
        self.aborted = aborted if connection.lags else frozenset[int]()
        self.sent: list[PgoutputMessage] = []
        self._buffer: dict[int, BufferedTransaction] = {}
        self._relations = RelationSyncCache()
        self._unsent_begin: list[PgoutputMessage] = []

    def run(self, wal: Iterable[Record]) -> list[PgoutputMessage]:
        ends_at = self.connection.ends_at
        for record in wal:
            sent_before = len(self.sent)
            if record.lsn in self.connection.early_invalidations:
                self._relations.invalidate([EVERY_TABLE])
            self._decode(record)
            if ends_at is not None and record.lsn >= ends_at:
                del self.sent[sent_before + self.connection.ends_after :]
                break
        return self.sent

    def _decode(self, record: Record) -> None:
        match record:
            case Change() | TruncateTables():
                if self._accepts(record.origin):
                    self._transaction(record.top).queue_row(record)
                    self._check_memory(record.lsn)
            case Commit():
                self._commit(record)
            case Invalidation():
                self._transaction(record.top).queue_invalidation(record)
                self._check_memory(record.lsn)
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
            self._transaction(record.top).queue_row(record)
            self._check_memory(record.lsn)
        elif record.lsn >= self.connection.begins_at and self.slot.messages:
            self.sent.append(record.message)

    # Streaming

    def _check_memory(self, lsn: int) -> None:
        """ReorderBufferCheckMemoryLimit"""
        eviction = self.connection.evictions.get(lsn)
        if eviction is None:
            return
        found = [t for t in self._buffer.values() if t.changes and t.is_streamable and not t.is_aborted]
        if not found:
            return
        for transaction in found if eviction.victim == EVERY else [found[eviction.victim % len(found)]]:
            is_aborted = transaction.xid in self.aborted
            if is_aborted and self.version >= 18:
                transaction.discard_as_aborted()
            elif self.slot.streaming is not Streaming.OFF and lsn >= self.connection.begins_at:
                self._stream(transaction, eviction.changes if is_aborted else None)

    def _stream(self, transaction: BufferedTransaction, limit: int | None = None) -> None:
        """One segment. limit: the server finds the transaction aborted after so many changes, and forgets the others."""
        changes, transaction.changes = transaction.changes, []
        if not changes:
            return
        self.sent.append(StreamStart(transaction.xid, not transaction.is_streamed))
        origin = None if isinstance(changes[0], Invalidation) else changes[0].origin
        if origin is not None and not transaction.is_streamed:
            self.sent.append(Origin(0, origin))
        transaction.is_streamed = True
        transaction.mark_subtransactions_streamed(changes)
        for change in changes[:limit]:
            self._send(change, transaction.xid)
        transaction.is_aborted = limit is not None
        self.sent.append(StreamStop())
        self._invalidate(transaction)

    def _stream_abort(self, transaction: BufferedTransaction, subxid: int, lsn: int) -> None:
        is_parallel = self.slot.streaming is Streaming.PARALLEL
        at = (end_of(lsn), time_at(lsn)) if lsn else (0, 0)
        self.sent.append(StreamAbort(transaction.xid, subxid, *(at if is_parallel else (None, None))))
        self._relations.end_stream(transaction.xid, is_commit=False)

    # Ends

    def _commit(self, record: Commit) -> None:
        is_two_phase = record.gid is not None and self.connection.two_phase_at is not None
        transaction = self._buffer.get(record.xid)
        if transaction is None:
            return
        if transaction.changes_catalog:
            self._distribute(transaction, record.lsn)
        del self._buffer[record.xid]
        if self._is_skipped(record.lsn, record.origin):
            self._relations.invalidate(transaction.altered)
        elif is_two_phase:
            self._commit_prepared(transaction, record)
        else:
            self._replay(transaction, record)

    def _distribute(self, transaction: BufferedTransaction, lsn: int) -> None:
        """SnapBuildDistributeSnapshotAndInval: open transactions see the new catalog from here on."""
        oids = frozenset(transaction.altered)
        for other in self._buffer.values():
            if other is transaction and other.prepare is None:
                other.queue(Invalidation(lsn, other.xid, other.xid, frozenset()))  # its own snapshot
            elif other.has_snapshot and other.prepare is None:
                other.queue_others_invalidation(Invalidation(lsn, other.xid, other.xid, oids))
        self._check_memory(lsn)

    def _prepare(self, record: Prepare) -> None:
        transaction = self._buffer.get(record.xid)
        if transaction is None or self.connection.two_phase_at is None:
            return
        transaction.prepare = record
        if self._is_skipped(record.lsn, record.origin):
            self._relations.invalidate(transaction.altered)
            return
        self._replay(transaction, record)
        if not transaction.is_streamed and not transaction.has_snapshot and self.version >= 18:
            self.sent.append(PrepareMessage(*_prepared(record)))  # of an empty one, without a Begin Prepare
        transaction.changes = []

    def _commit_prepared(self, transaction: BufferedTransaction, record: Commit) -> None:
        prepare, two_phase_at = transaction.prepare, self.connection.two_phase_at
        assert prepare is not None
        assert two_phase_at is not None
        assert record.gid is not None
        if prepare.lsn < two_phase_at:
            self._replay(transaction, prepare)
        lsn = record.lsn
        self.sent.append(CommitPrepared(lsn, end_of(lsn), time_at(lsn), record.xid, record.gid))
        self._relations.invalidate(transaction.altered)

    def _replay(self, transaction: BufferedTransaction, end: Commit | Prepare) -> None:
        """ReorderBufferReplay"""
        if transaction.is_streamed:
            self._stream(transaction)
            self._end_stream(transaction, end)
            return
        has_snapshot = transaction.has_snapshot if self.version >= 14 else bool(transaction.changes)
        if not has_snapshot:
            return
        begin: PgoutputMessage = Begin(end.lsn, time_at(end.lsn), end.xid)
        if isinstance(end, Prepare):
            begin = BeginPrepare(*_prepared(end))
        self._unsent_begin = [begin]
        if end.origin is not None:
            self._unsent_begin.append(Origin(end.origin_lsn, end.origin))
        if isinstance(end, Prepare) or self.version < 15:
            self._send_begin()
        for change in transaction.changes[: self._limit(end)]:
            self._send(change, None)
        if isinstance(end, Prepare):
            self.sent.append(PrepareMessage(*_prepared(end)))
        elif not self._unsent_begin:
            self.sent.append(CommitMessage(end.lsn, end_of(end.lsn), time_at(end.lsn)))
        self._unsent_begin = []
        self._invalidate(transaction)

    def _limit(self, end: Commit | Prepare) -> int | None:
        """A prepared transaction that was rolled back meanwhile may be sent in part."""
        eviction = self.connection.evictions.get(end.lsn)
        is_cut = eviction is not None and isinstance(end, Prepare) and end.xid in self.aborted
        return eviction.changes if eviction is not None and is_cut else None

    def _end_stream(self, transaction: BufferedTransaction, end: Commit | Prepare) -> None:
        if isinstance(end, Prepare):
            self.sent.append(StreamPrepare(*_prepared(end)))
            return
        self.sent.append(StreamCommit(end.xid, end.lsn, end_of(end.lsn), time_at(end.lsn)))
        self._relations.end_stream(transaction.xid, is_commit=True)

    def _abort(self, record: Abort) -> None:
        transaction = self._buffer.get(record.top)
        if transaction is None:
            return
        is_skipped = self._is_skipped(record.lsn, record.origin)
        if record.gid is not None and self.connection.two_phase_at is not None and not is_skipped:
            prepare = transaction.prepare
            assert prepare is not None
            lsns, times = (end_of(prepare.lsn), end_of(record.lsn)), (time_at(prepare.lsn), time_at(record.lsn))
            self.sent.append(RollbackPrepared(*lsns, *times, record.xid, record.gid))
            self._relations.invalidate(transaction.altered)
            del self._buffer[record.top]
            return
        subxids = record.subxids if record.xid == record.top else (*record.subxids, record.xid)
        for subxid in subxids:
            transaction.drop_subtransaction(subxid)
            if subxid in transaction.streamed_subxids:
                self._stream_abort(transaction, subxid, record.lsn)
        if record.xid == record.top:
            self._abort_whole(transaction, record.lsn)

    def _abort_whole(self, transaction: BufferedTransaction, lsn: int) -> None:
        if transaction.is_streamed:
            self._stream_abort(transaction, transaction.xid, lsn)
            self._relations.invalidate(transaction.altered)
        del self._buffer[transaction.xid]

    def _abort_old(self, oldest_xid: int) -> None:
        """ReorderBufferAbortOld: transactions that a crash ended have no record of their own."""
        for transaction in list(self._buffer.values()):
            if (transaction.xid - oldest_xid) % (1 << 32) < 1 << 31:
                return
            self._abort_whole(transaction, 0)

    def _invalidate(self, transaction: BufferedTransaction) -> None:
        """No other transaction is to be decoded with what this one alone knows of the catalog."""
        self._relations.invalidate(transaction.altered)
        self._relations.invalidate(transaction.altered_elsewhere)

    # Messages

    def _send_begin(self) -> None:
        self.sent += self._unsent_begin
        self._unsent_begin = []

    def _send(self, change: Queued, top: int | None) -> None:
        """top: the transaction that is streamed."""
        match change:
            case Change(layout=layout, message=message):
                known = self._relations.layout(layout)
                if known is not layout:
                    layout, message = known, known.message(change.operation)
                if message is None:
                    return
                xid = None if top is None else change.xid
                self._send_relation(layout, xid, top)
                self.sent.append(message if xid is None else _in_segment(message, xid))
            case Invalidation(oids=oids):
                self._relations.invalidate(oids)
            case TruncateTables(layouts=layouts, options=options):
                xid = None if top is None else change.xid
                published = [known for known in map(self._relations.layout, layouts) if TRUNCATE in known.operations]
                for known in published:
                    self._send_relation(known, xid, top)
                if published:
                    self.sent.append(Truncate(xid, options, tuple(known.definition.oid for known in published)))
            case LogicalMessage(message=message) if self.slot.messages:
                self._send_begin()
                # In a segment it has the xid of the transaction, also if a subtransaction emitted it.
                self.sent.append(message if top is None else replace(message, xid=top))
            case LogicalMessage():
                pass

    def _send_relation(self, layout: Layout, xid: int | None, top: int | None) -> None:
        if self._unsent_begin:
            self._send_begin()
        if self._relations.must_send(layout.definition.oid, top):
            of_types = layout.types if xid is None else tuple(replace(of, xid=xid) for of in layout.types)
            relation = layout.relation if xid is None else replace(layout.relation, xid=xid)
            self.sent += (*of_types, relation)


def _prepared(record: Prepare) -> tuple[int, int, int, int, str]:
    return record.lsn, end_of(record.lsn), time_at(record.lsn), record.xid, record.gid


def _in_segment(message: Insert | Update | Delete, xid: int) -> Insert | Update | Delete:
    match message:
        case Insert():
            return Insert(xid, message.relation_oid, message.new)
        case Update():
            return Update(xid, message.relation_oid, message.old_kind, message.old, message.new)
        case Delete():
            return Delete(xid, message.relation_oid, message.old_kind, message.old)
