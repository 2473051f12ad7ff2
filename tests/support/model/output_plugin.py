"""The callbacks of pgoutput: decoded transactions to messages. After pgoutput.c of PostgreSQL 14 to 18."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pgoutput_etl.protocol.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    Origin,
    PgoutputMessage,
    Prepare,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Update,
)
from tests.support.model import wal
from tests.support.model.catalog import TRUNCATE, Layout
from tests.support.model.relation_sync import RelationSyncCache
from tests.support.model.reorder import Queued
from tests.support.model.slot import Slot, Streaming
from tests.support.model.wal import end_of, time_at


class OutputPlugin:
    """sent: the messages of one connection."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self.sent: list[PgoutputMessage] = []
        self.relations = RelationSyncCache()
        self._unsent_begin: list[PgoutputMessage] = []

    # Transactions in one piece

    def begin(self, end: wal.Commit) -> None:
        """From PostgreSQL 15 on, Begin waits for the first change."""
        self._unsent_begin = [Begin(end.lsn, time_at(end.lsn), end.xid), *_origin(end)]
        if self.slot.version < 15:
            self._send_begin()

    def commit(self, end: wal.Commit) -> None:
        if not self._unsent_begin:
            self.sent.append(Commit(end.lsn, end_of(end.lsn), time_at(end.lsn)))
        self._unsent_begin = []

    def begin_prepare(self, end: wal.Prepare) -> None:
        self.sent += [BeginPrepare(*_prepared(end)), *_origin(end)]

    def prepare(self, end: wal.Prepare) -> None:
        self.sent.append(Prepare(*_prepared(end)))

    def commit_prepared(self, end: wal.Commit) -> None:
        assert end.gid is not None
        self.sent.append(CommitPrepared(end.lsn, end_of(end.lsn), time_at(end.lsn), end.xid, end.gid))

    def rollback_prepared(self, prepare: wal.Prepare, end: wal.Abort) -> None:
        lsns, times = (end_of(prepare.lsn), end_of(end.lsn)), (time_at(prepare.lsn), time_at(end.lsn))
        self.sent.append(RollbackPrepared(*lsns, *times, end.xid, prepare.gid))

    def _send_begin(self) -> None:
        self.sent += self._unsent_begin
        self._unsent_begin = []

    # Streamed transactions

    def stream_start(self, xid: int, is_first: bool, change: Queued) -> None:
        """change: the first of the segment. Only changes of rows know their origin."""
        self.sent.append(StreamStart(xid, is_first))
        if is_first and isinstance(change, wal.Change | wal.TruncateTables) and change.origin is not None:
            self.sent.append(Origin(0, change.origin))

    def stream_stop(self) -> None:
        self.sent.append(StreamStop())

    def stream_abort(self, xid: int, subxid: int, lsn: int) -> None:
        """lsn: 0 if a crash ended the transaction."""
        is_parallel = self.slot.streaming is Streaming.PARALLEL
        at = (end_of(lsn), time_at(lsn)) if lsn else (0, 0)
        self.sent.append(StreamAbort(xid, subxid, *(at if is_parallel else (None, None))))
        self.relations.end_stream(xid, is_commit=False)

    def stream_commit(self, end: wal.Commit) -> None:
        self.sent.append(StreamCommit(end.xid, end.lsn, end_of(end.lsn), time_at(end.lsn)))
        self.relations.end_stream(end.xid, is_commit=True)

    def stream_prepare(self, end: wal.Prepare) -> None:
        """It leaves the RelationSyncEntries alone."""
        self.sent.append(StreamPrepare(*_prepared(end)))

    # Changes

    def change(self, change: Queued, top: int | None) -> None:
        """top: the transaction that is streamed; None outside of segments."""
        match change:
            case wal.Change(layout=layout, message=message):
                known = self.relations.layout(layout)
                if known is not layout:
                    layout, message = known, known.message(change.operation)
                if message is None:
                    return
                xid = None if top is None else change.xid
                self._send_relation(layout, xid, top)
                self.sent.append(message if xid is None else _in_segment(message, xid))
            case wal.Invalidation(oids=oids):
                self.relations.invalidate(oids)
            case wal.TruncateTables(layouts=layouts, options=options):
                self._truncate(layouts, options, None if top is None else change.xid, top)
            case wal.LogicalMessage(message=message) if self.slot.messages:
                self._send_begin()
                # In a segment it has the top-level xid, even if a subtransaction emitted it.
                self.sent.append(message if top is None else replace(message, xid=top))
            case wal.LogicalMessage():
                pass

    def _truncate(self, layouts: Sequence[Layout], options: int, xid: int | None, top: int | None) -> None:
        published = [known for known in map(self.relations.layout, layouts) if TRUNCATE in known.operations]
        for known in published:
            self._send_relation(known, xid, top)
        if published:
            self.sent.append(Truncate(xid, options, tuple(known.definition.oid for known in published)))

    def plain_message(self, record: wal.LogicalMessage) -> None:
        """A Message that is not transactional."""
        if self.slot.messages:
            self.sent.append(record.message)

    def _send_relation(self, layout: Layout, xid: int | None, top: int | None) -> None:
        if self._unsent_begin:
            self._send_begin()
        if self.relations.must_send(layout.definition.oid, top):
            types = layout.types if xid is None else tuple(replace(message, xid=xid) for message in layout.types)
            relation = layout.relation if xid is None else replace(layout.relation, xid=xid)
            self.sent += (*types, relation)


def _prepared(end: wal.Prepare) -> tuple[int, int, int, int, str]:
    return end.lsn, end_of(end.lsn), time_at(end.lsn), end.xid, end.gid


def _origin(end: wal.Commit | wal.Prepare) -> list[Origin]:
    return [] if end.origin is None else [Origin(end.origin_lsn, end.origin)]


def _in_segment(message: Insert | Update | Delete, xid: int) -> Insert | Update | Delete:
    match message:
        case Insert():
            return Insert(xid, message.relation_oid, message.new)
        case Update():
            return Update(xid, message.relation_oid, message.old_kind, message.old, message.new)
        case Delete():
            return Delete(xid, message.relation_oid, message.old_kind, message.old)
