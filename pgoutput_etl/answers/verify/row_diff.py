"""Differences between the rows of two sides, as texts: joined by key or, for a bag, counted per distinct row.

Columns of a difference: kind, n (rows), columns (names of the differing ones), lsn, ts, and xid (of the last writer in
Delta), unknown, and both sides' texts, d… and o….
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pgoutput_etl.answers.verify.delta_side import ColumnChoice, DeltaSide
from pgoutput_etl.answers.verify.key_ranges import Ranges
from pgoutput_etl.answers.verify.report import Difference, LastWriter
from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.answers.verify.row_text import rows_in_ranges, text_names
from pgoutput_etl.load.net_effect import all_of
from pgoutput_etl.spark.platform import persist, unpersist
from pgoutput_etl.types.canonical_text import ComparedColumn

_ONLY_DELTA, _ONLY_OTHER, _DIFFERS, _SAME = "only_delta", "only_other", "differs", "same"

_MAX_TRANSACTIONS = 10


def differences(
    side: DeltaSide,
    choice: ColumnChoice,
    ranges: Ranges,
    numbers: Sequence[int],
    theirs: DataFrame,
    request: VerifyRequest,
) -> dict[str, Any]:
    """The fields of VerifiedTable about the rows of these ranges. theirs: the other side's rows in them."""
    columns, former = choice.columns, side.former(choice.columns)
    ours = rows_in_ranges(side.texts(columns), columns, ranges, numbers)
    ended = None if former is None else rows_in_ranges(former, columns, ranges, numbers)
    rows = row_differences(ours, theirs, columns, choice.key, ended)
    found = persist(rows, StorageLevel.DISK_ONLY)
    try:
        return summarize_differences(found, columns, choice.key, request)
    finally:
        unpersist(found)


def row_differences(
    ours: DataFrame,
    theirs: DataFrame,
    columns: Sequence[ComparedColumn],
    key: Sequence[int],
    ended: DataFrame | None = None,
) -> DataFrame:
    """Includes rows of kind `same` if some of their values were never sent.

    ended: former rows, in a mode that keeps them, with the transaction that deleted them in lsn, ts, and xid.
    """
    if "unknown" not in theirs.columns:
        theirs = theirs.withColumn("unknown", F.lit(None).cast("array<int>"))
    rows = _keyed_differences(ours, theirs, columns, key) if key else _bag_differences(ours, theirs, len(columns))
    if key and ended is not None:
        rows = _with_deleting_transaction(rows, ended, key)
    has_unknown = F.coalesce(F.size("unknown"), F.lit(0)) > 0
    return rows.where((F.col("kind") != _SAME) | has_unknown)


def _side(rows: DataFrame, letter: str, key: Sequence[int], width: int, others: Sequence[Column]) -> DataFrame:
    """t… with the side's letter, and `copy`, which numbers the rows of a key, because a faulty side may have
    several."""
    names = text_names(width)
    one_key = Window.partitionBy(*(f"t{i}" for i in key)).orderBy(*names)
    texts = (F.col(name).alias(f"{letter}{i}") for i, name in enumerate(names))
    return rows.select(*texts, *others, F.row_number().over(one_key).alias(f"{letter}_copy"))


def _keyed_differences(
    ours: DataFrame, theirs: DataFrame, columns: Sequence[ComparedColumn], key: Sequence[int]
) -> DataFrame:
    width = len(columns)
    delta = _side(ours, "d", key, width, [F.col(name) for name in ("lsn", "ts", "xid", "unknown")])
    other = _side(theirs, "o", key, width, [F.col("unknown").alias("o_unknown")])
    same = all_of(F.col(f"d{i}").eqNullSafe(F.col(f"o{i}")) for i in key)
    joined = delta.join(other, same & (F.col("d_copy") == F.col("o_copy")), "full_outer")
    differing = F.filter(
        F.array(*(F.when(_differs(i), F.lit(column.name)) for i, column in enumerate(columns))),
        lambda name: name.isNotNull(),
    )
    is_on_both = F.col("d_copy").isNotNull() & F.col("o_copy").isNotNull()
    empty = F.array().cast("array<string>")
    rows = joined.withColumn("columns", F.when(is_on_both, differing).otherwise(empty))
    kind = (
        F.when(F.col("o_copy").isNull(), _ONLY_DELTA)
        .when(F.col("d_copy").isNull(), _ONLY_OTHER)
        .when(F.size("columns") > 0, _DIFFERS)
        .otherwise(_SAME)
    )
    return rows.withColumn("kind", kind).withColumn("n", F.lit(1).cast("bigint"))


def _with_deleting_transaction(rows: DataFrame, ended: DataFrame, key: Sequence[int]) -> DataFrame:
    """Adds, to rows that only the other side has, the transaction that deleted their key's last row in Delta."""
    by_key = ended.groupBy(*(F.col(f"t{i}").alias(f"e{i}") for i in key))
    last = by_key.agg(F.max(F.struct("lsn", "ts", "xid")).alias("ended"))
    same = all_of(F.col(f"o{i}").eqNullSafe(F.col(f"e{i}")) for i in key)
    is_gone = F.col("kind") == _ONLY_OTHER
    writer = {name: F.when(is_gone, F.col(f"ended.{name}")).otherwise(F.col(name)) for name in ("lsn", "ts", "xid")}
    return rows.join(last, same, "left").withColumns(writer)


