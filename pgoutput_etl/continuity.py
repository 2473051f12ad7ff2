"""Whether transactions can be one server's, one after the other.

A commit whose LSN is behind others' was sent again: then the archive has it already, with the same xid and LSN. And no
transaction of one server is committed twice: an xid at two places, nearer to each other than xids can be used up, is
two servers'. Both are looked for only where a file gives a reason to.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.errors import SequenceError
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.outcomes import Fate

# 2^32 transactions, of which none takes less than 32 bytes of WAL.
_XIDS_WRAP_WITHIN = 2**37
_WHAT_TO_DO = (
    "Is it another server's archive, or another slot's, or does it belong before files that were read already? Nothing "
    "was written. Take it out of the landing folder"
)


def check_history(ended: DataFrame, known: DataFrame, path_of: Callable[[int], str]) -> None:
    """Raises SequenceError naming file, xid and LSN. `ended`: the batch's transactions, as the ledger keeps them;
    `known`: those of all batches before."""
    columns = ["xid", "commit_lsn"]
    done = F.col("fate").isin(Fate.COMMITTED.value, Fate.QUARANTINED.value)
    ours = ended.where(F.col("commit_lsn").isNotNull()).select("file", "fate", *columns)
    all_done = known.where(done).select(*columns).unionByName(ours.where(done).select(*columns))
    k = all_done.select(F.col("xid").alias("k_xid"), F.col("commit_lsn").alias("k_lsn"))
    same = (F.col("commit_lsn") == F.col("k_lsn")) & F.coalesce(F.col("xid") == F.col("k_xid"), F.lit(True))
    resent = ours.where(F.col("fate") == Fate.RESENT.value)
    unknown = resent.join(k, same, "left_anti").orderBy("file", "commit_lsn").limit(1).collect()
    if unknown:
        row = unknown[0]
        raise SequenceError(
            f"{path_of(row['file'])}: the commit at {format_lsn(row['commit_lsn'])} of transaction {row['xid']} is "
            f"behind commits that the archive has, and was not among them: none that was sent again. {_WHAT_TO_DO}"
        )
    is_near = F.abs(F.col("commit_lsn") - F.col("k_lsn")) < _XIDS_WRAP_WITHIN
    twice = (F.col("xid") == F.col("k_xid")) & (F.col("commit_lsn") > F.col("k_lsn")) & is_near
    found = ours.where(done).join(k, twice).orderBy("file", "commit_lsn").limit(1).collect()
    if found:
        row = found[0]
        raise SequenceError(
            f"{path_of(row['file'])}: transaction {row['xid']} was committed at {format_lsn(row['commit_lsn'])}, and "
            f"before that at {format_lsn(row['k_lsn'])}: these are two servers' transactions. {_WHAT_TO_DO}"
        )
