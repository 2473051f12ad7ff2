"""What can't be read, and what therefore can't be applied, as rows: of changes that can, and for the ledger."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.ingest.scan import extract_messages
from pgoutput_etl.scan.file_summary import FileScan
from pgoutput_etl.scan.message_row import DAMAGE_TAG
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.cutoff import Cutoff, quarantined, reason_of, with_paths
from pgoutput_etl.transactions.leftovers import bytes_in_words
from pgoutput_etl.transactions.outcome import TransactionStatus

_CUTOFFS = pa.schema([("relation", pa.int64()), ("cut", pa.int64())])

_REASONS = pa.schema([("file", pa.int64()), ("offset", pa.int64()), ("path", pa.string()), ("reason", pa.string())])

TORN = "; cut off in the middle by a receiver that died: the server sent it again"


def before_cutoffs(spark: SparkSession, rows: DataFrame, of_tables: Mapping[int, Cutoff]) -> DataFrame:
    """Of committed changes, those that can be applied."""
    if not of_tables:
        return rows
    listed = [{"relation": oid, "cut": cutoff.lsn} for oid, cutoff in of_tables.items()]
    of_relations = frame(spark, pa.Table.from_pylist(listed, _CUTOFFS))
    joined = rows.join(F.broadcast(of_relations), "relation", "left")
    return joined.where(F.col("cut").isNull() | (F.col("commit_lsn") < F.col("cut"))).drop("cut")


def damage_remarks(scans: Mapping[int, FileScan], path_of: Callable[[int], str]) -> list[str]:
    """For people: one line each."""
    return [
        bytes_in_words(path_of(number), damage.offset, damage.size, damage.reason + (TORN if damage.is_torn else ""))
        for number, scan in sorted(scans.items())
        for damage in scan.damages
    ]


def unreadable(
    spark: SparkSession, messages: DataFrame, scans: Mapping[int, FileScan], path_of: Callable[[int], str]
) -> DataFrame | None:
    """The bytes that are no message, each with file, path, offset, length, lsn, bytes (NULL where the configuration
    protects columns) and reason."""
    reasons = [
        {
            "file": number,
            "offset": damage.offset,
            "path": path_of(number),
            "length": damage.size,
            "reason": damage.reason + (TORN if damage.is_torn else ""),
        }
        for number, scan in scans.items()
        for damage in scan.damages
    ]
    if not reasons:
        return None
    listed = frame(spark, pa.Table.from_pylist(reasons, pa.schema([*_REASONS, ("length", pa.int64())])))
    damaged = messages.where(F.col("tag") == DAMAGE_TAG)
    found = damaged.select("file", "offset", "lsn", F.col("body").alias("bytes"))
    return found.join(F.broadcast(listed), ["file", "offset"])


def parts_of_transactions(
    spark: SparkSession, fated: DataFrame, assembly: Assembly, path_of: Callable[[int], str], keeps_bytes: bool
) -> DataFrame | None:
    """The bytes of transactions in quarantine, from where one begins in a file to where it ends there.

    `fated`: all messages, with their fates. Each part has file, path, offset, length, lsn (of the commit), bytes (only
    if `keeps_bytes`), xid and reason.
    """
    if not quarantined(assembly):
        return None
    of_units = {fragment: outcome for outcome in quarantined(assembly) for fragment in outcome.fragments}
    own = fated.where(F.col("fate") == TransactionStatus.QUARANTINED.value).groupBy("file", "unit")
    parts = own.agg(F.min("begin").alias("begin"), F.max("end").alias("end")).collect()
    described = []
    ranges: dict[str, list[tuple[int, int, int]]] = {}
    for part in parts:
        outcome = of_units[part["file"], part["unit"]]
        path = path_of(part["file"])
        ranges.setdefault(path, []).append((part["file"], part["begin"], part["end"]))
        place = {"file": part["file"], "offset": part["begin"], "length": part["end"] - part["begin"], "path": path}
        why = {"lsn": outcome.commit_lsn, "xid": outcome.xid, "reason": with_paths(reason_of(outcome), path_of)}
        described.append({**place, **why})
    of_parts = [("length", pa.int64()), ("lsn", pa.int64()), ("xid", pa.int64())]
    listed = frame(spark, pa.Table.from_pylist(described, pa.schema([*_REASONS, *of_parts])))
    if not keeps_bytes:
        return listed
    return listed.join(extract_messages(spark, ranges), ["file", "offset"], "left")
