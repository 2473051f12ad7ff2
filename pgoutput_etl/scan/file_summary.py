"""The summary of one scanned file: open transactions, damage, and how the file begins and ends."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any


class FragmentKind(Enum):
    """What a unit was begun by."""

    HEAD = "head"
    TRANSACTION = "B"
    PREPARED = "b"
    SEGMENT = "S"


class FileBeginning(Enum):
    """What a file can tell of its own beginning."""

    OUTSIDE = "outside"  # its head is not in a stream segment
    INSIDE = "inside"  # its head is in a stream segment
    EITHER = "either"  # nothing in its head has to be told apart, or it has none


@dataclass(frozen=True, slots=True)
class OpenFragment:
    """The unit that a file ends in. commit_lsn, commit_ts and origin only for an ordinary transaction."""

    fragment: int
    kind: str
    xid: int | None
    commit_lsn: int | None
    commit_ts: int | None
    is_damaged: bool = False
    epoch: int = 0
    origin: str | None = None
    origin_lsn: int | None = None


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that can't be read: `size` of them from `offset` on, in the file's unit `unit` (NO_UNIT: between units).

    cut_short: they are the first part of a message. begins_anew: what follows them begins or ends a transaction
    regardless of what was open, or nothing does. oids: what may be a relation's OID in them; None if there is more
    to them than one message.
    may_hold_rows: False for what can only have been a control message.
    """

    fragment: int
    ordinal: int  # of the message behind
    offset: int
    size: int
    lsn: int | None  # of the last frame before, where the framing has it
    commit_lsn: int  # of the last commit before, in this file; 0 if there is none
    reason: str
    cut_short: bool
    begins_anew: bool
    may_hold_rows: bool
    oids: tuple[int, ...] | None

    def reaches(self, end: int) -> bool:
        return self.offset + self.size == end

    @property
    def is_torn(self) -> bool:
        """As a receiver leaves it that died while it wrote: the server sends this, and what it belongs to, again."""
        return self.cut_short and self.begins_anew


@dataclass(frozen=True, slots=True)
class InterruptedFragment:
    """An ordinary transaction's unit that another beginning cut off; next_lsn: of the first commit behind it."""

    fragment: int
    epoch: int
    xid: int | None
    commit_lsn: int | None
    next_lsn: int | None = None


@dataclass(slots=True)
class FileScan:
    """What the driver needs to know of a file beside its control messages."""

    file: int
    framing: str
    size: int  # bytes, decompressed
    begins: str
    messages: dict[str, int] = field(default_factory=dict)  # tag -> count
    changes: dict[int, int] = field(default_factory=dict)  # relation's OID -> change rows
    xids: tuple[int, int] | None = None  # oldest and newest, of ordinary transactions that begin and end here
    head_ended: bool = False
    head_prepared: bool = False  # it ends with a Prepare and has no changes: that may be an empty transaction's
    # The head has Messages that are, or may be, of the transaction that is open at its beginning.
    head_needs_owner: bool = False
    head_may_have_owner: bool = False
    interrupted: list[InterruptedFragment] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    damaged: list[OpenFragment] = field(default_factory=list)  # ordinary units with damage that were committed here
    orphans: list[int] = field(default_factory=list)  # units whose beginning is in bytes that can't be read
    open_fragment: OpenFragment | None = None
    epochs: list[tuple[int, int] | None] = field(default_factory=lambda: [None])  # first and last commit LSN
    first_lsn: int | None = None  # of the frames
    last_lsn: int | None = None
    offset: int = 0  # of the first byte that was read: what is before it was read from an earlier part
    consumed: int = 0  # where the part ends: behind its last whole message
    prefix_hash: str | None = None  # of content[:consumed]
    begins_in_stream: bool | None = None  # None: it was not known
    varied: bool = False  # not all its messages are the same
    same_as: int | None = None  # the part that this file goes on from
    resembles: int | None = None  # a part that this file may go on from
    tail: str | None = None  # why what follows is not a whole message yet
    tail_hash: str | None = None  # of all bytes of the file, if there is a tail
    heads: list[str] = field(default_factory=list)  # to look up by what the file may begin with
    unkeyed: list[int] = field(default_factory=list)  # parts that it begins with, and that have no heads
    fits: str | None = None  # another framing that has messages where the configured one has none
    remark: str | None = None

    @property
    def ends_in_stream(self) -> bool | None:
        """Whether a part that goes on from this one begins inside a stream segment. None: that can't be told."""
        if self.open_fragment is None:
            return False
        if self.open_fragment.kind != FragmentKind.HEAD.value:
            return self.open_fragment.kind == FragmentKind.SEGMENT.value
        if self.begins == FileBeginning.EITHER.value:
            return self.begins_in_stream
        return self.begins == FileBeginning.INSIDE.value

    def to_json(self) -> bytes:
        return json.dumps({name: getattr(self, name) for name in self.__slots__}, default=asdict).encode()

    @classmethod
    def from_json(cls, text: bytes) -> FileScan:
        fields: dict[str, Any] = json.loads(text)
        if fields["open_fragment"] is not None:
            fields["open_fragment"] = OpenFragment(**fields["open_fragment"])
        fields["xids"] = None if fields["xids"] is None else (fields["xids"][0], fields["xids"][1])
        fields["interrupted"] = [InterruptedFragment(**each) for each in fields["interrupted"]]
        fields["damages"] = [Damage(**{**each, "oids": _tuple(each["oids"])}) for each in fields["damages"]]
        fields["damaged"] = [OpenFragment(**each) for each in fields["damaged"]]
        fields["changes"] = {int(oid): count for oid, count in fields["changes"].items()}
        fields["epochs"] = [None if s is None else (s[0], s[1]) for s in fields["epochs"]]
        return cls(**fields)


def _tuple(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)
