"""What scanning a file brings forth: a row per message that matters beyond the message itself, and a summary."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

import pyarrow as pa

HEAD = 0
NO_UNIT = -1
CHANGE_TAGS = ("I", "U", "D", "T")
SUMMARY_TAG = "file"
ERROR_TAG = "error"

MESSAGE_SCHEMA = pa.schema(
    [
        ("file", pa.int64()),  # the file's number in the ledger
        ("ordinal", pa.int64()),  # the message's number within the file
        ("offset", pa.int64()),  # of its frame, in the decompressed file
        ("lsn", pa.int64()),  # where the framing has it
        ("tag", pa.string()),  # pgoutput's message type, or SUMMARY_TAG, ERROR_TAG
        ("unit", pa.int32()),  # the unit's number within the file; HEAD, NO_UNIT
        ("stretch", pa.int32()),
        ("xid", pa.int64()),  # the (sub)transaction's, inside a stream segment
        ("relation", pa.int64()),  # OID
        ("old_kind", pa.string()),  # K or O
        ("old", pa.binary()),  # TupleData as on the wire
        ("new", pa.binary()),
        ("unchanged", pa.list_(pa.int16())),  # positions of unchanged TOAST in new; NULL if none
        ("body", pa.binary()),  # control messages: the message; SUMMARY_TAG, ERROR_TAG: JSON
        ("commit_lsn", pa.int64()),  # from Begin: ordinary transactions that begin in this file
        ("commit_ts", pa.int64()),  # microseconds since 2000-01-01 UTC
        ("top_xid", pa.int64()),
        ("changes", pa.int64()),  # on a Commit: how many changes its unit has
    ]
)


class UnitKind(Enum):
    """What a unit was begun by."""

    HEAD = "head"
    TRANSACTION = "B"
    PREPARED = "b"
    SEGMENT = "S"


class Begins(Enum):
    """What a file can tell of its own beginning."""

    OUTSIDE = "outside"  # its head is not in a stream segment
    INSIDE = "inside"  # its head is in a stream segment
    EITHER = "either"  # nothing in its head has to be told apart, or it has none


@dataclass(frozen=True, slots=True)
class OpenUnit:
    """The unit that a file ends in. commit_lsn and commit_ts only for an ordinary transaction."""

    unit: int
    kind: str
    xid: int | None
    commit_lsn: int | None
    commit_ts: int | None


@dataclass(slots=True)
class FileScan:
    """What the driver needs to know of a file beside its control messages."""

    file: int
    framing: str
    size: int  # bytes, decompressed
    begins: str
    messages: dict[str, int] = field(default_factory=dict)  # tag -> count
    head_ended: bool = False
    interrupted: list[int] = field(default_factory=list)  # ordinary units cut off by another beginning
    open_unit: OpenUnit | None = None
    stretches: list[tuple[int, int] | None] = field(default_factory=lambda: [None])  # first and last commit LSN
    first_lsn: int | None = None  # of the frames
    last_lsn: int | None = None

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, text: bytes) -> FileScan:
        fields: dict[str, Any] = json.loads(text)
        if fields["open_unit"] is not None:
            fields["open_unit"] = OpenUnit(**fields["open_unit"])
        fields["stretches"] = [None if s is None else (s[0], s[1]) for s in fields["stretches"]]
        return cls(**fields)


def note(file: int, tag: str, body: bytes) -> pa.RecordBatch:
    """A row about a file rather than a message: its summary, or why it could not be read (then the only one)."""
    return pa.RecordBatch.from_pylist([{"file": file, "tag": tag, "body": body}], MESSAGE_SCHEMA)
