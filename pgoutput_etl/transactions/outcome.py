"""What assembly is asked and what it answers: control messages of files in, fates of transactions out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.scan.message_row import DAMAGE_TAG, ERROR_TAG, HEAD, LOGICAL_TAG, SUMMARY_TAG

Xids = npt.NDArray[np.int64]

FragmentId = tuple[int, int]  # (file's number, unit's number within the file)


class TransactionStatus(Enum):
    """What became of a transaction, or of one sending of it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    RESENT = "resent"  # the archive has it more than once, and another sending counts
    QUARANTINED = "quarantined"  # it was committed, but a part of it can't be read
    OPEN = "open"  # its end is not in the archive yet
    REFUSED = "refused"  # it was committed, but the configuration refuses its origin


TRIMMED = "trimmed"  # the fate of a row of the ledger that is no transaction, but stands for those that are gone


# What became of bytes, by the fate of what they are a part of. "applied" is all that is done with: what was committed,
# what the configuration skips, and what is about no transaction.
ACCOUNTS = {
    TransactionStatus.COMMITTED.value: "applied",
    TransactionStatus.OPEN.value: "waiting",
    TransactionStatus.ABORTED.value: "aborted",
    TransactionStatus.QUARANTINED.value: "quarantined",
    TransactionStatus.RESENT.value: "resent",
    TransactionStatus.REFUSED.value: "refused",
}


def summed_accounts(accounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Bytes of all files together, of each of ACCOUNTS."""
    listed = list(accounts)
    return {name: sum(of_file.get(name, 0) for of_file in listed) for name in ACCOUNTS.values()}


@dataclass(frozen=True, slots=True)
class Outcome:
    """One transaction's fate: of all changes in its units, but for those of aborted subtransactions.

    commit_lsn and commit_ts (microseconds since 2000-01-01 UTC) are None unless its commit was seen. Of one that is
    quarantined: `reason`, and the relations that what can't be read may be about beside those of its rows (None: any).
    origin, origin_lsn: where it came from, if it says so, and its commit's LSN there.
    """

    status: TransactionStatus
    xid: int | None
    fragments: tuple[FragmentId, ...]
    gid: str | None = None
    scope: int | None = None  # of its Relation messages, if it was streamed
    commit_lsn: int | None = None
    commit_ts: int | None = None
    aborted_subxids: Sequence[int] = ()
    reason: str | None = None
    unreadable_relations: frozenset[int] | None = frozenset()
    origin: str | None = None
    origin_lsn: int | None = None


@dataclass(frozen=True, slots=True)
class UnreadableRange:
    """What can't be read between transactions: nothing committed at `lsn` or later can be relied on in these
    relations (None: in any)."""

    lsn: int
    relations: frozenset[int] | None
    reason: str


@dataclass(frozen=True, slots=True)
class UnknownPrepared:
    """A Commit Prepared of a transaction whose Prepare the archive has not: it was empty, or a file is missing."""

    xid: int
    gid: str
    commit_lsn: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """Of the ordinary transactions of this stretch, those with a commit LSN up to `lsn` are resent."""

    file: int
    epoch: int
    lsn: int


@dataclass(frozen=True, slots=True)
class ControlRow:
    """A control message of one file."""

    ordinal: int
    fragment: int
    epoch: int
    in_stream: bool
    body: bytes


@dataclass(frozen=True, slots=True)
class StreamAborts:
    """Stream Aborts of one file with no other control message between them: top-level xids, and those of what was
    aborted, as arrays that go along with each other. A night may have a million of them."""

    ordinal: int
    xids: Xids
    subxids: Xids


Control = ControlRow | StreamAborts

CONTROL_COLUMNS = ("ordinal", "unit", "stretch", "xid", "tag", "body")

_NO_CONTROL_TAGS = (SUMMARY_TAG, ERROR_TAG, DAMAGE_TAG, LOGICAL_TAG)


def control_rows(batches: Iterable[pa.RecordBatch]) -> list[Control]:
    """The control messages among one file's message rows, in order: what `Assembly` asks of a file. `batches`: with the
    columns CONTROL_COLUMNS at least."""
    return [control for batch in batches for control in _controls(batch)]


def _controls(batch: pa.RecordBatch) -> Iterator[Control]:
    tag = batch.column("tag")
    is_other = pc.or_(pc.is_null(batch.column("body")), pc.is_in(tag, pa.array(_NO_CONTROL_TAGS)))
    is_other = pc.or_(is_other, pc.and_(pc.equal(tag, "C"), pc.not_equal(batch.column("unit"), HEAD)))
    rows = batch.filter(pc.invert(is_other)).select(list(CONTROL_COLUMNS))
    is_abort = pc.equal(rows.column("tag"), "A").to_numpy(zero_copy_only=False)
    ends = [*(np.flatnonzero(np.diff(is_abort)) + 1).tolist(), rows.num_rows] if rows.num_rows else []
    begin = 0
    for end in ends:
        run = rows.slice(begin, end - begin)
        if is_abort[begin]:
            bodies = run.column("body")
            yield StreamAborts(run.column("ordinal")[0].as_py(), _uint32(bodies, 1), _uint32(bodies, 5))
        else:
            for row in run.to_pylist():
                yield ControlRow(row["ordinal"], row["unit"], row["stretch"], row["xid"] is not None, row["body"])
        begin = end


def _uint32(bodies: pa.Array, at: int) -> Xids:
    """The Int32 at that place of each message, without a sign."""
    four = pc.binary_slice(bodies, at, at + 4)
    data = four.buffers()[2]
    first = np.frombuffer(four.buffers()[1], np.int32)[four.offset]
    return np.frombuffer(data, ">u4", len(four), int(first)).astype(np.int64)
