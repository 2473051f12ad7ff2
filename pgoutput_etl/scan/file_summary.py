"""The summary of a scanned file: open transactions, damage, and how the file begins and ends."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any


class FragmentKind(Enum):
    """What began a fragment: an earlier file, Begin, Begin Prepare, or Stream Start."""

    HEAD = "head"
    TRANSACTION = "transaction"
    PREPARED = "prepared"
    SEGMENT = "segment"


class FileBeginning(Enum):
    """A file's beginning: inside or outside of a stream segment, as far as the file itself shows."""

    OUTSIDE = "outside"
    INSIDE = "inside"
    EITHER = "either"  # nothing in the head depends on it, or the file has no head


@dataclass(slots=True)
class Fragment:
    """Messages of one transaction in a file. commit_lsn, commit_ts, origin: only of an ordinary transaction that begins
    here. changes: number of changes. epoch: in which it ended, or was cut off. next_lsn: if it was cut off by another
    beginning, the LSN of the first commit after it.
    """

    number: int
    kind: FragmentKind
    xid: int | None = None
    commit_lsn: int | None = None
    commit_ts: int | None = None
    changes: int = 0
    is_damaged: bool = False
    origin: str | None = None
    origin_lsn: int | None = None
    epoch: int = 0
    next_lsn: int | None = None

    def begin_fields(self) -> dict[str, int | str | None]:
        """The columns that Begin and Origin set in every row of their transaction."""
        if self.kind is not FragmentKind.TRANSACTION:
            return {}
        begin = {"commit_lsn": self.commit_lsn, "commit_ts": self.commit_ts, "top_xid": self.xid}
        return {**begin, "origin": self.origin}


@dataclass(frozen=True, slots=True)
class Damage:
    """`size` unreadable bytes from `offset` on, in fragment `fragment` (NO_FRAGMENT: between fragments).

    cut_short: they are the first part of a message. begins_anew: the next message begins or ends a transaction
    regardless of the open one, or there is no next message. oids: the values in them that may be a relation's OID; None
    if they may be more than one message. may_hold_rows: False if they can only have been a control message.
    """

    fragment: int
    ordinal: int  # of the next message
    offset: int
    size: int
    commit_lsn: int  # of the last commit before them in this file; 0 if none
    reason: str
    cut_short: bool
    begins_anew: bool
    may_hold_rows: bool
    oids: tuple[int, ...] | None

    @property
    def is_torn(self) -> bool:
        """True if a receiver died while writing these bytes; the server will then send their transaction again."""
        return self.cut_short and self.begins_anew


@dataclass(slots=True)
class FileScan:
    """The facts that the driver needs about a file, in addition to its control messages."""

    file: int
    framing: str
    size: int  # bytes, decompressed
    begins: FileBeginning
    messages: dict[str, int] = field(default_factory=dict)  # tag -> count
    changes: dict[int, int] = field(default_factory=dict)  # relation's OID -> change rows
    roots: dict[int, int] = field(default_factory=dict)  # as in partition_roots
    xids: tuple[int, int] | None = None  # oldest and newest xid of the ordinary transactions that begin and end here
    head_ended: bool = False
    head_prepared: bool = False  # the head has no changes and ends with a Prepare, perhaps that of an empty transaction
    # The head has Messages that belong, or may belong, to the transaction that is open at its beginning.
    head_needs_owner: bool = False
    head_may_have_owner: bool = False
    interrupted: list[Fragment] = field(default_factory=list)  # ordinary fragments that another beginning cut off
    damages: list[Damage] = field(default_factory=list)
    damaged: list[Fragment] = field(default_factory=list)  # ordinary fragments with damage that were committed here
    orphans: list[int] = field(default_factory=list)  # fragments whose beginning is unreadable
    open_fragment: Fragment | None = None  # the fragment that the file ends in
    epochs: list[tuple[int, int] | None] = field(default_factory=lambda: [None])  # first and last commit LSN
    first_lsn: int | None = None  # of the frames
    last_lsn: int | None = None
    offset: int = 0  # of the first byte read; earlier parts of the file had the bytes before it
    consumed: int = 0  # the end of the part: after its last whole message
    prefix_hash: str | None = None  # of content[:consumed]
    begins_in_stream: bool | None = None  # None: not known before the scan
    varied: bool = False  # not all messages are equal
    same_as: int | None = None  # the part that this file continues
    resembles: int | None = None  # a part that this file may continue
    tail: str | None = None  # why the remaining bytes are not a whole message yet
    tail_hash: str | None = None  # of the whole content, if it has a tail
    heads: list[str] = field(default_factory=list)  # keys to look up known contents that it may begin with
    unkeyed: list[int] = field(default_factory=list)  # known contents without heads that the file begins with
    fits: str | None = None  # a framing that has messages, if the configured one has none
    remark: str | None = None

    @property
    def commits(self) -> tuple[int | None, int | None]:
        """The lowest and highest LSN of a commit."""
        epochs = [epoch for epoch in self.epochs if epoch is not None]
        return min((first for first, _ in epochs), default=None), max((last for _, last in epochs), default=None)

    @property
    def ends_in_stream(self) -> bool | None:
        """True if a part that continues this one begins inside a stream segment; None if unknown."""
        if self.open_fragment is None:
            return False
        if self.open_fragment.kind is not FragmentKind.HEAD:
            return self.open_fragment.kind is FragmentKind.SEGMENT
        if self.begins is FileBeginning.EITHER:
            return self.begins_in_stream
        return self.begins is FileBeginning.INSIDE

    def to_json(self) -> bytes:
        """The fields that differ from their defaults."""
        values = ((name, getattr(self, name)) for name in self.__slots__)
        said = {name: value for name, value in values if name not in _DEFAULTS or value != _DEFAULTS[name]}
        return json.dumps(said, default=_json_value).encode()

    @classmethod
    def from_json(cls, text: bytes) -> FileScan:
        scan: FileScan = _adapter().validate_json(text)
        return scan


_REQUIRED = (0, "", 0, FileBeginning.EITHER)

_DEFAULTS = {name: getattr(FileScan(*_REQUIRED), name) for name in FileScan.__slots__[len(_REQUIRED) :]}


def _json_value(part: Any) -> Any:
    return part.value if isinstance(part, Enum) else {name: getattr(part, name) for name in part.__slots__}


@cache
def _adapter() -> Any:
    from pydantic import TypeAdapter  # only on the driver: executors' workers start faster without it

    return TypeAdapter(FileScan)
