"""Whether transactions can be one server's, one after the other.

A commit whose LSN is behind others' was sent again: then the archive has it already, with the same xid and LSN. And no
transaction of one server is committed twice: an xid at two places, nearer to each other than xids can be used up, is
two servers'. Both are looked for only where a file gives a reason to.
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

# 2^32 transactions, of which none takes less than 32 bytes of WAL.
_XIDS_WRAP_WITHIN = 2**37

_MOST_LOOKED_FOR = 100_000  # another server's archive repeats any of them

_WHAT_TO_DO = (
    "Is it another server's archive, or another slot's, or does it belong before files that were read already? Nothing "
    "was written. Take it out of the landing folder"
)


def check_history(
    ended: Callable[[TransactionFilter | None], DataFrame],
    known: DataFrame,
    assembly: Assembly,
    path_of: Callable[[int], str],
) -> None:
    """Raises SequenceError naming file, xid and LSN. `ended`: the batch's transactions, or some of them, as the ledger
    keeps them; `known`: those of all batches before."""
    if assembly.watermarks:
        _check_resent(_committed(ended(None)), known, path_of)
    if assembly.overlaps or assembly.overlapping_xids:
        _check_xids(ended, known, assembly, path_of)


def _committed(ended: DataFrame) -> DataFrame:
    return ended.where(F.col("commit_lsn").isNotNull()).select("file", "fate", "xid", "commit_lsn")


def _check_resent(ours: DataFrame, known: DataFrame, path_of: Callable[[int], str]) -> None:
    """What is behind others' commits was sent before; of commits that maintenance took away nothing tells that."""
    trimmed = known.where(F.col("fate") == TRIMMED).agg(F.coalesce(F.max("commit_lsn"), F.lit(0)).alias("trimmed"))
    k = _done(known).unionByName(_done(ours))
    same = (F.col("commit_lsn") == F.col("k_lsn")) & F.coalesce(F.col("xid") == F.col("k_xid"), F.lit(True))
    resent = ours.where(F.col("fate") == TransactionStatus.RESENT.value).crossJoin(F.broadcast(trimmed))
    resent = resent.where(F.col("commit_lsn") > F.col("trimmed"))
    unknown = resent.join(k, same, "left_anti").orderBy("file", "commit_lsn").limit(1).collect()
    if unknown:
        row = unknown[0]
        raise SequenceError(
            f"{path_of(row['file'])}: the commit at {format_lsn(row['commit_lsn'])} of transaction {row['xid']} is "
            f"behind commits that the archive has, and was not among them: none that was sent again. {_WHAT_TO_DO}"
        )


def _check_xids(
    ended: Callable[[TransactionFilter | None], DataFrame],
    known: DataFrame,
    assembly: Assembly,
    path_of: Callable[[int], str],
) -> None:
    """No xid that is not past all before it was committed before. Few are not: those that ran side by side with others
    at a file's end; so that few are looked for."""
    which = TransactionFilter(assembly.overlaps, frozenset(assembly.overlapping_xids))
    suspects = _committed(ended(which)).where(_is_done())
    xids = sorted({row["xid"] for row in suspects.select("xid").distinct().limit(_MOST_LOOKED_FOR).collect()})
    if not xids:
        return
    k = _done(known.where(F.col("xid").between(xids[0], xids[-1])))
    k = k.unionByName(_done(_committed(ended(TransactionFilter({}, frozenset(xids))))))
    suspects = suspects.where(F.col("xid").between(xids[0], xids[-1]))
    is_near = F.abs(F.col("commit_lsn") - F.col("k_lsn")) < _XIDS_WRAP_WITHIN
    twice = (F.col("xid") == F.col("k_xid")) & (F.col("commit_lsn") > F.col("k_lsn")) & is_near
    found = F.broadcast(suspects).join(k, twice).orderBy("file", "commit_lsn").limit(1).collect()
    if found:
        row = found[0]
        raise SequenceError(
            f"{path_of(row['file'])}: transaction {row['xid']} was committed at {format_lsn(row['commit_lsn'])}, and "
            f"before that at {format_lsn(row['k_lsn'])}: these are two servers' transactions. {_WHAT_TO_DO}"
        )


def _is_done() -> Column:
    return F.col("fate").isin(
        TransactionStatus.COMMITTED.value, TransactionStatus.QUARANTINED.value, TransactionStatus.REFUSED.value
    )


def _done(transactions: DataFrame) -> DataFrame:
    return transactions.where(_is_done()).select(F.col("xid").alias("k_xid"), F.col("commit_lsn").alias("k_lsn"))
