"""Rows of a Delta table by their size."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.places import Place
from pgoutput_etl.spark.row_size import large_row

pytestmark = pytest.mark.spark

COLUMNS = {
    "text": "repeat('x', {n})",
    "bytes": "cast(repeat('x', {n}) as binary)",
    "items": "transform(sequence(1, {n} div 100), i -> repeat('x', 100))",
    "matrix": "array(transform(sequence(1, {n} div 8), i -> i))",
    "map": "map('k', repeat('x', {n} - 1))",
}


def test_the_largest_row_is_found_in_columns_of_every_kind(spark: SparkSession, tmp_path: Path) -> None:
    """Among other rows of its row group, and without a look at rows where the row group is too large for that."""
    size = "cast(case when id = 500 then 8000 else 800 end as int)"
    columns = [f"{value.format(n=size)} as `{name}`" for name, value in COLUMNS.items()]
    path, expected = str(tmp_path / "all"), 8 + 8000 * len(COLUMNS)
    spark.range(1000).selectExpr("id", *columns).coalesce(1).write.format("delta").save(path)

    assert large_row(spark, Place(path), limit=expected, readable=1 << 30) is None
    found = large_row(spark, Place(path), limit=expected - 1, readable=1 << 30)
    assert found is not None
    assert found.size == expected
    assert (tmp_path / "all" / found.file.rpartition("/")[2]).exists()
    unread = large_row(spark, Place(path), limit=expected - 1, readable=expected)
    assert unread is not None
    assert unread.size > expected


def test_equal_elements_of_an_array_count_although_they_are_stored_once(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    spark.range(1).selectExpr("array_repeat(repeat('x', 100), 1000) as v").write.format("delta").save(path)
    found = large_row(spark, Place(path), limit=50_000, readable=1 << 30)
    assert found is not None
    assert found.size == 100_000
