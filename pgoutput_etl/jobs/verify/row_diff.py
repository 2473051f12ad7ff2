"""Rows of two sides, as texts, beside each other: by their key, or in a bag as many of each as there are.

Of a difference: kind, n (rows), columns (those that differ), lsn, ts and xid (who wrote it last here), xmin (there),
since (whether that is newer than all that was applied), unknown, and d… and o…, the texts on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pgoutput_etl.jobs.verify.canonical_text import ComparedColumn
from pgoutput_etl.jobs.verify.report import Difference, LastWriter
from pgoutput_etl.jobs.verify.request import VerifyRequest
from pgoutput_etl.jobs.verify.row_text import text_names
from pgoutput_etl.load.net_effect import all_of

_ONLY_DELTA, _ONLY_OTHER, _DIFFERS, _SAME = "only_delta", "only_other", "differs", "same"

_MOST_TRANSACTIONS = 10


def row_differences(
    ours: DataFrame,
    theirs: DataFrame,
    columns: Sequence[ComparedColumn],
    key: Sequence[int],
    newest: int | None,
    ended: DataFrame | None = None,
) -> DataFrame:
    """Also rows that are the same as far as is known, where some value was never sent: of kind `same`.

    `ended`: of a mode that keeps them, rows that were there, with who took them away in lsn, ts and xid.
    """
    width = len(columns)
    found = _of_keys(ours, _complete(theirs), columns, key) if key else _of_bags(ours, _complete(theirs), width)
    if key and ended is not None:
        found = _with_who_ended(found, ended, key)
    unknown = F.coalesce(F.size("unknown"), F.lit(0)) > 0
    kept = found.where((F.col("kind") != _SAME) | unknown)
    return kept.withColumn("since", _is_newer(F.col("xmin"), newest))


def _complete(theirs: DataFrame) -> DataFrame:
    for name, kind in (("unknown", "array<int>"), ("xmin", "bigint")):
        if name not in theirs.columns:
            theirs = theirs.withColumn(name, F.lit(None).cast(kind))
    return theirs


def _is_newer(xid: Column, newest: int | None) -> Column:
    """As xids.is_newer."""
    if newest is None:
        return F.lit(False)
    return F.coalesce(F.pmod(xid - newest + 2**31, F.lit(2**32)) > 2**31, F.lit(False))


def _side(rows: DataFrame, letter: str, key: Sequence[int], width: int, others: Sequence[Column]) -> DataFrame:
    """t… under another letter, and `copy`: rows of one key are told apart, though there should be one."""
    names = text_names(width)
    one_key = Window.partitionBy(*(f"t{i}" for i in key)).orderBy(*names)
    texts = (F.col(name).alias(f"{letter}{i}") for i, name in enumerate(names))
    return rows.select(*texts, *others, F.row_number().over(one_key).alias(f"{letter}_copy"))


def _of_keys(ours: DataFrame, theirs: DataFrame, columns: Sequence[ComparedColumn], key: Sequence[int]) -> DataFrame:
    width = len(columns)
    here = _side(ours, "d", key, width, [F.col(name) for name in ("lsn", "ts", "xid", "unknown")])
    there = _side(theirs, "o", key, width, [F.col("xmin"), F.col("unknown").alias("o_unknown")])
    same = all_of(F.col(f"d{i}").eqNullSafe(F.col(f"o{i}")) for i in key)
    joined = here.join(there, same & (F.col("d_copy") == F.col("o_copy")), "full_outer")
    differing = F.filter(
        F.array(*(F.when(_differs(i), F.lit(column.name)) for i, column in enumerate(columns))),
        lambda name: name.isNotNull(),
    )
    is_both = F.col("d_copy").isNotNull() & F.col("o_copy").isNotNull()
    none = F.array().cast("array<string>")
    found = joined.withColumn("columns", F.when(is_both, differing).otherwise(none))
    kind = (
        F.when(F.col("o_copy").isNull(), _ONLY_DELTA)
        .when(F.col("d_copy").isNull(), _ONLY_OTHER)
        .when(F.size("columns") > 0, _DIFFERS)
        .otherwise(_SAME)
    )
    return found.withColumn("kind", kind).withColumn("n", F.lit(1).cast("bigint"))


def _with_who_ended(found: DataFrame, ended: DataFrame, key: Sequence[int]) -> DataFrame:
    """Of rows that are there no more, the transaction that took the last one of their key away."""
    of_key = ended.groupBy(*(F.col(f"t{i}").alias(f"e{i}") for i in key))
    last = of_key.agg(F.max(F.struct("lsn", "ts", "xid")).alias("ended"))
    same = all_of(F.col(f"o{i}").eqNullSafe(F.col(f"e{i}")) for i in key)
    joined = found.join(last, same, "left")
    is_gone = F.col("kind") == _ONLY_OTHER
    stamps = {name: F.when(is_gone, F.col(f"ended.{name}")).otherwise(F.col(name)) for name in ("lsn", "ts", "xid")}
    return joined.withColumns(stamps)


def _differs(position: int) -> Column:
    is_known = [~F.coalesce(F.array_contains(unknown, position), F.lit(False)) for unknown in ("unknown", "o_unknown")]
    return ~F.col(f"d{position}").eqNullSafe(F.col(f"o{position}")) & is_known[0] & is_known[1]


def _of_bags(ours: DataFrame, theirs: DataFrame, width: int) -> DataFrame:
    """What one side has more of. A value that was never sent leaves its row without one there that is equal."""
    names = text_names(width)
    newest = F.max(F.struct("lsn", "ts", "xid")).alias("stamp")
    here = ours.groupBy(*names, "unknown").agg(F.count("*").alias("d_n"), newest)
    here = here.select(*(F.col(name).alias(f"d{i}") for i, name in enumerate(names)), "unknown", "d_n", "stamp")
    there = theirs.groupBy(*names).agg(F.count("*").alias("o_n"), F.max("xmin").alias("xmin"))
    there = there.select(*(F.col(name).alias(f"o{i}") for i, name in enumerate(names)), "o_n", "xmin")
    same = all_of(F.col(f"d{i}").eqNullSafe(F.col(f"o{i}")) for i in range(width))
    joined = here.join(there, same, "full_outer")
    more = F.coalesce("d_n", F.lit(0)) - F.coalesce("o_n", F.lit(0))
    kind = F.when(more > 0, _ONLY_DELTA).when(more < 0, _ONLY_OTHER).otherwise(_SAME)
    return joined.select(
        *(f"d{i}" for i in range(width)),
        *(f"o{i}" for i in range(width)),
        "unknown",
        F.col("stamp.lsn").alias("lsn"),
        F.col("stamp.ts").alias("ts"),
        F.col("stamp.xid").alias("xid"),
        "xmin",
        F.array().cast("array<string>").alias("columns"),
        kind.alias("kind"),
        F.abs(more).cast("bigint").alias("n"),
    )


def found_in(found: DataFrame, columns: Sequence[ComparedColumn], request: VerifyRequest) -> dict[str, Any]:
    """The fields of VerifiedTable about differences; `found` is asked several times."""
    totals = found.groupBy("kind").agg(
        F.sum("n").alias("n"),
        F.sum(F.when(F.col("since"), F.col("n")).otherwise(0)).alias("since"),
        F.sum(F.greatest(F.coalesce(F.size("unknown"), F.lit(0)), F.lit(0))).alias("unknown"),
    )
    by_kind = {row["kind"]: row for row in totals.toArrow().to_pylist()}
    real = found.where(F.col("kind") != _SAME)
    in_columns = real.select(F.explode("columns").alias("name")).groupBy("name").count().toArrow().to_pylist()
    counted = {row["name"]: row["count"] for row in in_columns}
    return {
        **{kind: by_kind[kind]["n"] if kind in by_kind else 0 for kind in (_ONLY_DELTA, _ONLY_OTHER, _DIFFERS)},
        "written_since": sum(row["since"] for kind, row in by_kind.items() if kind != _SAME),
        "unknown": sum(row["unknown"] for row in by_kind.values()),
        "columns": {column.name: counted[column.name] for column in columns if column.name in counted},
        "transactions": _transactions(real),
        "differences": _listed(real, columns, request),
    }


def _transactions(real: DataFrame) -> tuple[LastWriter, ...]:
    """The newest, with the number of differing rows that each touched last."""
    of_delta = real.where(F.col("lsn").isNotNull()).groupBy("lsn", _time().alias("time"), "xid")
    newest = of_delta.agg(F.sum("n").alias("n")).orderBy(F.desc("lsn"), "xid").limit(_MOST_TRANSACTIONS)
    return tuple(LastWriter(r["xid"], r["lsn"], r["time"], r["n"]) for r in newest.toArrow().to_pylist())


def _time() -> Column:
    return F.date_format("ts", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")


def _listed(real: DataFrame, columns: Sequence[ComparedColumn], request: VerifyRequest) -> tuple[Difference, ...]:
    """Some of them; values come to the driver only where they were asked for."""
    if not request.limit:
        return ()
    width = len(columns)
    values = [F.array(*(f"{letter}{i}" for i in range(width))).alias(letter) for letter in "do"]
    known = ("kind", "n", "columns", "xid", "lsn", _time().alias("time"), "xmin")
    chosen = real.select(*known, *(values if request.values else []))
    ordered = chosen.orderBy(F.desc_nulls_last("lsn"), F.desc_nulls_last("xmin")).limit(request.limit)
    names = [column.name for column in columns]
    return tuple(_difference(row, names) for row in ordered.toArrow().to_pylist())


def _difference(row: dict[str, Any], names: Sequence[str]) -> Difference:
    sides = []
    for letter, absent in (("d", _ONLY_OTHER), ("o", _ONLY_DELTA)):
        is_there = letter in row and row["kind"] != absent
        sides.append(dict(zip(names, row[letter], strict=True)) if is_there else None)
    return Difference(
        row["kind"], row["n"], tuple(row["columns"]), row["xid"], row["lsn"], row["time"], row["xmin"], *sides
    )
