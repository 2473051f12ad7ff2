"""Checks that all transactions come from one server, in order.

A commit with a lower LSN than earlier ones must be a resent one: the archive already has its xid and LSN. And a server
commits a transaction once: one xid with two commits, closer than xids can wrap around, comes from two servers. Both
checks run only for files that give a reason.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.errors import SequenceError
from pgoutput_etl.ingest.executors import TransactionFilter
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.outcome import TRIMMED, TransactionStatus

# 2^32 transactions, each with at least 32 bytes of WAL.
_XIDS_WRAP_WITHIN = 2**37

_MAX_SUSPECTS = 100_000  # enough, as another server's archive may repeat any xid

_ADVICE = (
    "Is the file from another server or another slot, or does it belong before files that were already read? Nothing "
    "was written. Remove it from the landing folder"
)


def check_history(
    ended: Callable[[TransactionFilter | None], DataFrame],
    known: DataFrame,
    assembly: Assembly,
    path_of: Callable[[int], str],
) -> None:
    """Raises SequenceError with file, xid and LSN.

    ended: returns the batch's transactions as rows of the ledger; known: the transactions of all earlier batches.
    """
    if assembly.watermarks:
        _check_resent(_committed(ended(None)), known, path_of)
    if assembly.overlaps or assembly.overlapping_xids:
        _check_xids(ended, known, assembly, path_of)


def _committed(ended: DataFrame) -> DataFrame:
    return ended.where(F.col("commit_lsn").isNotNull()).select("file", "fate", "xid", "commit_lsn")


def _check_resent(ours: DataFrame, known: DataFrame, path_of: Callable[[int], str]) -> None:
    """Resent commits must be known. Commits that maintenance has deleted can't be checked."""
    trimmed = known.where(F.col("fate") == TRIMMED).agg(F.coalesce(F.max("commit_lsn"), F.lit(0)).alias("trimmed"))
    commits = _done(known).unionByName(_done(ours))
    same = (F.col("commit_lsn") == F.col("k_lsn")) & F.coalesce(F.col("xid") == F.col("k_xid"), F.lit(True))
    resent = ours.where(F.col("fate") == TransactionStatus.RESENT.value).crossJoin(F.broadcast(trimmed))
    resent = resent.where(F.col("commit_lsn") > F.col("trimmed"))
    unknown = resent.join(commits, same, "left_anti").orderBy("file", "commit_lsn").limit(1).collect()
    if unknown:
        row = unknown[0]
        raise SequenceError(
            f"{path_of(row['file'])}: the commit at {format_lsn(row['commit_lsn'])} of transaction {row['xid']} has a "
            f"lower LSN than commits that the archive already has, but is not one of them: it was not resent. {_ADVICE}"
        )


def _check_xids(
    ended: Callable[[TransactionFilter | None], DataFrame],
    known: DataFrame,
    assembly: Assembly,
    path_of: Callable[[int], str],
) -> None:
    """An xid that is not newer than all earlier ones must not have been committed before. There are few: transactions
    that ran concurrently with others at the end of a file."""
    which = TransactionFilter(assembly.overlaps, frozenset(assembly.overlapping_xids))
    suspects = _committed(ended(which)).where(_is_done())
    xids = sorted({row["xid"] for row in suspects.select("xid").distinct().limit(_MAX_SUSPECTS).collect()})
    if not xids:
        return
    commits = _done(known.where(F.col("xid").between(xids[0], xids[-1])))
    commits = commits.unionByName(_done(_committed(ended(TransactionFilter({}, frozenset(xids))))))
    suspects = suspects.where(F.col("xid").between(xids[0], xids[-1]))
    is_near = F.abs(F.col("commit_lsn") - F.col("k_lsn")) < _XIDS_WRAP_WITHIN
    twice = (F.col("xid") == F.col("k_xid")) & (F.col("commit_lsn") > F.col("k_lsn")) & is_near
    duplicates = F.broadcast(suspects).join(commits, twice).orderBy("file", "commit_lsn").limit(1).collect()
    if duplicates:
        row = duplicates[0]
        raise SequenceError(
            f"{path_of(row['file'])}: transaction {row['xid']} was committed at {format_lsn(row['commit_lsn'])}, and "
            f"before that at {format_lsn(row['k_lsn'])}: these transactions come from two servers. {_ADVICE}"
        )


def _is_done() -> Column:
    return F.col("fate").isin(
        TransactionStatus.COMMITTED.value, TransactionStatus.QUARANTINED.value, TransactionStatus.REFUSED.value
    )


def _done(transactions: DataFrame) -> DataFrame:
    return transactions.where(_is_done()).select(F.col("xid").alias("k_xid"), F.col("commit_lsn").alias("k_lsn"))
