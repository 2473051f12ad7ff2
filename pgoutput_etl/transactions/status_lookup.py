"""The transaction status of message rows, looked up in bulk: the decisions of `Assembly` as arrays.

A fragment with an outcome takes its status and commit from it. Any other fragment is an ordinary transaction within its
file, with the commit that its Begin announced: it is resent if that commit isn't past the epoch's watermark, and
refused if the configuration refuses its origin. Rows of aborted subtransactions are aborted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.transactions.origin_filter import ANY, Origins
from pgoutput_etl.transactions.outcome import Outcome, TransactionStatus, Watermark

Integers = npt.NDArray[np.int64]

STATUSES = tuple(TransactionStatus)

COMMITTED = STATUSES.index(TransactionStatus.COMMITTED)

ABORTED = STATUSES.index(TransactionStatus.ABORTED)

RESENT = STATUSES.index(TransactionStatus.RESENT)

REFUSED = STATUSES.index(TransactionStatus.REFUSED)

# The columns that `decide` reads.
DECIDED_BY = ("file", "unit", "stretch", "xid", "commit_lsn", "commit_ts", "top_xid", "origin")


@dataclass(frozen=True, slots=True)
class StatusColumns:
    """Per row: the status as an index into STATUSES; the transaction's commit, top-level xid, and scope, or NULL."""

    status: npt.NDArray[np.uint8]
    commit_lsn: pa.Array
    commit_ts: pa.Array
    top_xid: pa.Array
    scope: pa.Array

    @property
    def names(self) -> pa.Array:
        """The statuses as text."""
        return pa.array([status.value for status in STATUSES]).take(pa.array(self.status))


