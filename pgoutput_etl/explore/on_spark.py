"""What explore.py asks of Spark: an archive looked into, and frames of what its files hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.explore.archive_rows import RowView, named_file
from pgoutput_etl.ingest.inspection_runner import SparkRunner, list_on_spark
from pgoutput_etl.ingest.listing import size_limit
from pgoutput_etl.ingest.scan import file_contents, per_file
from pgoutput_etl.inspection.archive import Inspection, inspect_archive
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.connect import frame


def inspect_on_spark(spark: SparkSession, paths: Iterable[str], framing: Framing) -> tuple[Inspection, int]:
    """And how many bytes a file may have."""
    with SparkRunner(spark, framing) as runner:
        found = inspect_archive(list_on_spark(spark, paths), runner, lambda _said: None)
    return found, size_limit(spark)


def frame_of_files(
    spark: SparkSession, view: RowView, of_file: Callable[[str, bytes], Iterator[pa.RecordBatch]], schema: pa.Schema
) -> DataFrame:
    """Of the files that the view reads. Lazy: they have to be there, as they were, when it is asked for."""

    def told(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for path, content in per_file(batches):
            yield from named_file(path, of_file(path, content))

    if not view.tasks:
        return frame_of_rows(spark, schema.empty_table())
    return file_contents(spark, view.tasks).mapInArrow(told, spark_schema(schema))


def frame_of_rows(spark: SparkSession, table: pa.Table) -> DataFrame:
    return frame(spark, table)
