"""Checks that an archive's transactions come from one server, as ingest/source_check.py does with a ledger.

A commit with a lower LSN than earlier commits was sent again, so the archive must already have it. No transaction is
committed twice: an xid is reused only after 2^32 others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.transactions.outcome import Outcome
from pgoutput_etl.transactions.statistics import QUARANTINED
from pgoutput_etl.transactions.status_lookup import COMMITTED, REFUSED, RESENT, STATUSES, Integers
from pgoutput_etl.xid import XIDS_WRAP_WITHIN

# Commits in a file: its number, and parallel arrays of xids, LSNs, and statuses (indexes of STATUSES).
FileCommits = tuple[int, Integers, Integers, Integers]


def commits_of(outcomes: Iterable[Outcome]) -> Iterator[FileCommits]:
    for o in outcomes:
        if o.xid is not None and o.commit_lsn is not None and o.fragments:
            status = STATUSES.index(o.status)
            yield o.fragments[0][0], np.array([o.xid]), np.array([o.commit_lsn]), np.array([status])


@dataclass(frozen=True, slots=True)
class ForeignTransactions:
    """wrong: the first commit of each kind that can't come from the same server. open: commits that must be in earlier
    files. Each line names file, LSN, and xid."""

    wrong: tuple[str, ...] = ()
    open: tuple[str, ...] = ()


def find_foreign_transactions(commits: Sequence[FileCommits], paths: Mapping[int, str]) -> ForeignTransactions:
    if not commits:
        return ForeignTransactions()
    file = np.concatenate([np.full(len(part[1]), part[0], np.int64) for part in commits])
    xid, lsn, status = (np.concatenate([part[i] for part in commits]) for i in (1, 2, 3))
    is_done = np.isin(status, (COMMITTED, QUARANTINED, REFUSED))
    order = np.lexsort((lsn, xid))
    order = order[is_done[order]]
    wrong: list[str] = []
    earlier: list[str] = []
    resent = np.flatnonzero(status == RESENT)
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
