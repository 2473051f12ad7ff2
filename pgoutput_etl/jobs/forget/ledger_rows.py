"""Erases the ledger's copies of changes and Messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.spark.delta import delta_table


@dataclass(frozen=True, slots=True)
class _Copies:
    """is_copy: that a row `t` has a change `s`. values: what replaces a part of the row; None to delete it."""

    is_copy: Column
    values: Mapping[str, Column] | None


def copies() -> dict[str, _Copies]:
    """By the ledger's table. Rows of quarantine have the bytes of several messages, which landed files still have."""
    same_file = F.col("t.file") == F.col("s.file")
    same = same_file & (F.col("t.ordinal") == F.col("s.ordinal"))
    end = F.col("t.offset") + F.col("t.length")
    is_within = same_file & (F.col("s.offset") >= F.col("t.offset")) & (F.col("s.offset") < end)
    return {
        "open_transactions": _Copies(same, None),
        "messages": _Copies(same, {"content": F.lit(b"")}),
        "quarantine": _Copies(is_within & F.col("t.bytes").isNotNull(), {"bytes": F.lit(None).cast("binary")}),
    }


def count_copies(ledger: DeltaLedger, positions: pa.Table) -> int:
    """Number of rows that have one of the changes. positions: file, ordinal, and offset of each."""
    return sum(_rows(ledger, table, own.is_copy, positions).count() for table, own in copies().items())


def erase_copies(ledger: DeltaLedger, positions: pa.Table) -> None:
    for table, own in copies().items():
        rows = _rows(ledger, table, own.is_copy, positions).select(*_KEYS[table]).distinct().localCheckpoint()
        if not rows.limit(1).count():
            continue
        same = F.col("t.source") == ledger.source
        for name in _KEYS[table]:
            same &= F.col(f"t.{name}").eqNullSafe(F.col(f"s.{name}"))
        merge = delta_table(ledger.spark, ledger.path(table)).alias("t").merge(rows.alias("s"), same)
        (merge.whenMatchedDelete() if own.values is None else merge.whenMatchedUpdate(set=dict(own.values))).execute()


# What identifies a row; quarantine may have the same part in several batches
_KEYS = {
    "open_transactions": ("batch", "file", "ordinal"),
    "messages": ("batch", "file", "ordinal"),
    "quarantine": ("batch", "file", "offset", "length", "relation"),
}


def _rows(ledger: DeltaLedger, table: str, is_copy: Column, positions: pa.Table) -> DataFrame:
    return ledger.read(table).alias("t").join(frame(ledger.spark, positions).alias("s"), is_copy, "left_semi")
