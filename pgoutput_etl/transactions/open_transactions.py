"""The state of transactions whose end has not been read yet."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from pgoutput_etl.protocol.messages import Origin
from pgoutput_etl.scan.fragment import stored_origin_lsn
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.transactions.outcome import (
    FragmentId,
    Outcome,
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
    was streamed, and all of its segments were empty."""

    xid: int | None
    fragments: list[FragmentId]
    scope: int | None = None
    aborted_subxids: array[int] = field(default_factory=lambda: array(_XID))
    gid: str | None = None
    lsn: int | None = None
    cut_off: bool = False  # within a segment
    damage: str | None = None  # the first unreadable part, and why it is unreadable
    unreadable_relations: list[int] | None = field(default_factory=list)  # may be in the unreadable parts; None: any
    origin: str | None = None
    origin_lsn: int | None = None
    has_content: bool = True

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> OpenTransaction:
        values = {_FIELDS.get(name, name): value for name, value in state.items()}
        values["fragments"] = [(file, fragment) for file, fragment in state["units"]]
        return cls(**{**values, "aborted_subxids": array(_XID, state.get("aborted_subxids", ()))})

    def to_state(self) -> dict[str, Any]:
        """The transaction as JSON, under the names that the ledger stores."""
        values = {_STORED_NAMES.get(name, name): value for name, value in asdict(self).items()}
        return {**values, "aborted_subxids": list(self.aborted_subxids)}

    def record_damage(self, damage: str, relations: frozenset[int] | None) -> None:
        self.damage = self.damage or damage
        if relations is None or self.unreadable_relations is None:
            self.unreadable_relations = None
        else:
            self.unreadable_relations = sorted({*self.unreadable_relations, *relations})

    def record_origin(self, message: Origin) -> None:
        if self.origin is None:
            self.origin, self.origin_lsn = message.name, stored_origin_lsn(message.commit_lsn)

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


class OpenAtEndKind(Enum):
    TRANSACTION = "transaction"
    PREPARED = "prepared"
    SEGMENT = "segment"


@dataclass(slots=True)
class OpenAtEnd:
    """The fragment that is open between two files: of an ordinary, prepared or streamed transaction."""

    kind: OpenAtEndKind
    transaction: OpenTransaction


@dataclass(slots=True)
class FileState:
    """State that lasts for one file. segments, owners: transactions by fragment. segment_start: the ordinal of the last
    Stream Start; -1 if the file begins inside a segment. roots: as in scan/partition_roots.py."""

    number: int
    watermarks: list[int]  # by epoch
    begins_in_stream: bool = False
    segment_start: int = -1
    head_has_changes: bool = False
    segments: dict[int, OpenTransaction] = field(default_factory=dict)
    owners: dict[int, OpenTransaction] = field(default_factory=dict)  # of segments, prepared transactions and the head
    orphans: list[int] = field(default_factory=list)
    roots: Mapping[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class OpenTransactions:
    """The open transactions of an archive, and the outcomes of those that have ended.

    Shared by `Assembly` and the handlers in `streams` and `damage`. `to_state` is the part that the ledger stores.
    """

    relations: RelationHistory
    next_scope: int = 1
    streams: dict[int, OpenTransaction] = field(default_factory=dict)  # by xid
    prepared: dict[int, OpenTransaction] = field(default_factory=dict)  # by xid
    tail: OpenAtEnd | None = None
    # Cut off, so the server must send them again: the commit LSN of an ordinary transaction, gids of prepared ones.
    cut_off_lsn: int | None = None
    cut_off_gids: set[str] = field(default_factory=set)
    empty_prepared: set[str] = field(default_factory=set)  # gids of transactions prepared without anything to decode
    was_damaged: bool = False  # a message that seems to be missing may be among unreadable bytes
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
        self.outcomes.append(transaction.outcome(status, lsn, time))

    def add_prepared(self, transaction: OpenTransaction) -> None:
        assert transaction.xid is not None
        self.cut_off_gids.discard(transaction.gid or "")
        earlier = self.prepared.pop(transaction.xid, None)
        if earlier is not None:
            self.end(TransactionStatus.RESENT, earlier)
        self.prepared[transaction.xid] = transaction

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
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], relations: RelationHistory) -> OpenTransactions:
        streams = [OpenTransaction.from_state(stream) for stream in state["streams"]]
        prepared = [OpenTransaction.from_state(transaction) for transaction in state["prepared"]]
        transactions = cls(
            relations,
            state["next_scope"],
            {stream.xid: stream for stream in streams if stream.xid is not None},
            {transaction.xid: transaction for transaction in prepared if transaction.xid is not None},
            cut_off_lsn=state["cut_off_lsn"],
            cut_off_gids=set(state["cut_off_gids"]),
            empty_prepared=set(state.get("empty_prepared", ())),  # absent from early ledgers
            was_damaged=state["was_damaged"],
        )
        if state["tail"] is not None:
            kind = OpenAtEndKind(state["tail"]["kind"])
            transaction = OpenTransaction.from_state(state["tail"]["of"])
            if kind is OpenAtEndKind.SEGMENT and transaction.xid is not None:
                transaction = transactions.streams[transaction.xid]  # the same object, not a copy
            transactions.tail = OpenAtEnd(kind, transaction)
        return transactions


def beginning_unreadable(file: int) -> str:
    return f"file {file}: the beginning of the transaction can't be read"
