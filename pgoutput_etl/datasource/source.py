"""Registers the data source `pgoutput` in a Spark session.

Spark creates the source in one Python process, plans in another, and reads in the workers; in between, the source and
its reader are pickled. The plan is made with the source and travels with it, so the archive is inspected only once. A
stream plans its micro-batches in one process, whose reader lives as long as the query. Each part carries its plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pgoutput_etl.datasource.options import ReadOptions
from pgoutput_etl.datasource.read_plan import ReadPlan
from pgoutput_etl.datasource.stream import ArchiveStream, PlannedArchive, StreamPart
from pgoutput_etl.datasource.stream_offset import StreamOffset
from pgoutput_etl.spark.arrow_types import spark_schema

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # before Spark 4.2, which then runs a single micro-batch for this trigger
        SupportsTriggerAvailableNow = object

FORMAT = "pgoutput"


class ArchiveReader(DataSourceReader):
    """Reads the archive as it was when its frame was created.

    It doesn't push filters down, because Spark 4.2 applies one query's filters to later unfiltered queries of the same
    frame.
    """

    def __init__(self, plan: ReadPlan) -> None:
        self.plan = plan

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(part) for part in self.plan.parts()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.plan.read(partition.value)


class ArchiveStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads files that landed since the last micro-batch."""

    def __init__(self, stream: ArchiveStream) -> None:
        self.stream = stream
        self.target: StreamOffset | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Omits the stream: tasks only call `read`."""
        return {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return StreamOffset().to_json()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self.target = self.stream.latest()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:  # noqa: ARG002, N802
        """start: None before Spark 4.2."""
        known = None if start is None else StreamOffset.of_json(start)
        return self.stream.latest(known, self.target).to_json()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        parts = self.stream.parts(StreamOffset.of_json(start), StreamOffset.of_json(end))
        return [InputPartition(part) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        part: StreamPart = partition.value
        return part.read()


class ArchiveSource(DataSource):
    """`spark.read.format("pgoutput")`, and `spark.readStream`."""

    _archive: PlannedArchive | None = None

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return spark_schema(self._planned().plan.schema)

    def reader(self, schema: StructType) -> ArchiveReader:  # noqa: ARG002
        return ArchiveReader(self._planned().plan)

    def streamReader(self, schema: StructType) -> ArchiveStreamReader:  # noqa: ARG002, N802
        archive = self._planned()
        self._archive = None  # Spark sends the source to every task of every micro-batch
        return ArchiveStreamReader(ArchiveStream(self._options(), archive))

    def _planned(self) -> PlannedArchive:
        if self._archive is None:
            self._archive = PlannedArchive.of(self._options())
        return self._archive

    def _options(self) -> ReadOptions:
        return ReadOptions.of(dict(self.options))


def register(spark: SparkSession) -> None:
    """Makes `spark.read.format("pgoutput")` and SQL's `USING pgoutput` available in the session."""
    spark.dataSource.register(ArchiveSource)
