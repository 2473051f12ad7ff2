"""Registers the data source `pgoutput` in a Spark session.

Spark makes the source in one Python process, plans in another, and reads in the workers; the source and its reader are
pickled in between. The plan is made with the source and travels with it, so that the archive is inspected once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pgoutput_etl.datasource.options import ReadOptions
from pgoutput_etl.datasource.read_plan import ReadPlan, plan_read
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.spark.arrow_types import spark_schema

FORMAT = "pgoutput"


class ArchiveReader(DataSourceReader):
    """Reads the archive as it was when its frame was made.

    It pushes no filters down: Spark 4.2 applies those of one query to later queries of the same frame that have none.
    """

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan

    def partitions(self) -> list[InputPartition]:
        parts = [InputPartition(part) for part in self.plan.parts()]
        return parts if self.plan.rows.more is None else [*parts, InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.plan.read(partition.value)


class ArchiveSource(DataSource):
    """`spark.read.format("pgoutput")`."""

    _plan: ReadPlan | None = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return spark_schema(self._planned().schema)

    def reader(self, schema: StructType) -> ArchiveReader:  # noqa: ARG002
        return ArchiveReader(self._planned())

    def streamReader(self, schema: StructType) -> NoReturn:  # noqa: ARG002, N802
        raise ConfigError("readStream: not supported: read batches with the option from_lsn, or the tables of apply")

    def _planned(self) -> ReadPlan:
        if self._plan is None:
            self._plan = plan_read(ReadOptions.of(dict(self.options)))
        return self._plan


def register(spark: SparkSession) -> None:
    """Makes `spark.read.format("pgoutput")` and SQL's `USING pgoutput` known in the session."""
    spark.dataSource.register(ArchiveSource)
