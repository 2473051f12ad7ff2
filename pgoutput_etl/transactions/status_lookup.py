"""What became of each message row, looked up in bulk: what `Assembly` decided, as arrays.

A unit that has an outcome of its own has its commit; any other is an ordinary transaction within its file, and Begin
told its commit: it is resent if that is not past its stretch's watermark, and refused if the configuration refuses the
origin that it names. Rows of aborted subtransactions are aborted.
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

# What `decide` looks at.
DECIDED_BY = ("file", "unit", "stretch", "xid", "commit_lsn", "commit_ts", "top_xid", "origin")


@dataclass(frozen=True, slots=True)
class StatusColumns:
    """Of each row its fate, as a place in FATES, and what its transaction's end says; NULL where there is none."""

    status: npt.NDArray[np.uint8]
    commit_lsn: pa.Array
    commit_ts: pa.Array
    top_xid: pa.Array
    scope: pa.Array


@dataclass(frozen=True, slots=True)
class StatusLookup:
    """units, stretches: (file, number) as one integer each, in order; the other arrays go along with them. aborted:
    (outcome, xid of a subtransaction) likewise. left_out: files that were looked at and are none of the batch's.

    Goes to Spark's workers with every task that looks at rows.
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
        pairs = [
            (_place(file, fragment), i) for i, outcome in enumerate(listed) for file, fragment in outcome.fragments
        ]
        pairs.sort()
        marks = sorted((_place(mark.file, mark.epoch), mark.lsn) for mark in watermarks)
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
            np.array([place for place, _ in pairs], np.int64),
            np.array([i for _, i in pairs], np.int32),
            np.array([STATUSES.index(outcome.status) for outcome in listed], np.uint8),
            commits,
            _sorted_places([(i, each.aborted_subxids) for i, each in enumerate(listed) if len(each.aborted_subxids)]),
            np.array([place for place, _ in marks], np.int64),
            np.array([lsn for _, lsn in marks], np.int64),
            np.array(sorted(left_out), np.int64),
            origins,
        )

    def fragments_of(self, file: int) -> Integers:
        """Of a file, those that have an outcome of their own."""
        first, end = np.searchsorted(self.fragments, (_place(file, 0), _place(file + 1, 0)))
        return self.fragments[first:end] - _place(file, 0)

    def is_aborted(self, file: int, fragment: int, xid: int | None) -> bool:
        """Of one (sub)transaction of a unit."""
        outcome = int(self._outcomes(np.array([_place(file, fragment)], np.int64))[0])
        return outcome >= 0 and xid is not None and bool(np.isin(_place(outcome, xid), self.aborted))

    def of_batch(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Those of the batch's own files."""
        if not len(self.left_out):
            return rows
        return rows.filter(pc.invert(pc.is_in(rows.column("file"), pa.array(self.left_out))))

    def decide(self, rows: pa.RecordBatch) -> StatusColumns:
        """`rows`: with the columns DECIDED_BY at least."""
        file = _numbers(rows, "file")
        outcome = self._outcomes(_places(file, _numbers(rows, "unit")))
        has_own = outcome >= 0
        status = self._of_epochs(rows, file)
        columns = {name: rows.column(name) for name in ("commit_lsn", "commit_ts", "top_xid")}
        columns["scope"] = pa.nulls(rows.num_rows, pa.int64())
        if has_own.any():
            status[has_own] = self.outcome_statuses[outcome[has_own]]
            self._abort(status, outcome, rows)
            own = self.commits.take(pa.array(outcome, mask=~has_own))
            chosen = pa.array(has_own)
            columns = {name: pc.if_else(chosen, own.column(name), column) for name, column in columns.items()}
        return StatusColumns(status, **columns)

    def _outcomes(self, places: Integers) -> npt.NDArray[np.int32]:
        """-1: none."""
        found = np.full(len(places), -1, np.int32)
        if len(self.fragments):
            at = np.minimum(np.searchsorted(self.fragments, places), len(self.fragments) - 1)
            same = self.fragments[at] == places
            found[same] = self.outcome_of[at[same]]
        return found

    def _of_epochs(self, rows: pa.RecordBatch, file: Integers) -> npt.NDArray[np.uint8]:
        status = np.full(rows.num_rows, COMMITTED, np.uint8)
        lsn = rows.column("commit_lsn")
        if len(self.epochs) and lsn.null_count < len(lsn):
            places = _places(file, _numbers(rows, "stretch"))
            at = np.minimum(np.searchsorted(self.epochs, places), len(self.epochs) - 1)
            behind = pc.fill_null(lsn, np.iinfo(np.int64).max).to_numpy(zero_copy_only=False) <= self.watermarks[at]
            status[(self.epochs[at] == places) & behind] = RESENT
        if self.origins.refuse_any and rows.column("origin").null_count < rows.num_rows:
            refused = self.origins.refused(rows.column("origin")).to_numpy(zero_copy_only=False)
            status[refused & (status == COMMITTED)] = REFUSED
        return status

    def _abort(self, status: npt.NDArray[np.uint8], outcome: npt.NDArray[np.int32], rows: pa.RecordBatch) -> None:
        if len(self.aborted):
            xid = _numbers(rows, "xid")
            of_it = np.flatnonzero((outcome >= 0) & (xid >= 0))
            status[of_it[np.isin(_places(outcome[of_it].astype(np.int64), xid[of_it]), self.aborted)]] = ABORTED


def _sorted_places(numbers: Iterable[tuple[int, Sequence[int]]]) -> Integers:
    parts = [_places(np.int64(first), np.asarray(others, np.int64)) for first, others in numbers]
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


def _place(file: int, number: int) -> int:
    return (file << 32) + number


def _places(file: Integers | np.int64, number: Integers) -> Integers:
    return (file << 32) + number


def _numbers(rows: pa.RecordBatch, name: str) -> Integers:
    """NULL is -1, which nothing here is."""
    found: Integers = pc.fill_null(rows.column(name).cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    return found
