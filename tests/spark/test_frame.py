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


def test_lists_that_are_null_in_several_parts_of_a_table(spark: SparkSession) -> None:
    """As in the ledger's `transactions`, if it is on object storage and the rows come from several tasks."""
    parts = pa.list_(pa.struct([("file", pa.int64())]))
    schema = pa.schema([("xid", pa.int64()), ("fragments", parts)])
    open_ones = pa.Table.from_pylist([{"xid": 1, "fragments": [{"file": 1}]}], schema)
    ended = pa.Table.from_batches([pa.record_batch({"xid": [xid]}) for xid in (2, 3, 4)])
    table = pa.concat_tables([open_ones, ended], promote_options="permissive")
    assert [row["fragments"] for row in frame(spark, table).orderBy("xid").collect()] == [[(1,)], None, None, None]
