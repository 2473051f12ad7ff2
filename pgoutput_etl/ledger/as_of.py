"""Reads all tables as of one commit, although their Delta commits are separate.

For every finished batch, the ledger's `batches` has the commit LSN through which all tables were consistent, and each
table's path and Delta version at that point. Later versions belong to an unfinished batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.errors import RunError
from pgoutput_etl.lsn import format_lsn, parse_lsn
from pgoutput_etl.places import Place, absolute_place
from pgoutput_etl.spark.delta import is_delta_table, read_table
from pgoutput_etl.targets.plan import APPLIED, DISPLACED, SKIPPED


class Tables(dict[str, DataFrame]):
    """DataFrames by "schema.table", as of the commit at `lsn`.

    held: the earlier LSN of each table that is held or that the configuration skips; ahead: the later LSN of each table
    that a snapshot has advanced. A held table that was never written, or no longer exists, is only in `held`.
    """

    def __init__(
        self, tables: Mapping[str, DataFrame], lsn: int, held: Mapping[str, int], ahead: Mapping[str, int]
    ) -> None:
        super().__init__(tables)
        self.lsn = lsn
        self.held = dict(held)
        self.ahead = dict(ahead)


def tables_at(spark: SparkSession, state_root: str, source: str, lsn: int | str | None = None) -> Tables:
    """All tables of a source as of the last commit of the last finished batch, or as of the commit at `lsn`.

    lsn: a number or PostgreSQL's text form (0/1AE7B70). Raises RunError, which names the nearest LSNs, if no batch
    ended there.
    """
    points = consistent_points(spark, state_root, source)
    wanted = parse_lsn(lsn) if isinstance(lsn, str) else lsn
    ends = {row["batch"]: row["last_commit_lsn"] for row in points.select("batch", "last_commit_lsn").collect()}
    batch = batch_at(ends, source, wanted)
    [point] = points.where(F.col("batch") == batch).limit(1).collect()
    rows = tables_in(point.asDict(recursive=True)["tables"], state_root)
    frames = {
        name: read_table(spark, Place.parse(row["path"]), row["version"]) for name, row in rows if _exists(spark, row)
    }
    held = {name: row["last_commit_lsn"] for name, row in rows if row["status"] != APPLIED}
    applied = {name: row["last_commit_lsn"] for name, row in rows if row["status"] == APPLIED}
    return Tables(frames, ends[batch], held, {name: lsn for name, lsn in applied.items() if lsn > ends[batch]})


def batch_at(ends: Mapping[int, int], source: str, lsn: int | None = None) -> int:
    """The last batch that ended at the commit LSN `lsn`; without `lsn`, the last batch. ends: the LSNs of all finished
    batches, by number. Raises RunError, which names the nearest LSNs, if no batch ended there."""
    batches = [batch for batch, end in ends.items() if lsn is None or end == lsn]
    if not batches:
        raise RunError(_missing(ends.values(), source, lsn))
    return max(batches)


def tables_in(states: Iterable[Mapping[str, Any]], state_root: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The tables to read as of a batch, with their names. states: of all tables, as stored in the ledger."""
    displaced = absolute_place(f"{state_root.rstrip('/')}/{DISPLACED}")
    return [
        (f"{row['schema']}.{row['table']}", row)
        for row in states
        if not Place.parse(row["path"]).absolute().is_within(displaced)
        and (row["status"] != SKIPPED or row["version"] >= 0)
    ]


def consistent_points(spark: SparkSession, state_root: str, source: str) -> DataFrame:
    """One row per finished batch: batch, last_commit_lsn, at, and `tables` (with schema, table, path, version, status,
    and last_commit_lsn). If several batches ended at an LSN, the last one counts: backfills read nothing new."""
    path = f"{state_root.rstrip('/')}/batches"
    if not is_delta_table(spark, Place(path)):
        raise RunError(f"there is no ledger at {state_root}")
    done = spark.read.format("delta").load(path).where((F.col("source") == source) & (F.col("status") == "done"))
    return done.select("batch", "last_commit_lsn", "at", "tables")


def _exists(spark: SparkSession, row: Mapping[str, Any]) -> bool:
    return row["version"] >= 0 and (row["status"] == APPLIED or is_delta_table(spark, Place.parse(row["path"])))


def _missing(ends: Collection[int], source: str, wanted: int | None) -> str:
    if wanted is None:
        return f"no batch of {source} is done yet"
    near = (
        max((end for end in ends if end < wanted), default=None),
        min((e for e in ends if e > wanted), default=None),
    )
    nearest = " and ".join(format_lsn(lsn) for lsn in near if lsn is not None)
    return (
        f"no batch of {source} ended at {format_lsn(wanted)}; the nearest that did: {nearest or 'none'}. "
        "A backfill with --to-lsn and --out builds tables as of any commit"
    )
