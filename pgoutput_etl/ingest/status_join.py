"""Joins transaction status to message rows: the way of the rare paths."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.origin_filter import Origins
from pgoutput_etl.transactions.outcome import TransactionStatus

_BY_FRAGMENT = pa.schema(
    [
        ("file", pa.int64()),
        ("unit", pa.int32()),
        ("of_unit", pa.string()),
        ("unit_lsn", pa.int64()),
        ("unit_ts", pa.int64()),
        ("unit_xid", pa.int64()),
        ("scope", pa.int64()),
        ("aborted", pa.list_(pa.int64())),
    ]
)

_BY_EPOCH = pa.schema([("file", pa.int64()), ("stretch", pa.int32()), ("mark", pa.int64())])


def with_status(spark: SparkSession, rows: DataFrame, assembly: Assembly) -> DataFrame:
    """Change rows with `status`, `scope` and the commit of their transaction."""
    fragments = [
        {
            "file": file,
            "unit": fragment,
            "of_unit": outcome.status.value,
            "unit_lsn": outcome.commit_lsn,
            "unit_ts": outcome.commit_ts,
            "unit_xid": outcome.xid,
            "scope": outcome.scope,
            "aborted": list(outcome.aborted_subxids),
        }
        for outcome in (*assembly.outcomes, *assembly.open_outcomes())
        for file, fragment in outcome.fragments
    ]
    marks = [{"file": mark.file, "stretch": mark.epoch, "mark": mark.lsn} for mark in assembly.watermarks]
    of_units = frame(spark, pa.Table.from_pylist(fragments, _BY_FRAGMENT))
    of_stretches = frame(spark, pa.Table.from_pylist(marks, _BY_EPOCH))
    return joined_with_status(rows, of_units, of_stretches, assembly.origins)


def joined_with_status(rows: DataFrame, of_units: DataFrame, of_stretches: DataFrame, origins: Origins) -> DataFrame:
    """`of_units`: file, unit, of_unit (the fate), unit_lsn, unit_ts, unit_xid, scope, aborted, of every unit that has
    an outcome of its own. `of_stretches`: file, stretch, mark, of those with a watermark."""
    joined = rows.join(F.broadcast(of_units), ["file", "unit"], "left")
    joined = joined.join(F.broadcast(of_stretches), ["file", "stretch"], "left")
    has_own = F.col("of_unit").isNotNull()
    of_stretch = F.when(F.col("commit_lsn") <= F.col("mark"), TransactionStatus.RESENT.value)
    of_stretch = of_stretch.when(is_refused(origins), TransactionStatus.REFUSED.value).otherwise(
        TransactionStatus.COMMITTED.value
    )
    was_aborted = F.coalesce(F.array_contains("aborted", F.col("xid")), F.lit(False))
    decided = {
        "fate": F.when(was_aborted, TransactionStatus.ABORTED.value).otherwise(F.coalesce("of_unit", of_stretch)),
        "commit_lsn": F.when(has_own, F.col("unit_lsn")).otherwise(F.col("commit_lsn")),
        "commit_ts": F.when(has_own, F.col("unit_ts")).otherwise(F.col("commit_ts")),
        "top_xid": F.when(has_own, F.col("unit_xid")).otherwise(F.col("top_xid")),
    }
    kept = [name for name in MESSAGE_SCHEMA.names if name not in decided]
    return joined.select(*kept, "scope", *(column.alias(name) for name, column in decided.items()))


def is_refused(origins: Origins) -> Column:
    """Of rows with the `origin` of their transaction, NULL if it is local."""
    refused = F.col("origin").isin(*origins.skipped)
    if origins.accepted is not None:
        refused |= ~F.col("origin").isin(*origins.accepted)
    return F.coalesce(refused, F.lit(False))


def only_committed(rows: DataFrame) -> DataFrame:
    return rows.where(F.col("fate") == TransactionStatus.COMMITTED.value)


def after(rows: DataFrame, reached: Mapping[int, int]) -> DataFrame:
    """Without the commits that tables have already: by OID, the last one."""
    for oid, lsn in reached.items():
        rows = rows.where((F.col("relation") != oid) | (F.col("commit_lsn") > lsn))
    return rows
