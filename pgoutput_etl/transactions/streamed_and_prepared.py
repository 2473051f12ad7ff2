"""The state of transactions whose end has not been read, and the effects of messages about streamed and prepared ones.

See "Logical Replication Message Formats" and "Logical Streaming Replication Protocol" in PostgreSQL's documentation.

A server sends again whatever its client had not confirmed, so an archive may contain a transaction several times; the
last time, it is whole. One sending counts; the others end as `resent`:

- An ordinary transaction is resent if its commit LSN is not past its epoch's watermark: the last commit LSN of the
  files before. On executors, `status_lookup` applies the same rule.
- A transaction that was cut off by a new connection is sent again from its start. Until then, no later commit may come.
- A stream that began before a new connection is replaced by a new stream or by an ordinary transaction.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from pgoutput_etl.errors import SequenceError
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.protocol import messages
from pgoutput_etl.scan.file_summary import FileScan, FragmentKind
from pgoutput_etl.scan.message_row import HEAD, NO_FRAGMENT
from pgoutput_etl.scan.request import stored_origin_lsn
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.transactions.catalog_numbers import CatalogNumber, CatalogNumbers
from pgoutput_etl.transactions.outcome import (
    ONCE_COMMITTED,
    ControlRow,
    FragmentId,
    Outcome,
    StreamAborts,
    TransactionStatus,
    UnknownPrepared,
    UnreadableRange,
)

_XID = "Q"  # type code of `array`

# The ledger's names for two fields. They are part of a stored format, so they stay when names in code change.
_STORED_NAMES = {"fragments": "units", "unreadable_relations": "lost"}

_FIELDS = {stored: name for name, stored in _STORED_NAMES.items()}


@dataclass(slots=True)
class OpenTransaction:
    """A transaction whose end has not been read. lsn: as announced by Begin or Begin Prepare. has_content: False if it
    was streamed with only empty segments. catalog_numbers: of its Messages."""

    xid: int | None
    fragments: list[FragmentId]
    scope: int | None = None
    aborted_subxids: array[int] = field(default_factory=lambda: array(_XID))
    gid: str | None = None
    lsn: int | None = None
    cut_off: bool = False  # within a segment
    damage: str | None = None  # the first unreadable part, and why it is unreadable
    unreadable_relations: list[int] | None = field(default_factory=list)  # possibly in the unreadable parts; None: any
    origin: str | None = None
    origin_lsn: int | None = None
    has_content: bool = True
    catalog_numbers: list[CatalogNumber] = field(default_factory=list)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> OpenTransaction:
        values = {_FIELDS.get(name, name): value for name, value in state.items()}
        values["fragments"] = [(file, fragment) for file, fragment in state["units"]]
        values["catalog_numbers"] = [*map(CatalogNumber.of, state.get("catalog_numbers", ()))]
        return cls(**{**values, "aborted_subxids": array(_XID, state.get("aborted_subxids", ()))})

    def to_state(self) -> dict[str, Any]:
        """The transaction as JSON, with the field names that the ledger stores."""
        values = {_STORED_NAMES.get(name, name): value for name, value in asdict(self).items()}
        return {**values, "aborted_subxids": list(self.aborted_subxids)}

    def catalog_messages(self) -> list[CatalogNumber]:
        """The numbers of its catalog Messages, without those of aborted subtransactions."""
        aborted = {*self.aborted_subxids}
        return [sent for sent in self.catalog_numbers if sent.subxid not in aborted]

    def record_damage(self, damage: str, relations: frozenset[int] | None) -> None:
        self.damage = self.damage or damage
        if relations is None or self.unreadable_relations is None:
            self.unreadable_relations = None
        else:
            self.unreadable_relations = sorted({*self.unreadable_relations, *relations})

    def record_origin(self, message: messages.Origin) -> None:
        if self.origin is None:
            self.origin, self.origin_lsn = message.name, stored_origin_lsn(message.commit_lsn)

    def check_not_cut_off(self, message: str, row: ControlRow) -> None:
        if self.cut_off and self.damage is None:
            raise SequenceError(
                f"message {row.ordinal}: {message} of transaction {self.xid}, the last segment of which is cut off: "
                "a file is missing"
            )

    def outcome(self, status: TransactionStatus, lsn: int | None = None, time: int | None = None) -> Outcome:
        return Outcome(
            status,
            self.xid,
            tuple(self.fragments),
            self.gid,
            self.scope,
            lsn,
            time,
            self.aborted_subxids,
            self.damage,
            None if self.unreadable_relations is None else frozenset(self.unreadable_relations),
            self.origin,
            self.origin_lsn,
        )


@dataclass(slots=True)
class OpenAtEnd:
    """The fragment that is open between two files: part of an ordinary, prepared, or streamed transaction."""

    kind: FragmentKind
    transaction: OpenTransaction


@dataclass(slots=True)
class FileState:
    """State that lasts for one file. owners: transactions by fragment. segment_start: ordinal of the last Stream
    Start; -1 if the file begins inside a segment. roots: as in scan/partition_roots.py. catalog_numbers: by
    fragment, for ordinary transactions that begin in the file."""

    number: int
    watermarks: list[int]  # by epoch
    begins_in_stream: bool = False
    segment_start: int = -1
    head_has_changes: bool = False
    owners: dict[int, OpenTransaction] = field(default_factory=dict)  # of segments, prepared transactions, and the head
    orphans: list[int] = field(default_factory=list)
    roots: Mapping[int, int] = field(default_factory=dict)
    catalog_numbers: dict[int, list[CatalogNumber]] = field(default_factory=dict)

    def scope_of(self, fragment: int, in_stream: bool) -> int | None:
        """The scope of Relation messages in a fragment."""
        stream = self.owners.get(fragment) if in_stream else None
        return None if stream is None else stream.scope


@dataclass(slots=True)
class OpenTransactions:
    """The open transactions of an archive, and the outcomes of those that have ended.

    `to_state` returns the part that the ledger stores.
    """

    relations: RelationHistory
    next_scope: int = 1
    streams: dict[int, OpenTransaction] = field(default_factory=dict)  # by xid
    prepared: dict[int, OpenTransaction] = field(default_factory=dict)  # by xid
    tail: OpenAtEnd | None = None
    # Cut off, so the server must send them again: the commit LSN of an ordinary transaction, and gids of prepared ones.
    cut_off_lsn: int | None = None
    cut_off_gids: set[str] = field(default_factory=set)
    empty_prepared: set[str] = field(default_factory=set)  # gids of prepared transactions that had nothing to decode
    was_damaged: bool = False  # a message that seems to be missing may be among unreadable bytes
    catalog_numbers: CatalogNumbers = field(default_factory=CatalogNumbers)
    outcomes: list[Outcome] = field(default_factory=list)
    unreadable_ranges: list[UnreadableRange] = field(default_factory=list)
    unknown_prepared: list[UnknownPrepared] = field(default_factory=list)
    file: FileState = field(init=False)

    def end(
        self, status: TransactionStatus, transaction: OpenTransaction, lsn: int | None = None, time: int | None = None
    ) -> None:
        """Records the outcome of one sending of a transaction."""
        if transaction.scope is not None:
            self.relations.end(transaction.scope)
        if transaction.xid is not None:
            is_committed = status.value in ONCE_COMMITTED
            if is_committed and lsn is not None:
                self.check_catalog_numbers(transaction.catalog_messages(), lsn, transaction.xid)
            self.relations.definitions.end(transaction.xid, is_committed, lsn, transaction.aborted_subxids, time)
        self.outcomes.append(transaction.outcome(status, lsn, time))

    def check_catalog_numbers(self, sent: list[CatalogNumber], commit_lsn: int, xid: int | None) -> None:
        """If Messages are missing before one of these, marks definitions as unknown from there on. xid: as in
        Definitions.add."""
        for number in sent:
            if not self.catalog_numbers.follows(number, commit_lsn):
                file, ordinal = number.position
                self.relations.definitions.lose((file, ordinal - 1), xid, commit_lsn)

    def _end_as_resent(self, transaction: OpenTransaction) -> None:
        """Keeps the definitions under its xid, which belong to the later sending."""
        if transaction.scope is not None:
            self.relations.end(transaction.scope)
        self.outcomes.append(transaction.outcome(TransactionStatus.RESENT))

    def open_xid(self, fragment: int) -> int | None:
        """The xid of the streamed or prepared transaction that a fragment of the file belongs to. None for an ordinary
        one, which is only sent once it is committed."""
        owner = self.file.owners.get(fragment)
        return None if owner is None or (owner.scope is None and owner.gid is None) else owner.xid

    def add_prepared(self, transaction: OpenTransaction) -> None:
        assert transaction.xid is not None
        self.cut_off_gids.discard(transaction.gid or "")
        earlier = self.prepared.pop(transaction.xid, None)
        if earlier is not None:
            self._end_as_resent(earlier)
        self.prepared[transaction.xid] = transaction

    def is_resent(self, epoch: int, commit_lsn: int) -> bool:
        return commit_lsn <= self.file.watermarks[epoch]

    def end_replaced_stream(self, xid: int) -> None:
        """Ends a stream whose transaction was sent again as an ordinary one."""
        self.end(TransactionStatus.RESENT, self.streams.pop(xid))
        tail = self.tail
        if tail is not None and tail.kind is FragmentKind.SEGMENT and tail.transaction.xid == xid:
            self.tail = None

    def cut_off_tail(self) -> None:
        """Ends the tail at a new connection: the server sends everything again that it had sent only in part."""
        tail, self.tail = self.tail, None
        if tail is None:
            return
        self.forget_streams((self.file.number + 1, HEAD))
        transaction = tail.transaction
        if tail.kind is FragmentKind.SEGMENT:
            transaction.cut_off = True
            return
        if tail.kind is FragmentKind.PREPARED and transaction.gid is not None:
            self.cut_off_gids.add(transaction.gid)
        elif transaction.lsn is not None and not self.is_resent(0, transaction.lsn):
            self.cut_off_lsn = transaction.lsn
        self.end(TransactionStatus.RESENT, transaction)

    def forget_streams(self, before: FragmentId) -> None:
        """Ends streams that began before a new connection: the server streams them again from the start, and never
        mentions any that were rolled back in the meantime. After damage, a new connection is only a guess, so nothing
        is forgotten."""
        for xid, stream in list(self.streams.items()):
            is_tail = self.tail is not None and self.tail.transaction is stream
            if stream.fragments[0] < before and not is_tail and not self.was_damaged:
                self.end(TransactionStatus.RESENT, self.streams.pop(xid))

    def check_sent_again(self, scan: FileScan) -> None:
        """Raises SequenceError if commits continue past the transaction that was cut off."""
        commits = [epoch[0] for epoch in scan.epochs if epoch is not None]
        if scan.open_fragment is not None and scan.open_fragment.commit_lsn is not None:
            commits.append(scan.open_fragment.commit_lsn)
        cut_off_lsn = self.cut_off_lsn
        if cut_off_lsn is None or not commits:
            return
        if commits[0] > cut_off_lsn:
            raise SequenceError(
                f"continues with the commit at {format_lsn(commits[0])}, but the transaction that commits at "
                f"{format_lsn(cut_off_lsn)} is incomplete: a file is missing"
            )
        self.cut_off_lsn = None

    def start_segment(self, message: messages.StreamStart, row: ControlRow) -> None:
        stream = self.streams.get(message.xid)
        if message.first_segment and stream is not None:
            self.end(TransactionStatus.RESENT, stream)
        if message.first_segment or (stream is None and self.was_damaged):
            damage = None if message.first_segment else "the beginning of the stream can't be read"
            stream = OpenTransaction(message.xid, [], scope=self.next_scope, damage=damage, has_content=False)
            self.next_scope += 1
            self.streams[message.xid] = stream
            self.relations.definitions.end(message.xid, False, None)  # from an earlier sending
        elif stream is None:
            raise SequenceError(
                f"message {row.ordinal}: Stream Start continues transaction {message.xid}, whose first segment is not "
                "in the archive: an earlier file is missing"
            )
        stream.check_not_cut_off("Stream Start", row)
        file = self.file
        file.segment_start = row.ordinal
        stream.fragments.append((file.number, row.fragment))
        file.owners[row.fragment] = stream
        self.tail = OpenAtEnd(FragmentKind.SEGMENT, stream)

    def stop_segment(self, ordinal: int | None = None) -> None:
        """Also ends the tail if the segment's Stream Start is unreadable and the tail was open before it. ordinal:
        position of the Stream Stop; None if there is none."""
        tail = self.tail
        if tail is not None and ordinal != self.file.segment_start + 1:
            tail.transaction.has_content = True
        if tail is not None and tail.kind is FragmentKind.PREPARED and tail.transaction.damage is not None:
            self.add_prepared(tail.transaction)  # its Prepare is among the unreadable bytes
        elif tail is not None and tail.kind is not FragmentKind.SEGMENT:
            self.cut_off_tail()
        self.tail = None

    def commit_stream(self, message: messages.StreamCommit, row: ControlRow) -> OpenTransaction | None:
        """The transaction to commit; None if it was sent before, or if its beginning is unreadable."""
        stream = self.streams.pop(message.xid, None)
        if stream is None:
            if not self.is_resent(row.epoch, message.commit_lsn) and not self.was_damaged:
                raise SequenceError(
                    f"message {row.ordinal}: Stream Commit at {format_lsn(message.commit_lsn)} of transaction "
                    f"{message.xid}, which is not whole in the archive: an earlier file is missing"
                )
            return None
        self._end_stream(stream, "Stream Commit", row)
        return stream

    def abort_streams(self, aborts: StreamAborts) -> None:
        """Each abort drops its transaction, or the changes of one of its subtransactions.

        PostgreSQL 18 also sends Stream Abort for transactions that it never streamed.
        """
        for xid in np.unique(aborts.xids).tolist():
            stream = self.streams.get(xid)
            if stream is None:
                continue
            subxids = aborts.subxids[aborts.xids == xid]
            is_whole = subxids == xid
            stream.aborted_subxids.extend(subxids[~is_whole].tolist())
            self.relations.definitions.abort(xid, subxids[~is_whole].tolist())
            if is_whole.any():
                del self.streams[xid]
                self.end(TransactionStatus.ABORTED, stream)

    def prepare_stream(self, message: messages.StreamPrepare, row: ControlRow) -> None:
        stream = self.streams.pop(message.xid, None)
        if stream is None and self.was_damaged:
            return
        if stream is None:
            raise SequenceError(
                f"message {row.ordinal}: Stream Prepare of transaction {message.xid}, which is not whole: "
                "an earlier file is missing"
            )
        self._end_stream(stream, "Stream Prepare", row)
        stream.gid = message.gid
        self.add_prepared(stream)

    def begin_prepare(self, message: messages.BeginPrepare, row: ControlRow) -> None:
        streamed = self.streams.pop(message.xid, None)
        if streamed is not None:  # after a new connection, the server sends it in one piece
            self.end(TransactionStatus.RESENT, streamed)
        self.relations.definitions.end(message.xid, False, None)  # from an earlier sending
        fragments = [(self.file.number, row.fragment)]
        transaction = OpenTransaction(message.xid, fragments, gid=message.gid, lsn=message.prepare_lsn)
        self.file.owners[row.fragment] = transaction
        self.tail = OpenAtEnd(FragmentKind.PREPARED, transaction)

    def prepare(self, message: messages.Prepare, row: ControlRow) -> None:
        """If there was no Begin Prepare, the transaction is empty: PostgreSQL 18 sends a lone Prepare for one that has
        an xid and nothing to decode, earlier versions for one that is rolled back while it is being decoded."""
        tail, file = self.tail, self.file
        begun = tail.transaction if tail is not None and tail.kind is FragmentKind.PREPARED else None
        if row.fragment in file.orphans:
            damage, fragments = beginning_unreadable(file.number), [(file.number, row.fragment)]
            begun = OpenTransaction(message.xid, fragments, gid=message.gid, damage=damage)
            file.owners[row.fragment] = begun
        if begun is not None and (begun.xid, begun.gid) == (message.xid, message.gid):
            self.tail = None
            self.add_prepared(begun)
        elif row.fragment == NO_FRAGMENT or (row.fragment == HEAD and not file.head_has_changes):
            self.cut_off_tail()
            self.empty_prepared.add(message.gid)
        else:
            raise SequenceError(
                f"message {row.ordinal}: Prepare of transaction {message.xid} ends what another one's Begin Prepare "
                "began: a file between them is missing"
            )

    def commit_prepared(self, message: messages.CommitPrepared, row: ControlRow) -> OpenTransaction | None:
        """The transaction to commit; None if its Prepare is not in the archive.

        Before PostgreSQL 18, the server doesn't send empty transactions, so there is nothing to commit. A Prepare in a
        missing file looks the same.
        """
        transaction = self._pop_prepared(message.xid, message.gid)
        is_new = not self.is_resent(row.epoch, message.commit_lsn)
        if transaction is not None:
            return transaction
        if is_new and message.gid in self.cut_off_gids:
            raise SequenceError(
                f"message {row.ordinal}: Commit Prepared of transaction {message.xid}, which was cut off before its "
                "Prepare: a file is missing"
            )
        if message.gid in self.empty_prepared:
            self.empty_prepared.discard(message.gid)
        elif is_new:
            self.unknown_prepared.append(UnknownPrepared(message.xid, message.gid, message.commit_lsn))
        return None

    def rollback_prepared(self, message: messages.RollbackPrepared) -> None:
        transaction = self._pop_prepared(message.xid, message.gid)
        self.cut_off_gids.discard(message.gid)
        self.empty_prepared.discard(message.gid)
        if transaction is not None:
            self.end(TransactionStatus.ABORTED, transaction)

    def _pop_prepared(self, xid: int, gid: str) -> OpenTransaction | None:
        transaction = self.prepared.get(xid)
        if transaction is None or transaction.gid != gid:
            return None
        return self.prepared.pop(xid)

    def _end_stream(self, stream: OpenTransaction, message: str, row: ControlRow) -> None:
        """From Stream Commit or Stream Prepare on, the stream's Relation messages apply to all transactions."""
        stream.check_not_cut_off(message, row)
        assert stream.scope is not None
        self.relations.promote(stream.scope, (self.file.number, row.ordinal))

    def to_state(self) -> dict[str, Any]:
        tail = self.tail
        return {
            "next_scope": self.next_scope,
            "streams": [stream.to_state() for stream in self.streams.values()],
            "prepared": [transaction.to_state() for transaction in self.prepared.values()],
            "tail": None if tail is None else {"kind": tail.kind.value, "of": tail.transaction.to_state()},
            "cut_off_lsn": self.cut_off_lsn,
            "cut_off_gids": sorted(self.cut_off_gids),
            "empty_prepared": sorted(self.empty_prepared),
            "was_damaged": self.was_damaged,
            "catalog_numbers": self.catalog_numbers.to_state(),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any], relations: RelationHistory) -> OpenTransactions:
        streams = [OpenTransaction.from_state(stream) for stream in state["streams"]]
        prepared = [OpenTransaction.from_state(transaction) for transaction in state["prepared"]]
        transactions = cls(
            relations,
            state["next_scope"],
            {stream.xid: stream for stream in streams if stream.xid is not None},
            {transaction.xid: transaction for transaction in prepared if transaction.xid is not None},
            cut_off_lsn=state["cut_off_lsn"],
            cut_off_gids=set(state["cut_off_gids"]),
            empty_prepared=set(state.get("empty_prepared", ())),  # missing in early ledgers
            was_damaged=state["was_damaged"],
            catalog_numbers=CatalogNumbers.from_state(state.get("catalog_numbers")),  # missing in early ledgers, too
        )
        if state["tail"] is not None:
            kind = FragmentKind(state["tail"]["kind"])
            transaction = OpenTransaction.from_state(state["tail"]["of"])
            if kind is FragmentKind.SEGMENT and transaction.xid is not None:
                transaction = transactions.streams[transaction.xid]  # the same object, not a copy
            transactions.tail = OpenAtEnd(kind, transaction)
        return transactions


def beginning_unreadable(file: int) -> str:
    return f"file {file}: the beginning of the transaction can't be read"
