"""What assembly is asked and what it answers: control messages of files in, fates of transactions out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pgoutput_etl.message_rows import HEAD, SUMMARY_TAG

UnitId = tuple[int, int]  # (file's number, unit's number within the file)


class Fate(Enum):
    """What became of a transaction, or of one sending of it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    RESENT = "resent"  # the archive has it more than once, and another sending counts
    OPEN = "open"  # its end is not in the archive yet


@dataclass(frozen=True, slots=True)
class Outcome:
    """One transaction's fate: of all changes in its units, but for those of aborted subtransactions.

    commit_lsn and commit_ts (microseconds since 2000-01-01 UTC) are None unless its commit was seen.
    """

    fate: Fate
    xid: int | None
    units: tuple[UnitId, ...]
    gid: str | None = None
    scope: int | None = None  # of its Relation messages, if it was streamed
    commit_lsn: int | None = None
    commit_ts: int | None = None
    aborted_subxids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Watermark:
    """Of the ordinary transactions of this stretch, those with a commit LSN up to `lsn` are resent."""

    file: int
    stretch: int
    lsn: int


@dataclass(frozen=True, slots=True)
class ControlRow:
    """A control message of one file."""

    ordinal: int
    unit: int
    stretch: int
    in_stream: bool
    body: bytes
    commit_lsn: int | None = None  # what Begin said, in an ordinary transaction that begins in this file


def control_rows(rows: Iterable[Mapping[str, Any]]) -> list[ControlRow]:
    """The control messages among message rows: what `Assembly` asks of a file."""
    return [
        ControlRow(row["ordinal"], row["unit"], row["stretch"], row["xid"] is not None, row["body"], row["commit_lsn"])
        for row in rows
        if row["body"] is not None and row["tag"] != SUMMARY_TAG and not (row["tag"] == "C" and row["unit"] != HEAD)
    ]
