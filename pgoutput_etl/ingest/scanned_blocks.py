"""The blocks of a scan: persisted by Spark, or on the driver if they are few."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.scan.blocks import BlockKind
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.spark.platform import persist, unpersist


@dataclass(frozen=True)
class ScannedBlocks:
    """Blocks (BLOCK_SCHEMA) of a batch's files; the one who scanned them releases them.

    persisted: computed once by Spark. local: the same on the driver. One of them is given.
    """

    spark: SparkSession
    persisted: DataFrame | None = None
    local: pa.Table | None = None

    @classmethod
    def of(cls, spark: SparkSession, scanned: DataFrame, is_few: bool) -> ScannedBlocks:
        """is_few: collect them now, in the scan's own job, because more jobs would take longer than the work."""
        if is_few:
            return cls(spark, local=scanned.toArrow())
        return cls(spark, persist(scanned, StorageLevel.MEMORY_AND_DISK))

    @cached_property
    def frame(self) -> DataFrame:
        return frame(self.spark, self.local) if self.persisted is None else self.persisted

    def of_kind(self, *kinds: BlockKind) -> DataFrame:
        return of_kind(self.frame, *kinds)

    def collect(self, kind: BlockKind, names: list[str]) -> pa.Table:
        if self.local is None:
            return self.of_kind(kind).select(*names).toArrow()
        return self.local.filter(pc.equal(self.local.column("kind"), kind.value)).select(names)

    def release(self) -> None:
        if self.persisted is not None:
            unpersist(self.persisted)


def of_kind(blocks: DataFrame, *kinds: BlockKind) -> DataFrame:
    return blocks.where(F.col("kind").isin(*(kind.value for kind in kinds)))
