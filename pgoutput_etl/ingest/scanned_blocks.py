"""The blocks of a scan: persisted by Spark or, if there are few, on the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.ingest.listing import even_tasks
from pgoutput_etl.landing.fingerprint import ScanTask
from pgoutput_etl.scan.blocks import UNPACKED_BY, BlockKind
from pgoutput_etl.spark.connect import frame, is_connect
from pgoutput_etl.spark.platform import persist, unpersist
from pgoutput_etl.spark.session import temporarily
from pgoutput_etl.spark.workers import first_scan

_FEW_BYTES = 1 << 22  # total size of stored files whose blocks fit on the driver, however well they are compressed

_PARTITION_BYTES = 1 << 23  # as stored


@dataclass(frozen=True)
class ScannedBlocks:
    """Blocks (BLOCK_SCHEMA) of a batch's files. The caller of the scan must release them.

    persisted: computed once by Spark. local: on the driver. Exactly one of the two is given. size: bytes of the files.
    spark: None if no session is available to read local blocks.
    """

    spark: SparkSession | None
    persisted: DataFrame | None = None
    local: pa.Table | None = None
    size: int = 0

    @classmethod
    def of(cls, spark: SparkSession, scanned: DataFrame, size: int) -> ScannedBlocks:
        """Few blocks are collected immediately, in the scan's own job, because further jobs would take longer than the
        work.

        Others are kept on executors' disks. In memory, Spark keeps them in pieces of 4 MB, and each takes 6 MB of a
        heap with G1 regions of 2 MB: a run over 10 GB exhausted a heap of 4 GB.
        """
        if size <= _FEW_BYTES:
            with first_scan(spark):
                return cls(spark, local=scanned.toArrow())
        return cls(spark, persist(scanned, StorageLevel.DISK_ONLY), size=size)

    @cached_property
    def frame(self) -> DataFrame:
        """The blocks, in few partitions: ten thousand small files are scanned by dozens of tasks, but their blocks need
        no more tasks than those of one large file, and each task would write a separate file in an append."""
        assert self.spark is not None
        if self.persisted is None:
            return frame(self.spark, self.local)
        if is_connect(self.spark):
            return self.persisted
        return self.persisted.coalesce(max(self.spark.sparkContext.defaultParallelism, self.size // _PARTITION_BYTES))

    @contextmanager
    def computed_from(self, files: Iterable[ScanTask]) -> Iterator[None]:
        """Within the context, Spark computes the blocks of these files for the first time, in tasks of equal size."""
        if self.spark is None:
            yield
            return
        with temporarily(self.spark, even_tasks(self.spark, files)), first_scan(self.spark):
            yield

    def of_kind(self, *kinds: BlockKind) -> DataFrame:
        return of_kind(self.frame, *kinds)

    def collect(self, kind: BlockKind) -> pa.Table:
        """The blocks of a kind, as `unpacked` needs them."""
        if self.persisted is not None:
            return of_kind(self.persisted, kind).select(*UNPACKED_BY).toArrow()
        assert self.local is not None
        return self.local.filter(pc.equal(self.local.column("kind"), kind.value)).select(UNPACKED_BY)

    def release(self) -> None:
        if self.persisted is not None:
            unpersist(self.persisted)


def of_kind(blocks: DataFrame, *kinds: BlockKind) -> DataFrame:
    return blocks.where(F.col("kind").isin(*(kind.value for kind in kinds)))
