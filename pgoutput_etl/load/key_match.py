"""Matches a target's rows with a batch's keys: the join condition, and a check that the keys are all new."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.changes.key_facts import (
    UUID_PATTERN,
    Interval,
    Ranges,
    hashes_of,
    interval,
    joined_at_small_gaps,
    ranged,
)
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.load.batch_keys import BatchKeys
from pgoutput_etl.load.net_effect import all_of, any_of, net_key_parts, target_key_parts
from pgoutput_etl.load.shared_table import tagged_target
from pgoutput_etl.load.target_columns import stored_value
from pgoutput_etl.places import Place
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.arrow_types import spark_type
from pgoutput_etl.spark.delta import files_left
from pgoutput_etl.spark.delta_log import has_bytes
from pgoutput_etl.types import ColumnType

# Concurrent transactions commit rising keys in any order, so a batch's first keys fall among the previous batch's last
# ones. The check reads at most this many files and keys.
_NEAR_FILES = 4

_NEAR_KEYS = 10_000

# With this many keys, a Spark job splits their range at gaps, into at most this many parts. For tables of up to so many
# bytes, the job would take longer than reading the files that the parts exclude.
_MANY_KEYS, _PARTS, _NOT_WORTH_SPLITTING = 10_000, 1_000, 1 << 27


def same_key(shape: TableShape, ranges: Ranges) -> Column:
    """Joins target rows `t` with net rows `s`. ranges: of the net rows' keys; Delta uses them to skip files."""
    pairs = zip(target_key_parts(shape, "t."), net_key_parts(shape, "s."), strict=True)
    # A unique key in PostgreSQL has no NULLs, and Spark joins faster on plain equality.
    may_be_null = not shape.has_unique_key or any(shape.columns[i].type.may_be_unrepresentable for i in shape.key)
    condition = all_of(stored.eqNullSafe(key) if may_be_null else stored == key for stored, key in pairs)
    for stored, is_within in _within(shape, ranges, "t."):
        condition = (is_within | stored.isNull() if may_be_null else is_within) & condition
    return condition


@dataclass(frozen=True, slots=True)
class NetFacts:
    """The number of net rows and of those that delete a row, their key ranges, and the values of further aggregates."""

    rows: int
    deletes: int
    ranges: Ranges
    others: Mapping[str, Any]


def net_facts(net: DataFrame, shape: TableShape, place: Place, others: Mapping[str, Column] | None = None) -> NetFacts:
    """Computes NetFacts. net: materialized rows from net_effect.net_rows. place: of the target. others: further
    aggregates over the rows, by name."""
    columns = [column.alias(f"other_{name}") for name, column in (others or {}).items()]
    row = _aggregated(net, shape, F.count_if("_delete").alias("deletes"), *columns)
    values = {name: row[f"other_{name}"] for name in others or {}}
    return NetFacts(row["rows"], row["deletes"], _ranges(net, row, shape, place), values)


def key_ranges(net: DataFrame, shape: TableShape, place: Place) -> Ranges:
    """Ranges of the key columns that let Delta skip files of the target."""
    return _ranges(net, _aggregated(net, shape), shape, place) if ranged(shape) else {}


def _aggregated(net: DataFrame, shape: TableShape, *others: Column) -> dict[str, Any]:
    limits = [
        f(value).alias(f"{f.__name__}{name}{i}")
        for i in ranged(shape)
        for name, value in (("", F.col(f"c{i}")), ("_number", _number(i, shape)))
        for f in (F.min, F.max)
    ]
    odd = [F.count_if(F.col(f"c{i}").isNotNull() & _number(i, shape).isNull()).alias(f"odd{i}") for i in ranged(shape)]
    aggregated = net.agg(F.count("*").alias("rows"), *others, *limits, *odd)
    rows: list[dict[str, Any]] = aggregated.toArrow().to_pylist()  # collect() converts times to another zone
    return rows[0]


def _ranges(net: DataFrame, row: dict[str, Any], shape: TableShape, place: Place) -> Ranges:
    whole = {i: interval(row[f"min{i}"], row[f"max{i}"]) for i in ranged(shape)}
    if row["rows"] < _MANY_KEYS or has_bytes(net.sparkSession, place, _NOT_WORTH_SPLITTING):
        return whole
    numbers = {i: (row[f"min_number{i}"], row[f"max_number{i}"]) for i in whole}
    return {
        i: ranges if row[f"odd{i}"] or least is None or least == greatest else _split(net, i, shape, least, greatest)
        for (i, ranges), (least, greatest) in zip(whole.items(), numbers.values(), strict=True)
    }


