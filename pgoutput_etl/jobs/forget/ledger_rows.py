"""Erases the ledger's copies of changes and Messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load.net_effect import all_of
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.spark.delta import delta_table


@dataclass(frozen=True, slots=True)
class _Copies:
    """key: identifies a row. is_copy: that a row `t` has a change `s`. values: what replaces a part of the row; None to
    delete it."""

    key: tuple[str, ...]
    is_copy: Column
    values: Mapping[str, Column] | None


def copies() -> dict[str, _Copies]:
    """By the ledger's table. Rows of quarantine have the bytes of several messages, which landed files still have; it
    may have the same part in several batches."""
    key = ("batch", "file", "ordinal")
    key_of_part = ("batch", "file", "offset", "length", "relation")
    same_file = F.col("t.file") == F.col("s.file")
    same = same_file & (F.col("t.ordinal") == F.col("s.ordinal"))
    end = F.col("t.offset") + F.col("t.length")
    is_within = same_file & (F.col("s.offset") >= F.col("t.offset")) & (F.col("s.offset") < end)
    return {
        "open_transactions": _Copies(key, same, None),
        "messages": _Copies(key, same, {"content": F.lit(b"")}),
        "quarantine": _Copies(
            key_of_part, is_within & F.col("t.bytes").isNotNull(), {"bytes": F.lit(None).cast("binary")}
        ),
    }


def count_copies(ledger: DeltaLedger, positions: pa.Table) -> int:
    """Number of rows that have one of the changes. positions: file, ordinal, and offset of each."""
    return sum(_rows(ledger, table, own, positions).count() for table, own in copies().items())


def erase_copies(ledger: DeltaLedger, positions: pa.Table) -> int:
    """Returns the number of rows that had one of the changes."""
    erased = 0
    for table, own in copies().items():
        rows = _rows(ledger, table, own, positions).localCheckpoint()
        count = rows.count()
        if count:
            same = all_of(F.col(f"t.{name}").eqNullSafe(F.col(f"s.{name}")) for name in own.key)
            target = delta_table(ledger.spark, ledger.path(table)).alias("t")
            merge = target.merge(rows.distinct().alias("s"), (F.col("t.source") == ledger.source) & same)
            merge = merge.whenMatchedDelete() if own.values is None else merge.whenMatchedUpdate(set=dict(own.values))
            merge.execute()
        erased += count
    return erased


def _rows(ledger: DeltaLedger, table: str, own: _Copies, positions: pa.Table) -> DataFrame:
    """The keys of the rows."""
    changes = frame(ledger.spark, positions).alias("s")
    return ledger.read(table).alias("t").join(changes, own.is_copy, "left_semi").select(*own.key)
