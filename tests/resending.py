"""A model of a server's logical decoding: a slot's changes are sent again from anywhere, in every way that there is.

The WAL is a list of records. A connection decodes it from the beginning, sends what ended at or after the slot's
confirmed LSN, and streams what is open when it likes, so that the same transaction comes streamed, in other segments,
or in one piece the next time. Every change is an Insert of its own value into a table without a key: what is applied
twice, or never, shows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum, auto

from pgoutput_etl.messages import Message, PgoutputMessage, StreamAbort
from tests.small_archives import (
    Change,
    Messages,
    Rows,
    commit_prepared,
    in_subtransaction,
    insert,
    prepared,
    rollback_prepared,
    segment,
    stream_commit,
    stream_prepare,
    table,
    transaction,
)

BAG = table(key=())


class Kind(Enum):
    """Of a WAL record."""

    INSERT = auto()
    MESSAGE = auto()  # not transactional
    ABORT_SUBTRANSACTION = auto()
    COMMIT = auto()
    ABORT = auto()
    PREPARE = auto()
    COMMIT_PREPARED = auto()
    ROLLBACK_PREPARED = auto()


@dataclass(frozen=True, slots=True)
class Record:
    """`subxid`: of an Insert's or an abort's subtransaction, or the transaction's own xid."""

    lsn: int
    kind: Kind
    xid: int
    subxid: int = 0


@dataclass(slots=True)
class Options:
    """How the slot is read."""

    streaming: bool = True
    skips_aborted: bool = False  # PostgreSQL 18: streams no more of what it finds aborted; says Stream Abort anyway


class Sessions:
    """Makes a WAL: transactions side by side, with subtransactions, some prepared, some never ended."""

    def __init__(self, chance: random.Random, records: int, xids: int = 10_000, messages: bool = False) -> None:
        self.chance = chance
        self.messages = messages
        self.xids = xids
        self.next_xid = 700
        self.wal: list[Record] = []
        self.open: dict[int, list[int]] = {}  # xid -> the subtransactions that were not rolled back, itself first
        self.prepared: list[int] = []
        while len(self.wal) < records:
            self._step()

    def _write(self, kind: Kind, xid: int, subxid: int = 0) -> None:
        self.wal.append(Record(1000 + 10 * len(self.wal), kind, xid, subxid or xid))

    def _new_xid(self) -> int:
        self.next_xid += 1
        return 700 + (self.next_xid - 700) % self.xids

    def _step(self) -> None:
        chance = self.chance
        if self.messages and chance.random() < 0.2:
            self._write(Kind.MESSAGE, 0)
        if len(self.open) < 3 and chance.random() < 0.3:
            xid = self._new_xid()
            if xid not in self.open and xid not in self.prepared:
                self.open[xid] = [xid]
        if self.prepared and chance.random() < 0.1:
            xid = self.prepared.pop(chance.randrange(len(self.prepared)))
            self._write(chance.choice([Kind.COMMIT_PREPARED, Kind.COMMIT_PREPARED, Kind.ROLLBACK_PREPARED]), xid)
        if not self.open:
            return
        xid = chance.choice(list(self.open))
        subxids = self.open[xid]
        match chance.randrange(12):
            case 0 | 1:
                self._write(Kind.COMMIT, xid)
                del self.open[xid]
            case 2:
                self._write(Kind.ABORT, xid)
                del self.open[xid]
            case 3:
                self._write(Kind.PREPARE, xid)
                self.prepared.append(xid)
                del self.open[xid]
            case 4 if len(subxids) > 1:
                self._write(Kind.ABORT_SUBTRANSACTION, xid, subxids.pop())
            case 5 | 6:
                subxids.append(self._new_xid())
                self._write(Kind.INSERT, xid, subxids[-1])
            case _:
                self._write(Kind.INSERT, xid, chance.choice(subxids))