@dataclass(frozen=True, slots=True)
class StatusLookup:
    """Sent to Spark's workers with every task that reads rows.

    fragments, epochs: sorted; each is (file, number) packed into one integer. outcome_of, watermarks: parallel to
    these. aborted: (outcome, xid of a subtransaction), packed and sorted. left_out: files that are not part of the
    batch.
    """

    fragments: Integers
    outcome_of: npt.NDArray[np.int32]
    outcome_statuses: npt.NDArray[np.uint8]
    commits: pa.RecordBatch  # commit_lsn, commit_ts, top_xid, scope of each outcome
    aborted: Integers
    epochs: Integers
    watermarks: Integers
    left_out: Integers
    origins: Origins = ANY

    @classmethod
    def of(
        cls,
        outcomes: Iterable[Outcome],
        watermarks: Iterable[Watermark],
        left_out: Iterable[int] = (),
        origins: Origins = ANY,
    ) -> StatusLookup:
        listed = list(outcomes)
        pairs = [(_pack(file, fragment), i) for i, outcome in enumerate(listed) for file, fragment in outcome.fragments]
        pairs.sort()
        marks = sorted((_pack(mark.file, mark.epoch), mark.lsn) for mark in watermarks)
        commits = pa.RecordBatch.from_arrays(
            [
                pa.array([outcome.commit_lsn for outcome in listed], pa.int64()),
                pa.array([outcome.commit_ts for outcome in listed], pa.int64()),
                pa.array([outcome.xid for outcome in listed], pa.int64()),
                pa.array([outcome.scope for outcome in listed], pa.int64()),
            ],
            names=["commit_lsn", "commit_ts", "top_xid", "scope"],
        )
        return cls(
            np.array([fragment for fragment, _ in pairs], np.int64),
            np.array([i for _, i in pairs], np.int32),
            np.array([STATUSES.index(outcome.status) for outcome in listed], np.uint8),
            commits,
            _packed([(i, outcome.aborted_subxids) for i, outcome in enumerate(listed) if len(outcome.aborted_subxids)]),
            np.array([epoch for epoch, _ in marks], np.int64),
            np.array([lsn for _, lsn in marks], np.int64),
            np.array(sorted(left_out), np.int64),
            origins,
        )

    def fragments_of(self, file: int) -> Integers:
        """The numbers of a file's fragments that have an outcome."""
        first, end = np.searchsorted(self.fragments, (_pack(file, 0), _pack(file + 1, 0)))
        return self.fragments[first:end] - _pack(file, 0)

    def is_aborted(self, file: int, fragment: int, xid: int | None) -> bool:
        """True if the fragment's (sub)transaction `xid` is aborted."""
        outcome = int(self._outcomes(np.array([_pack(file, fragment)], np.int64))[0])
        return outcome >= 0 and xid is not None and bool(np.isin(_pack(outcome, xid), self.aborted))

    def of_batch(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of the batch's own files."""
        if not len(self.left_out):
            return rows
        return rows.filter(pc.invert(pc.is_in(rows.column("file"), pa.array(self.left_out))))

    def decide(self, rows: pa.RecordBatch) -> StatusColumns:
        """The status of each row's transaction. rows: with the columns DECIDED_BY."""
        file = numbers_of(rows.column("file"))
        outcome = self._outcomes(_pack_all(file, numbers_of(rows.column("unit"))))
        has_outcome = outcome >= 0
        status = self._statuses_by_epoch(rows, file)
        columns = {name: rows.column(name) for name in ("commit_lsn", "commit_ts", "top_xid")}
        columns["scope"] = pa.nulls(rows.num_rows, pa.int64())
        if has_outcome.any():
            status[has_outcome] = self.outcome_statuses[outcome[has_outcome]]
            self._abort_subtransactions(status, outcome, rows)
            commits, chosen = self.commits.take(pa.array(outcome, mask=~has_outcome)), pa.array(has_outcome)
            columns = {name: pc.if_else(chosen, commits.column(name), column) for name, column in columns.items()}
        return StatusColumns(status, **columns)

    def _outcomes(self, fragments: Integers) -> npt.NDArray[np.int32]:
        """The index of each fragment's outcome, -1 for none."""
        outcomes = np.full(len(fragments), -1, np.int32)
        if len(self.fragments):
            at = np.minimum(np.searchsorted(self.fragments, fragments), len(self.fragments) - 1)
            same = self.fragments[at] == fragments
            outcomes[same] = self.outcome_of[at[same]]
        return outcomes

    def _statuses_by_epoch(self, rows: pa.RecordBatch, file: Integers) -> npt.NDArray[np.uint8]:
        status = np.full(rows.num_rows, COMMITTED, np.uint8)
        lsn = rows.column("commit_lsn")
        if len(self.epochs) and lsn.null_count < len(lsn):
            epochs = _pack_all(file, numbers_of(rows.column("stretch")))
            at = np.minimum(np.searchsorted(self.epochs, epochs), len(self.epochs) - 1)
            behind = pc.fill_null(lsn, np.iinfo(np.int64).max).to_numpy(zero_copy_only=False) <= self.watermarks[at]
            status[(self.epochs[at] == epochs) & behind] = RESENT
        if self.origins.refuse_any and rows.column("origin").null_count < rows.num_rows:
            refused = self.origins.refused(rows.column("origin")).to_numpy(zero_copy_only=False)
            status[refused & (status == COMMITTED)] = REFUSED
        return status

    def _abort_subtransactions(
        self, status: npt.NDArray[np.uint8], outcome: npt.NDArray[np.int32], rows: pa.RecordBatch
    ) -> None:
        if len(self.aborted):
            xid = numbers_of(rows.column("xid"))
            streamed = np.flatnonzero((outcome >= 0) & (xid >= 0))
            subtransactions = _pack_all(outcome[streamed].astype(np.int64), xid[streamed])
            status[streamed[np.isin(subtransactions, self.aborted)]] = ABORTED


def _packed(pairs: Iterable[tuple[int, Sequence[int]]]) -> Integers:
    parts = [_pack_all(np.int64(first), np.asarray(others, np.int64)) for first, others in pairs]
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


def _pack(first: int, second: int) -> int:
    return (first << 32) + second


def _pack_all(first: Integers | np.int64, second: Integers) -> Integers:
    return (first << 32) + second


def numbers_of(column: pa.Array) -> Integers:
    """A column of non-negative integers, with -1 for NULL."""
    numbers: Integers = pc.fill_null(column.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    return numbers
