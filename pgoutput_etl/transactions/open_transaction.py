"""A transaction whose end has not been read yet, and how one file ends within it."""

from __future__ import annotations

from array import array
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from pgoutput_etl.protocol.messages import (
    Origin,
)
from pgoutput_etl.scan.file_summary import Damage, FileScan
from pgoutput_etl.scan.fragment import stored_origin_lsn
from pgoutput_etl.transactions.outcome import (
    FragmentId,
    Outcome,
    TransactionStatus,
)

_XID = "Q"  # as `array` has it


# The ledger's names of two fields: they are a format, and outlive names in code.
_STORED_NAMES = {"fragments": "units", "unreadable_relations": "lost"}

_FIELDS = {stored: name for name, stored in _STORED_NAMES.items()}


def _no_xids() -> array[int]:
    return array(_XID)


@dataclass(slots=True)
class OpenTransaction:
    """A transaction whose end has not come. lsn is what Begin or Begin Prepare announced."""

    xid: int | None
    fragments: list[FragmentId]
    scope: int | None = None
    aborted_subxids: array[int] = field(default_factory=_no_xids)
    gid: str | None = None
    lsn: int | None = None
    cut_off: bool = False  # within a segment
    damage: str | None = None  # what of it can't be read, and why
    unreadable_relations: list[int] | None = field(default_factory=list)  # relations that this may be about; None: any
    origin: str | None = None
    origin_lsn: int | None = None

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> OpenTransaction:
        values = {_FIELDS.get(name, name): value for name, value in state.items()}
        values["fragments"] = [(file, fragment) for file, fragment in state["units"]]
        return cls(**{**values, "aborted_subxids": array(_XID, state.get("aborted_subxids", ()))})

    def to_state(self) -> dict[str, Any]:
        """The transaction as JSON, under the names that the ledger stores."""
        values = {_STORED_NAMES.get(name, name): value for name, value in asdict(self).items()}
        return {**values, "aborted_subxids": list(self.aborted_subxids)}

    def record_damage(self, damage: str, lost: frozenset[int] | None) -> None:
        self.damage = self.damage or damage
        self.unreadable_relations = (
            None if lost is None or self.unreadable_relations is None else sorted({*self.unreadable_relations, *lost})
        )

    def record_origin(self, message: Origin) -> None:
        if self.origin is None:
            self.origin, self.origin_lsn = message.name, stored_origin_lsn(message.commit_lsn)


class OpenAtEndKind(Enum):
    TRANSACTION = "transaction"
    PREPARED = "prepared"
    SEGMENT = "segment"


@dataclass(slots=True)
class OpenAtEnd:
    """What is open between two files: a transaction to go on with, or the segment of the stream `of.xid`."""

    kind: OpenAtEndKind
    transaction: OpenTransaction


@dataclass(slots=True)
class FileState:
    """What matters only while one file is taken."""

    number: int
    watermarks: list[int]  # per stretch
    begins_in_stream: bool = False
    head_has_changes: bool = False
    segments: dict[int, OpenTransaction] = field(default_factory=dict)  # unit -> the transaction it is a part of
    # of segments and prepared transactions, and the head's
    owners: dict[int, OpenTransaction] = field(default_factory=dict)
    orphans: list[int] = field(default_factory=list)


def describe_transaction(scan: FileScan, damage: Damage) -> str:
    """With the file's number, which the caller knows the path of."""
    return f"file {scan.file}, offset {damage.offset}: {damage.reason}"


def transaction_without_beginning(file: int) -> str:
    return f"file {file}: the beginning of the transaction can't be read"


def outcome_of(
    status: TransactionStatus, transaction: OpenTransaction, lsn: int | None = None, time: int | None = None
) -> Outcome:
    return Outcome(
        status,
        transaction.xid,
        tuple(transaction.fragments),
        transaction.gid,
        transaction.scope,
        lsn,
        time,
        transaction.aborted_subxids,
        transaction.damage,
        None if transaction.unreadable_relations is None else frozenset(transaction.unreadable_relations),
        transaction.origin,
        transaction.origin_lsn,
    )
