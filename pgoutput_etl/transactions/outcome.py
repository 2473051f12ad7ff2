"""Input and output of assembly: control messages, and the outcomes of transactions."""

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

FragmentId = tuple[int, int]  # (number of the file, number of the fragment within it)


class TransactionStatus(Enum):
    """The status of a transaction, or of a single sending of it."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    RESENT = "resent"  # in the archive more than once, and another sending counts
    QUARANTINED = "quarantined"  # committed, but partly unreadable
    OPEN = "open"  # its end is not in the archive yet
    REFUSED = "refused"  # committed, but the configuration refuses its origin


# The statuses of transactions that the server committed. Resent ones are excluded, so that each transaction counts
# once.
ONCE_COMMITTED = [
    status.value for status in (TransactionStatus.COMMITTED, TransactionStatus.QUARANTINED, TransactionStatus.REFUSED)
]

TRIMMED = "trimmed"  # the status of a ledger row that stands for transactions removed by retention

# The account of bytes, by the status of their transaction. "applied" includes bytes of skipped tables and bytes outside
# transactions, because nothing remains to be done with them.
ACCOUNTS = {
    TransactionStatus.COMMITTED.value: "applied",
    TransactionStatus.OPEN.value: "waiting",
    TransactionStatus.ABORTED.value: "aborted",
    TransactionStatus.QUARANTINED.value: "quarantined",
    TransactionStatus.RESENT.value: "resent",
    TransactionStatus.REFUSED.value: "refused",
}


def summed_accounts(accounts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The bytes in each account. accounts: one mapping per file."""
    files = list(accounts)
    return {name: sum(file.get(name, 0) for file in files) for name in ACCOUNTS.values()}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The status of all changes in a transaction's fragments, except those of aborted subtransactions.

    commit_lsn, commit_ts (microseconds since 2000-01-01 UTC): None unless its commit was read. reason: why it is
    quarantined. unreadable_relations: relations in its unreadable part, in addition to those of its rows (None: any).
    origin, origin_lsn: where the transaction came from, and the LSN of its commit there.
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
    """Unreadable bytes between transactions. relations (None: any) can't be trusted from the commit at `lsn` on."""

    lsn: int
    relations: frozenset[int] | None
    reason: str


@dataclass(frozen=True, slots=True)
class UnknownPrepared:
    """A Commit Prepared without its Prepare: the transaction was empty, or a file is missing."""

    xid: int
    gid: str
    commit_lsn: int


@dataclass(frozen=True, slots=True)
class Watermark:
    """The epoch's ordinary transactions with a commit LSN up to `lsn` are resent."""

    file: int
    epoch: int
    lsn: int


@dataclass(frozen=True, slots=True)
class ControlRow:
    """A control message of one file. commit_lsn, commit_ts, top_xid: of an ordinary transaction that begins in the
    file."""

    ordinal: int
    fragment: int
    epoch: int
    in_stream: bool
    body: bytes
    commit_lsn: int | None = None
    commit_ts: int | None = None
    top_xid: int | None = None


@dataclass(frozen=True, slots=True)
class StreamAborts:
    """Stream Aborts of one file without other control messages between them, as parallel arrays: the xids of the
    top-level transactions, and the xids that were aborted. One run may have a million of them."""

    ordinal: int
    xids: Xids
    subxids: Xids


Control = ControlRow | StreamAborts

CONTROL_COLUMNS = (
    *("file", "ordinal", "unit", "stretch", "xid", "tag", "body"),
    *("commit_lsn", "commit_ts", "top_xid"),
)

_NO_CONTROL_TAGS = (SUMMARY_TAG, ERROR_TAG, DAMAGE_TAG, LOGICAL_TAG)


def control_rows(batches: Iterable[pa.RecordBatch]) -> list[Control]:
    """The control messages among one file's message rows, in order. batches: with the columns CONTROL_COLUMNS."""
    return [control for batch in batches for _, control in controls_of_files(batch)]


def controls_of_files(batch: pa.RecordBatch) -> Iterator[tuple[int, Control]]:
    """Like `control_rows`, for several files, with each file's number."""
    tag = batch.column("tag")
    is_other = pc.or_(pc.is_null(batch.column("body")), pc.is_in(tag, pa.array(_NO_CONTROL_TAGS)))
    is_other = pc.or_(is_other, pc.and_(pc.equal(tag, "C"), pc.not_equal(batch.column("unit"), HEAD)))
    rows = batch.filter(pc.invert(is_other)).select(list(CONTROL_COLUMNS))
    is_abort = pc.equal(rows.column("tag"), "A").to_numpy(zero_copy_only=False)
    file = rows.column("file").to_numpy()
    ends_run = (is_abort[1:] != is_abort[:-1]) | (is_abort[1:] & (file[1:] != file[:-1]))
    ends = [*(np.flatnonzero(ends_run) + 1).tolist(), rows.num_rows] if rows.num_rows else []
    begin = 0
    for end in ends:
        run = rows.slice(begin, end - begin)
        if is_abort[begin]:
            bodies = run.column("body")
            aborts = StreamAborts(run.column("ordinal")[0].as_py(), _uint32(bodies, 1), _uint32(bodies, 5))
            yield int(file[begin]), aborts
        else:
            columns = (run.column(name).to_pylist() for name in CONTROL_COLUMNS if name != "tag")
            for number, ordinal, fragment, epoch, xid, body, *commit in zip(*columns, strict=True):
                yield number, ControlRow(ordinal, fragment, epoch, xid is not None, body, *commit)
        begin = end


def _uint32(bodies: pa.Array, at: int) -> Xids:
    """The Int32 at byte `at` of each message, read as unsigned."""
    four = pc.binary_slice(bodies, at, at + 4)
    data = four.buffers()[2]
    first = np.frombuffer(four.buffers()[1], np.int32)[four.offset]
    return np.frombuffer(data, ">u4", len(four), int(first)).astype(np.int64)