def _split(net: DataFrame, i: int, shape: TableShape, least: Any, greatest: Any) -> tuple[Interval, ...]:
    """Ranges that cover many keys: the least and the greatest key in each part of the whole range. least, greatest:
    values of `_number`."""
    number, size = _number(i, shape), float(greatest - least)
    is_exact = size < 2**63  # a difference of two BIGINTs may overflow
    above = (number - F.lit(least) if is_exact else number.cast("double") - F.lit(float(least))).cast("double")
    limits = (f(value) for value in (F.col(f"c{i}"), above) for f in (F.min, F.max))
    names = ("least", "greatest", "start", "end")
    parts = net.where(number.isNotNull()).groupBy(F.floor(above * F.lit(_PARTS / size)).alias("part"))
    found = parts.agg(*(limit.alias(name) for limit, name in zip(limits, names, strict=True))).toArrow().sort_by("part")
    bounds = joined_at_small_gaps(*(found.column(name).to_numpy() for name in ("start", "end")))
    return tuple((found["least"][first].as_py(), found["greatest"][last].as_py()) for first, last in bounds)


def _number(i: int, shape: TableShape) -> Column:
    """The key column as a number that sorts like its values; NULL for a text that isn't a uuid."""
    column, arrow = F.col(f"c{i}"), shape.columns[i].type.arrow
    if pa.types.is_date(arrow):
        return F.unix_date(column)
    if pa.types.is_timestamp(arrow):
        return F.unix_micros(column.cast("timestamp"))
    if pa.types.is_string(arrow):  # a uuid
        digits = F.concat(F.substring(column, 1, 8), F.substring(column, 10, 4))
        return F.when(column.rlike(UUID_PATTERN), F.conv(digits, 16, 10).cast("long"))
    return column.cast("double" if pa.types.is_decimal(arrow) else "long")


def keys_are_absent(
    spark: SparkSession, path: Place, shape: TableShape, keys: BatchKeys, rows: int | None = None
) -> bool:
    """True if no row of the target can have one of the batch's keys, judging by file statistics and, if few files
    remain, by the keys in them. rows: target row count, or None if unknown."""
    if not keys.facts.are_known or not keys.facts.rows:
        return not keys.facts.rows
    if not keys.facts.ranges and (rows is None or rows > _NEAR_KEYS):
        return False  # without ranges, all of the target's keys would have to be read
    target = tagged_target(spark, path, shape.columns)
    near = rows_within(target, shape, keys.facts.ranges)
    files = files_left(target, near)
    if files is None or files > _NEAR_FILES:
        return False
    return not files or _are_disjoint(near, shape, keys)


def _are_disjoint(near: DataFrame, shape: TableShape, keys: BatchKeys) -> bool:
    """True if none of these rows has a key of the batch; False also if there are too many rows to read."""
    columns = [stored_value(shape.columns[i]).alias(f"c{i}") for i in shape.key]
    stored = near.select(*columns).limit(_NEAR_KEYS + 1).toArrow()
    if stored.num_rows > _NEAR_KEYS:
        return False
    hashes = hashes_of([column.combine_chunks() for column in stored.columns], shape)
    return hashes is not None and not keys.may_include(hashes)


def rows_within(target: DataFrame, shape: TableShape, ranges: Ranges) -> DataFrame:
    """The target's rows whose keys are in the ranges."""
    for _, is_within in _within(shape, ranges):
        target = target.where(is_within)
    return target


def _within(shape: TableShape, ranges: Ranges, alias: str = "") -> Iterator[tuple[Column, Column]]:
    """The target's key columns that have ranges, each with the condition that its value is within one of them."""
    for i, intervals in ranges.items():
        if intervals:
            column, column_type = F.col(f"{alias}{quoted(shape.columns[i].name)}"), shape.columns[i].type
            limits = [tuple(_literal(limit, column_type) for limit in limits) for limits in intervals]
            yield column, any_of(column.between(least, greatest) for least, greatest in limits)


def _literal(value: Any, column_type: ColumnType) -> Column:
    """Dates and times are casts of text, because Spark converts Python's dates through a calendar that skips ten days
    in 1582. Spark folds the cast into a constant before Delta prunes files."""
    if isinstance(value, int | str):
        return F.lit(value)
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    return F.lit(text).cast(spark_type(column_type.arrow))
