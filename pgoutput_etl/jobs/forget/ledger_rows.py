"""Erases the ledger's copies of changes and Messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load.net_effect import all_of
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.spark.delta import delta_table


def copies() -> Mapping[str, tuple[Sequence[str], Mapping[str, Column] | None]]:
    """The tables with parts of tuples or Messages: the columns that identify one, and the values that replace it; None
    to delete the row."""
    return {
        "open_transactions": (("file", "ordinal"), None),
        "messages": (("file", "ordinal"), {"content": F.lit(b"")}),
        "quarantine": (("file", "offset"), {"bytes": F.lit(None).cast("binary")}),
    }


def count_copies(ledger: DeltaLedger, positions: pa.Table) -> int:
    """Number of rows that have one of the changes. positions: file, ordinal, and offset of each."""
    return sum(_rows(ledger, table, key, positions).count() for table, (key, _) in copies().items())


def erase_copies(ledger: DeltaLedger, positions: pa.Table) -> None:
    for table, (key, values) in copies().items():
        if not _rows(ledger, table, key, positions).limit(1).count():
            continue
        same = all_of(F.col(f"t.{name}") == F.col(f"s.{name}") for name in key) & (F.col("t.source") == ledger.source)
        target = delta_table(ledger.spark, ledger.path(table)).alias("t")
        merge = target.merge(frame(ledger.spark, _keys(positions, key)).alias("s"), same)
        (merge.whenMatchedDelete() if values is None else merge.whenMatchedUpdate(set=dict(values))).execute()


def _rows(ledger: DeltaLedger, table: str, key: Sequence[str], positions: pa.Table) -> DataFrame:
    return ledger.read(table).join(frame(ledger.spark, _keys(positions, key)), list(key), "left_semi")


def _keys(positions: pa.Table, key: Sequence[str]) -> pa.Table:
    return positions.select(list(key)).group_by(list(key)).aggregate([])