def rows_at_the_end(wal: list[Record]) -> Rows:
    """What the server's table holds: every change of what was committed, once."""
    pending: dict[int, list[Record]] = {}
    rows: Rows = []
    for record in wal:
        changes = pending.setdefault(record.xid, [])
        match record.kind:
            case Kind.INSERT:
                changes.append(record)
            case Kind.ABORT_SUBTRANSACTION:
                pending[record.xid] = [change for change in changes if change.subxid != record.subxid]
            case Kind.COMMIT | Kind.COMMIT_PREPARED:
                rows += [(str(change.lsn), "v") for change in pending.pop(record.xid)]
            case Kind.ABORT | Kind.ROLLBACK_PREPARED:
                del pending[record.xid]
            case Kind.PREPARE | Kind.MESSAGE:
                pass
    return sorted(rows, key=repr)


@dataclass(slots=True)
class _Decoded:
    """A transaction in the reorder buffer."""

    changes: list[Record] = field(default_factory=list)
    streamed: set[int] = field(default_factory=set)  # of which (sub)transactions something was streamed
    knows_table: bool = False
    last_lsn: int = 0


@dataclass(slots=True)
class Connection:
    """What a walsender sends from `confirmed` on. `horizon`: what had been written when it began."""

    wal: list[Record]
    confirmed: int
    options: Options
    chance: random.Random
    horizon: int
    _buffer: dict[int, _Decoded] = field(default_factory=dict)
    _knows_table: bool = False

    def messages(self) -> Iterator[tuple[Record, Messages]]:
        """What each record makes the server send."""
        for record in self.wal:
            is_of_none = record.kind is Kind.MESSAGE
            yield record, self._message(record) if is_of_none else list(self._of(record))

    def _message(self, record: Record) -> Messages:
        """Sent as it is decoded, whatever transaction it was emitted in."""
        message = Message(None, False, record.lsn, "of none", str(record.lsn).encode())
        return [message] if record.lsn >= self.confirmed else []

    def _of(self, record: Record) -> Iterator[PgoutputMessage]:
        decoded = self._buffer.setdefault(record.xid, _Decoded())
        skipped = record.lsn < self.confirmed
        match record.kind:
            case Kind.INSERT:
                decoded.changes.append(record)
                decoded.last_lsn = record.lsn
                if self.options.streaming and not skipped and self.chance.random() < 0.4:
                    yield from self._stream(self.chance.choice([x for x, d in self._buffer.items() if d.changes]))
            case Kind.ABORT_SUBTRANSACTION:
                decoded.changes = [change for change in decoded.changes if change.subxid != record.subxid]
                if record.subxid in decoded.streamed and not skipped:
                    yield self._abort(record)
            case Kind.ABORT:
                is_stray = self.options.skips_aborted and self.chance.random() < 0.2
                if not skipped and (decoded.streamed or is_stray):
                    yield self._abort(record)
                del self._buffer[record.xid]
            case Kind.COMMIT | Kind.PREPARE if skipped:
                del self._buffer[record.xid]
            case Kind.COMMIT:
                yield from self._committed(record)
            case Kind.PREPARE:
                yield from self._prepared(record)
            case Kind.COMMIT_PREPARED if not skipped:
                yield from commit_prepared(record.xid, record.lsn)
            case Kind.ROLLBACK_PREPARED if not skipped:
                yield from rollback_prepared(record.xid)
            case _:
                pass

    def _abort(self, record: Record) -> StreamAbort:
        return StreamAbort(record.xid, record.subxid, None, None)

    def _stream(self, xid: int) -> Iterator[PgoutputMessage]:
        decoded = self._buffer[xid]
        first = not decoded.streamed
        if self.options.skips_aborted and self._is_known_aborted(xid):
            decoded.streamed |= {xid, *(change.subxid for change in decoded.changes)}
            decoded.changes = []
            return
        changes: list[Change] = []
        if not decoded.knows_table and not self._knows_table:
            changes.append(in_subtransaction(decoded.changes[0].subxid, BAG) if decoded.changes else BAG)
            decoded.knows_table = True
        changes += [in_subtransaction(c.subxid, insert(str(c.lsn), "v")) for c in decoded.changes]
        decoded.streamed |= {xid, *(change.subxid for change in decoded.changes)}
        decoded.changes = []
        yield from segment(xid, *changes, first=first)

    def _is_known_aborted(self, xid: int) -> bool:
        after = self._buffer[xid].last_lsn
        ends = (
            r for r in self.wal if r.xid == xid and r.lsn > after and r.kind in (Kind.COMMIT, Kind.ABORT, Kind.PREPARE)
        )
        end = next(ends, None)
        return end is not None and end.kind is Kind.ABORT and end.lsn <= self.horizon

    def _whole(self, decoded: _Decoded) -> list[Change]:
        changes: list[Change] = [] if self._knows_table else [BAG]
        self._knows_table = True
        return [*changes, *(insert(str(change.lsn), "v") for change in decoded.changes)]

    def _committed(self, record: Record) -> Iterator[PgoutputMessage]:
        decoded = self._buffer.pop(record.xid)
        if decoded.streamed:
            self._buffer[record.xid] = decoded
            yield from self._stream(record.xid)
            del self._buffer[record.xid]
            self._knows_table |= decoded.knows_table
            yield from stream_commit(record.xid, record.lsn)
        elif decoded.changes:
            yield from transaction(record.xid, record.lsn, *self._whole(decoded))

    def _prepared(self, record: Record) -> Iterator[PgoutputMessage]:
        decoded = self._buffer.pop(record.xid)
        if decoded.streamed:
            self._buffer[record.xid] = decoded
            yield from self._stream(record.xid)
            del self._buffer[record.xid]
            self._knows_table |= decoded.knows_table
            yield from stream_prepare(record.xid, record.lsn)
        elif decoded.changes:
            yield from prepared(record.xid, *self._whole(decoded), lsn=record.lsn)


