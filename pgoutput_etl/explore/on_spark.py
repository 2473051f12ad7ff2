"""Inspects an archive on Spark, and makes lazy Spark frames from its files."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.console import no_progress
from pgoutput_etl.explore.archive_rows import FileReader, RowView, batches_of_files
from pgoutput_etl.ingest.binary_files import map_files
from pgoutput_etl.ingest.inspection_runner import SparkRunner, list_on_spark
from pgoutput_etl.ingest.listing import size_limit
from pgoutput_etl.inspection.archive import Inspection, inspect_archive
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.spark.connect import frame


def inspect_on_spark(spark: SparkSession, paths: Iterable[str], framing: Framing) -> tuple[Inspection, int]:
    """The inspection, and the largest readable file size in bytes."""
    with SparkRunner(spark, framing) as runner:
        inspection = inspect_archive(list_on_spark(spark, paths), runner, no_progress)
    return inspection, size_limit(spark)


def frame_of_files(
    spark: SparkSession, view: RowView, read_file: FileReader, schema: pa.Schema, more: pa.Table | None
) -> DataFrame:
    """The rows of the view's files, plus `more`. The frame is lazy, so the files must not change before it is
    evaluated."""
    if not view.tasks:
        return frame(spark, schema.empty_table() if more is None else more)
    rows = map_files(spark, view.tasks, partial(batches_of_files, read_file), schema)
    return rows if more is None else rows.unionByName(frame(spark, more))
