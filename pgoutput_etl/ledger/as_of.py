"""All tables as of one commit, though Delta commits them one by one.

The ledger's `batches` has, for every batch that is done, the commit LSN through which all tables were consistent and
each table's place and Delta version at that point. What a run writes before its batch is done is nobody's yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.errors import RunError
from pgoutput_etl.lsn import format_lsn, parse_lsn
from pgoutput_etl.spark.delta import is_delta_table, read_table
from pgoutput_etl.targets.plan import APPLIED, SKIPPED


class Tables(dict[str, DataFrame]):
    """By "schema.table", as of the commit at `lsn`. held: those that stand at an earlier one, and at which, because
    something holds them or the configuration skips them; ahead: those that a snapshot had brought further, and through
    which LSN.

    A held table that was never written, or is gone, is in `held` alone.
    """

    def __init__(
        self, tables: Mapping[str, DataFrame], lsn: int, held: Mapping[str, int], ahead: Mapping[str, int]
    ) -> None:
        super().__init__(tables)
        self.lsn = lsn
        self.held = dict(held)
        self.ahead = dict(ahead)


def tables_at(spark: SparkSession, state_root: str, source: str, lsn: int | str | None = None) -> Tables:
    """All tables of a source as of one commit: the last that a finished batch brought them to, or that at `lsn`.

    `lsn`: a number or PostgreSQL's text (0/1AE7B70). Raises RunError for one that no batch ended at, and names the
    nearest that did.
    """
    points = consistent_points(spark, state_root, source)
    wanted = parse_lsn(lsn) if isinstance(lsn, str) else lsn
    chosen = points if wanted is None else points.where(F.col("last_commit_lsn") == wanted)
    found = chosen.orderBy(F.desc("batch")).limit(1).collect()
    if not found:
        raise RunError(_no_such(points, source, wanted))
    point = found[0].asDict(recursive=True)
    rows = [row for row in point["tables"] if not (_is_displaced(row, state_root) or _was_always_skipped(row))]
    frames = {_name(row): _frame(spark, row) for row in rows if _is_there(spark, row)}
    held = {_name(row): row["last_commit_lsn"] for row in rows if row["status"] != APPLIED}
    at = point["last_commit_lsn"]
    ahead = {_name(r): r["last_commit_lsn"] for r in rows if r["status"] == APPLIED and r["last_commit_lsn"] > at}
    return Tables(frames, at, held, ahead)


def consistent_points(spark: SparkSession, state_root: str, source: str) -> DataFrame:
    """A row per batch that is done: batch, last_commit_lsn, at, and `tables` with each one's schema, table, path,
    version, status and last_commit_lsn. Of several with one LSN the last counts: backfills read nothing new."""
    path = f"{state_root.rstrip('/')}/batches"
    if not is_delta_table(spark, path):
        raise RunError(f"there is no ledger at {state_root}")
    done = spark.read.format("delta").load(path).where((F.col("source") == source) & (F.col("status") == "done"))
    return done.select("batch", "last_commit_lsn", "at", "tables")


def _is_there(spark: SparkSession, row: Mapping[str, Any]) -> bool:
    return row["version"] >= 0 and (row["status"] == APPLIED or is_delta_table(spark, row["path"]))


def _frame(spark: SparkSession, row: Mapping[str, Any]) -> DataFrame:
    return read_table(spark, row["path"], row["version"])


def _name(row: Mapping[str, Any]) -> str:
    return f"{row['schema']}.{row['table']}"


def _is_displaced(row: Mapping[str, Any], state_root: str) -> bool:
    """Its name belongs to another table."""
    return bool(row["path"].startswith(f"{state_root.rstrip('/')}/displaced/"))


def _was_always_skipped(row: Mapping[str, Any]) -> bool:
    return bool(row["status"] == SKIPPED and row["version"] < 0)


def _no_such(points: DataFrame, source: str, wanted: int | None) -> str:
    if wanted is None:
        return f"no batch of {source} is done yet"
    before = F.max(F.when(F.col("last_commit_lsn") < wanted, F.col("last_commit_lsn"))).alias("before")
    after = F.min(F.when(F.col("last_commit_lsn") > wanted, F.col("last_commit_lsn"))).alias("after")
    [near] = points.agg(before, after).collect()
    nearest = " and ".join(format_lsn(lsn) for lsn in near if lsn is not None)
    return (
        f"no batch of {source} ended at {format_lsn(wanted)}; the nearest that did: {nearest or 'none'}. "
        "jobs/backfill.py --to-lsn … --into … builds tables as of any commit"
    )
