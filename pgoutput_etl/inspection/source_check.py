"""Checks that an archive's transactions come from one server, as source_continuity.py does with a ledger.

A commit with a lower LSN than commits before it was sent again, so the archive must have it already. No transaction is
committed twice: an xid is reused only after 2^32 others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.transactions.outcome import Outcome, TransactionStatus
from pgoutput_etl.transactions.status_lookup import STATUSES

Integers = npt.NDArray[np.int64]

# Bytes of WAL: 2^32 transactions, each at least 32 bytes.
XIDS_WRAP_WITHIN = 2**37

_DONE = tuple(
    STATUSES.index(status)
    for status in (TransactionStatus.COMMITTED, TransactionStatus.QUARANTINED, TransactionStatus.REFUSED)
)

_RESENT = STATUSES.index(TransactionStatus.RESENT)


@dataclass(slots=True)
class CommitColumns:
    """Commits by file, as parallel arrays: xid, LSN and status as an index of STATUSES."""

    parts: list[tuple[int, Integers, Integers, Integers]] = field(default_factory=list)

    def add(self, file: int, xid: Integers, lsn: Integers, status: Integers) -> None:
        self.parts.append((file, xid, lsn, status))

    def add_outcomes(self, outcomes: Iterable[Outcome]) -> None:
        for o in outcomes:
            if o.xid is not None and o.commit_lsn is not None and o.fragments:
                numbers = (np.array([n], np.int64) for n in (o.xid, o.commit_lsn, STATUSES.index(o.status)))
                self.add(o.fragments[0][0], *numbers)


@dataclass(frozen=True, slots=True)
class ForeignTransactions:
    """wrong: the first commit of each kind that can't come from the same server. open: commits that must be in earlier
    files. Each line names file, LSN and xid."""

    wrong: tuple[str, ...] = ()
    open: tuple[str, ...] = ()


def find_foreign_transactions(commits: CommitColumns, paths: Mapping[int, str]) -> ForeignTransactions:
    if not commits.parts:
        return ForeignTransactions()
    file = np.concatenate([np.full(len(part[1]), part[0], np.int64) for part in commits.parts])
    xid, lsn, status = (np.concatenate([part[i] for part in commits.parts]) for i in (1, 2, 3))
    is_done = np.isin(status, _DONE)
    order = np.lexsort((lsn, xid))
    order = order[is_done[order]]
    wrong: list[str] = []
    earlier: list[str] = []
    resent = np.flatnonzero(status == _RESENT)
    known = set(zip(xid[order].tolist(), lsn[order].tolist(), strict=True)) if len(resent) else set()
    unknown = [i for i in resent.tolist() if (int(xid[i]), int(lsn[i])) not in known]
    if unknown:
        i = min(unknown, key=lambda i: (int(file[i]), int(lsn[i])))
        line = (
            f"{paths.get(int(file[i]), '')}: the commit at {format_lsn(int(lsn[i]))} of transaction {xid[i]} has a "
            "lower LSN than commits before it, but is not among them"
        )
        if int(lsn[i]) < int(lsn[is_done].min(initial=2**63 - 1)):
            earlier.append(f"{line}; it must be in earlier files")
        else:
            wrong.append(f"{line}, so it was not sent again")
    same = (np.diff(xid[order]) == 0) & (np.diff(lsn[order]) > 0) & (np.diff(lsn[order]) < XIDS_WRAP_WITHIN)
    twice = np.flatnonzero(same)
    if len(twice):
        first, second = order[twice[0]], order[twice[0] + 1]
        wrong.append(
            f"{paths.get(int(file[second]), '')}: transaction {xid[second]} was committed at "
            f"{format_lsn(int(lsn[second]))} and at {format_lsn(int(lsn[first]))}: the archive has transactions of two "
            "servers"
        )
    return ForeignTransactions(tuple(wrong), tuple(earlier))
