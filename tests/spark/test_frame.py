"""Rows of the driver, on Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.spark.connect import frame

pytestmark = pytest.mark.spark


def test_an_empty_batch_loses_no_rows(spark: SparkSession) -> None:
    """Spark's createDataFrame alone returns 3 of these 9 rows."""
    sizes = [n % 3 for n in range(10)]
    batches = [pa.record_batch({"n": pa.array(range(size), pa.int64())}) for size in sizes]
    assert frame(spark, pa.Table.from_batches(batches)).count() == sum(sizes) == 9
    assert frame(spark, batches[0].schema.empty_table()).count() == 0
