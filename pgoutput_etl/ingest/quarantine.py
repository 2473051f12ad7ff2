"""Rows for the ledger's quarantine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.ingest.binary_files import extract_messages
from pgoutput_etl.reasons import TORN, Reason, ReasonKind, columns_of, with_reason
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.cutoff import bytes_in_words, quarantined, reason_of, with_paths
from pgoutput_etl.transactions.outcome import TransactionStatus

_REASONS = pa.schema(
    [
        *((name, pa.int64()) for name in ("file", "offset", "length")),
        *((name, pa.string()) for name in ("path", "reason", "reason_kind")),
    ]
)


def damage_remarks(scans: Mapping[int, FileScan], path_of: Callable[[int], str]) -> list[str]:
    """One line per unreadable range, for the summary."""
    rows = map(with_reason, damage_rows(scans, path_of))
    return [bytes_in_words(row["path"], row["offset"], row["length"], row["reason"]) for row in rows]


def damage_rows(scans: Mapping[int, FileScan], path_of: Callable[[int], str]) -> list[dict[str, Any]]:
    """The unreadable ranges of all files, as rows of _REASONS."""
    rows: list[dict[str, Any]] = []
    for number, scan in sorted(scans.items()):
        for damage in scan.damages:
            place = {"file": number, "offset": damage.offset, "length": damage.size, "path": path_of(number)}
            reason = Reason(damage.reason + TORN, ReasonKind.TORN) if damage.is_torn else Reason(damage.reason)
            rows.append({**place, **columns_of(reason)})
    return rows


def unreadable(
    spark: SparkSession, damages: DataFrame, scans: Mapping[int, FileScan], path_of: Callable[[int], str]
) -> DataFrame | None:
    """Unreadable bytes: file, path, offset, length, lsn, bytes (NULL if the configuration masks columns), and reason.
    damages: their message rows."""
    reasons = damage_rows(scans, path_of)
    if not reasons:
        return None
    unreadable = damages.select("file", "offset", "lsn", F.col("body").alias("bytes"))
    return unreadable.join(F.broadcast(frame(spark, pa.Table.from_pylist(reasons, _REASONS))), ["file", "offset"])


def parts_of_transactions(
    spark: SparkSession, rows: DataFrame, assembly: Assembly, path_of: Callable[[int], str], keeps_bytes: bool
) -> DataFrame | None:
    """The fragments of quarantined transactions: file, path, offset, length, lsn (of the commit), xid, reason, and
    bytes if `keeps_bytes`. rows: all messages with their transaction status."""
    outcomes = {fragment: outcome for outcome in quarantined(assembly) for fragment in outcome.fragments}
    if not outcomes:
        return None
    fragments = rows.where(F.col("fate") == TransactionStatus.QUARANTINED.value).groupBy("file", "unit")
    parts = fragments.agg(F.min("begin").alias("begin"), F.max("end").alias("end")).collect()
    described = []
    ranges: dict[str, list[tuple[int, int, int]]] = {}
    for part in parts:
        outcome = outcomes[part["file"], part["unit"]]
        path = path_of(part["file"])
        ranges.setdefault(path, []).append((part["file"], part["begin"], part["end"]))
        place = {"file": part["file"], "offset": part["begin"], "length": part["end"] - part["begin"], "path": path}
        cause = {"lsn": outcome.commit_lsn, "xid": outcome.xid, **columns_of(with_paths(reason_of(outcome), path_of))}
        described.append({**place, **cause})
    schema = pa.schema([*_REASONS, ("lsn", pa.int64()), ("xid", pa.int64())])
    table = frame(spark, pa.Table.from_pylist(described, schema))
    return table.join(extract_messages(spark, ranges), ["file", "offset"], "left") if keeps_bytes else table