@dataclass(slots=True)
class Reception:
    """A receiver that is killed again and again: `messages` is what it wrote, in order, over all its lives."""

    messages: Messages = field(default_factory=list)
    kills: int = 0
    sent_again: int = 0  # records that were sent to an earlier life already


def receive(wal: list[Record], options: Options, chance: random.Random, lives: int) -> Reception:
    """The last life receives to the end. Each confirms what it likes of what it has; a server may forget some of it."""
    reception = Reception()
    confirmed = [0]
    horizon = 0
    for life in range(lives):
        last = life == lives - 1
        # A crashed server knows of the slot what it last wrote to disk; mostly it is what was confirmed last.
        begins = confirmed[-1] if chance.random() < 0.8 else chance.choice(confirmed)
        connection = Connection(wal, begins, options, chance, horizon)
        reads_to = len(wal) if last else chance.randint(1, len(wal))
        reached = begins
        for record, messages in list(connection.messages())[:reads_to] if last else connection.messages():
            sent = messages
            stop = not last and record.lsn >= begins and chance.random() < 3 / len(wal)
            if stop:
                sent = messages[: chance.randint(0, len(messages))]
            reception.messages += sent
            reception.sent_again += bool(sent) and record.lsn <= horizon
            if stop:
                reception.kills += 1
                break
            reached = max(reached, record.lsn + 1)
        horizon = max(horizon, reached)
        confirmed.append(chance.choice([begins, reached, chance.randint(begins, reached)]))
    return reception


def cut_at_random(messages: Messages, chance: random.Random) -> list[Messages]:
    """Into files, some of which may be empty."""
    ends = sorted(chance.randint(0, len(messages)) for _ in range(chance.choice([0, 1, 4, 10])))
    return [messages[a:b] for a, b in zip([0, *ends], [*ends, len(messages)], strict=True)]
