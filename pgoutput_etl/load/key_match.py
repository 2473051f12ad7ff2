"""Rows of a target that have a key of the batch: the condition that finds them, and whether there are any."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.changes.key_facts import Ranges, hashes_of, ranged
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.load.batch_keys import BatchKeys
from pgoutput_etl.load.delta_types import to_event
from pgoutput_etl.load.net_effect import all_of, net_key_parts, target_key_parts
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.arrow_types import spark_type
from pgoutput_etl.spark.delta import files_left, read_table
from pgoutput_etl.types import ColumnType

# Concurrent transactions commit their rising keys in any order, so that a batch begins among the last keys of the one
# before. Up to so many files, and keys in them, are looked at.
_NEAR_FILES = 4

_NEAR_KEYS = 10_000


def same_key(shape: TableShape, ranges: Ranges) -> Column:
    """Of a target's row `t` and a net row `s`; ranges: that the keys of all net rows are in, by which Delta leaves
    files of the target out."""
    pairs = zip(target_key_parts(shape, "t."), net_key_parts(shape, "s."), strict=True)
    # A key that PostgreSQL holds to be unique has no NULL, and Spark joins best by plain equality.
    may_be_null = not shape.has_unique_key or any(shape.columns[i].type.may_be_unrepresentable for i in shape.key)
    condition = all_of(stored.eqNullSafe(key) if may_be_null else stored == key for stored, key in pairs)
    for stored, is_within in _within(shape, ranges, "t."):
        condition = (is_within | stored.isNull() if may_be_null else is_within) & condition
    return condition


def key_ranges(net: DataFrame, shape: TableShape) -> Ranges:
    """The least and the greatest value of those columns of the key by which Delta leaves files out."""
    limits = [f(F.col(f"c{i}")).alias(f"{f.__name__}{i}") for i in ranged(shape) for f in (F.min, F.max)]
    if not limits:
        return {}
    [found] = net.agg(*limits).toArrow().to_pylist()  # rows of Spark's would have times in the driver's own zone
    return {i: (found[f"min{i}"], found[f"max{i}"]) for i in ranged(shape)}


def keys_are_absent(
    spark: SparkSession, path: str, shape: TableShape, keys: BatchKeys, rows: int | None = None
) -> bool:
    """Whether it is certain that no row of the target has one of the batch's keys: by the statistics of its files, and
    by the keys in few of them. `rows`: how many it has, if that is known."""
    if not keys.facts.are_known or not keys.facts.rows:
        return not keys.facts.rows
    if not keys.facts.ranges and (rows is None or rows > _NEAR_KEYS):
        return False  # all of its keys would have to be looked at
    target = read_table(spark, path)
    near = target
    for _, is_within in _within(shape, keys.facts.ranges):
        near = near.where(is_within)
    files = files_left(target, near)
    if files is None or files > _NEAR_FILES:
        return False
    return not files or _are_others(near, shape, keys)


def _are_others(near: DataFrame, shape: TableShape, keys: BatchKeys) -> bool:
    """Whether the keys of these rows are none of the batch's; False if they are too many to look at."""
    columns = [to_event(F.col(quoted(shape.columns[i].name)), shape.columns[i].type) for i in shape.key]
    found = near.select(*(column.alias(f"c{n}") for n, column in enumerate(columns))).limit(_NEAR_KEYS + 1).toArrow()
    if found.num_rows > _NEAR_KEYS:
        return False
    hashes = hashes_of([column.combine_chunks() for column in found.columns], shape)
    return hashes is not None and not keys.have_any(hashes)


def _within(shape: TableShape, ranges: Ranges, alias: str = "") -> Iterator[tuple[Column, Column]]:
    """Columns of a target's key, and whether they are in their range."""
    for i, (least, greatest) in ranges.items():
        if least is not None:
            column, of = F.col(f"{alias}{quoted(shape.columns[i].name)}"), shape.columns[i].type
            yield column, column.between(_literal(least, of), _literal(greatest, of))


def _literal(value: Any, of: ColumnType) -> Column:
    """By way of its text, as Python's dates go through a calendar that skipped ten days in 1582. Spark makes it a
    constant before Delta looks at it."""
    if isinstance(value, int | str):
        return F.lit(value)
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    return F.lit(text).cast(spark_type(of.arrow))
