"""Checks that all transactions come from one server, in order.

A commit with a lower LSN than earlier ones must be a resent one, whose xid and LSN the archive already has. A server
commits a transaction only once: if an xid has two commits that are closer together than an xid wraparound, they come
from two servers. Both checks only run for files that call for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pgoutput_etl.error_codes import ErrorCode
from pgoutput_etl.errors import SequenceError
from pgoutput_etl.ingest.executors import TransactionFilter
from pgoutput_etl.landing.selection import EVERY_FILE_WAITS, without
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.outcome import ONCE_COMMITTED
from pgoutput_etl.xid import XIDS_WRAP_WITHIN

_MAX_SUSPECTS = 100_000  # enough, because another server's archive may repeat any xid

_ADVICE = (
    "Is the file from another server or another slot, or does it belong before files that were already read? Nothing "
    "was written. Remove it from the landing folder"
)


class CommitOrderError(SequenceError):
    """Commits that neither follow the earlier ones nor were sent before. lsns: the lowest one in each file."""

    code = ErrorCode.COMMIT_ORDER

    def __init__(self, text: str, lsns: Mapping[int, int]) -> None:
        super().__init__(text)
        self.lsns = lsns


class History(Protocol):
    """The transactions of a batch and of earlier batches, as rows of the ledger."""

    def may_have_resent(self) -> bool:
        """False if the batch certainly has no resent transactions. Looking for them takes Spark jobs."""

    def unknown_resent(self) -> list[tuple[int, int, int]]:
        """File, xid, and LSN of the lowest resent commit in each file, in order, that the archive doesn't have. Omits
        commits that maintenance may have deleted."""

    def few_ended(self, which: TransactionFilter) -> pa.Table:
        """Columns `file`, `xid`, `fate`, and `commit_lsn`. `which` selects ordinary transactions; others are few."""

    def few_before(self, xids: tuple[int, int]) -> pa.Table:
        """Like `few_ended`. xids: the lowest and the highest."""


def check_history(history: History, assembly: Assembly, path_of: Callable[[int], str]) -> None:
    """Raises SequenceError, which names file, xid, and LSN."""
    if assembly.watermarks and history.may_have_resent() and (unknown := history.unknown_resent()):
        file, xid, lsn = unknown[0]
        raise CommitOrderError(
            f"{path_of(file)}: the commit at {format_lsn(lsn)} of transaction {xid} has a lower LSN than commits that "
            f"the archive already has, but is not one of them: it was not resent. {_ADVICE}",
            {file: lsn for file, _, lsn in unknown},
        )
    if assembly.overlaps or assembly.overlapping_xids:
        _check_xids(history, assembly, path_of)


def _check_xids(history: History, assembly: Assembly, path_of: Callable[[int], str]) -> None:
    """An xid that is not newer than all earlier ones must not have been committed before. Few xids need the check:
    those of transactions that were concurrent with others at the end of a file."""
    suspects = _few_done(history.few_ended(TransactionFilter(assembly.overlaps, frozenset(assembly.overlapping_xids))))
    xids = sorted({xid for _, xid, _ in suspects})[:_MAX_SUSPECTS]
    if not xids:
        return
    known: dict[int, list[int]] = {}
    for commits in (
        history.few_ended(TransactionFilter({}, frozenset(xids))),
        history.few_before((xids[0], xids[-1])),  # the range may include many others
    ):
        for _, xid, lsn in _few_done(commits.filter(pc.is_in(commits.column("xid"), pa.array(xids, pa.int64())))):
            known.setdefault(xid, []).append(lsn)
    for file, xid, lsn in sorted(suspects, key=lambda suspect: (suspect[0] or 0, suspect[2])):
        earlier = [other for other in known.get(xid, ()) if 0 < lsn - other < XIDS_WRAP_WITHIN]
        if earlier:
            raise SequenceError(
                f"{path_of(file)}: transaction {xid} was committed at {format_lsn(lsn)}, and before that at "
                f"{format_lsn(earlier[0])}: these transactions come from two servers. {_ADVICE}. {EVERY_FILE_WAITS}",
                without(path_of(file)),
            )


def _few_done(transactions: pa.Table) -> list[tuple[int, int, int]]:
    """File, xid, and LSN of transactions that were committed."""
    is_done = pc.is_in(transactions.column("fate"), pa.array(ONCE_COMMITTED))
    done = transactions.filter(pc.and_(is_done, transactions.column("xid").is_valid()))
    columns = [done.column(name) for name in ("file", "xid", "commit_lsn")]
    return list(zip(*(column.to_pylist() for column in columns), strict=True))