def _differs(position: int) -> Column:
    is_known = [~F.coalesce(F.array_contains(unknown, position), F.lit(False)) for unknown in ("unknown", "o_unknown")]
    return ~F.col(f"d{position}").eqNullSafe(F.col(f"o{position}")) & is_known[0] & is_known[1]


def _bag_differences(ours: DataFrame, theirs: DataFrame, width: int) -> DataFrame:
    """Rows that one side has more copies of. A row with a value that was never sent equals no row of the other side."""
    names = text_names(width)
    writer = F.max(F.struct("lsn", "ts", "xid")).alias("writer")
    delta = ours.groupBy(*names, "unknown").agg(F.count("*").alias("d_n"), writer)
    delta = delta.select(*(F.col(name).alias(f"d{i}") for i, name in enumerate(names)), "unknown", "d_n", "writer")
    other = theirs.groupBy(*names).agg(F.count("*").alias("o_n"))
    other = other.select(*(F.col(name).alias(f"o{i}") for i, name in enumerate(names)), "o_n")
    same = all_of(F.col(f"d{i}").eqNullSafe(F.col(f"o{i}")) for i in range(width))
    surplus = F.coalesce("d_n", F.lit(0)) - F.coalesce("o_n", F.lit(0))
    kind = F.when(surplus > 0, _ONLY_DELTA).when(surplus < 0, _ONLY_OTHER).otherwise(_SAME)
    facts = {"columns": F.array().cast("array<string>"), "kind": kind, "n": F.abs(surplus).cast("bigint")}
    texts = [f"{side}{i}" for side in "do" for i in range(width)]
    rows = delta.join(other, same, "full_outer").withColumns(facts)
    return rows.select(*texts, "unknown", "writer.*", *facts)


def summarize_differences(
    rows: DataFrame, columns: Sequence[ComparedColumn], key: Sequence[int], request: VerifyRequest
) -> dict[str, Any]:
    """The fields of VerifiedTable about differences. key: positions of its columns. Evaluates `rows`, from
    row_differences, several times."""
    totals = rows.groupBy("kind").agg(
        F.sum("n").alias("n"),
        F.sum(F.greatest(F.coalesce(F.size("unknown"), F.lit(0)), F.lit(0))).alias("unknown"),
    )
    by_kind = {row["kind"]: row for row in totals.toArrow().to_pylist()}
    differing = rows.where(F.col("kind") != _SAME)
    names = differing.select(F.explode("columns").alias("name"))
    counts = {row["name"]: row["count"] for row in names.groupBy("name").count().toArrow().to_pylist()}
    return {
        **{kind: by_kind[kind]["n"] if kind in by_kind else 0 for kind in (_ONLY_DELTA, _ONLY_OTHER, _DIFFERS)},
        "unknown": sum(row["unknown"] for row in by_kind.values()),
        "columns": {column.name: counts[column.name] for column in columns if column.name in counts},
        "transactions": _last_writers(differing),
        "differences": _first_differences(differing, columns, key, request),
    }


def _last_writers(differing: DataFrame) -> tuple[LastWriter, ...]:
    writers = differing.where(F.col("lsn").isNotNull()).groupBy("lsn", _time().alias("time"), "xid")
    newest = writers.agg(F.sum("n").alias("n")).orderBy(F.desc("lsn"), "xid").limit(_MAX_TRANSACTIONS)
    return tuple(LastWriter(r["xid"], r["lsn"], r["time"], r["n"]) for r in newest.toArrow().to_pylist())


def _time() -> Column:
    return F.date_format("ts", "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'")


def _first_differences(
    differing: DataFrame, columns: Sequence[ComparedColumn], key: Sequence[int], request: VerifyRequest
) -> tuple[Difference, ...]:
    """At most request.limit rows. Their keys are only collected with --keys, and other values only with --values."""
    if not request.limit:
        return ()
    shown = range(len(columns)) if request.values else key if request.keys else ()
    values = [F.array(*(f"{letter}{i}" for i in shown)).alias(letter) for letter in "do"] if shown else []
    facts = ("kind", "n", "columns", "xid", "lsn", _time().alias("time"))
    ordered = differing.select(*facts, *values).orderBy(F.desc_nulls_last("lsn"))
    names = [columns[i].name for i in shown]
    rows = ordered.limit(request.limit).toArrow().to_pylist()
    return tuple(_difference(row, names, request.values) for row in rows)


def _difference(row: dict[str, Any], names: Sequence[str], has_values: bool) -> Difference:
    delta, other = (
        dict(zip(names, row[letter], strict=True)) if letter in row and row["kind"] != absent else None
        for letter, absent in (("d", _ONLY_OTHER), ("o", _ONLY_DELTA))
    )
    sides = {"delta": delta, "other": other} if has_values else {"key": delta or other}
    return Difference(row["kind"], row["n"], tuple(row["columns"]), row["xid"], row["lsn"], row["time"], **sides)
