"""A batch's message rows, with the status of their transactions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.ingest.executors import (
    ENDED_SCHEMA,
    TransactionFilter,
    batch_statistics,
    committed_positions,
    ended_in,
    ended_transactions,
    iterate_blocks,
    logical_messages,
    message_rows,
    positions_of,
    rows_with_status,
    statistics_of,
)
from pgoutput_etl.ingest.scanned_blocks import ScannedBlocks, of_kind
from pgoutput_etl.scan.blocks import UNPACKED_BY, BlockKind
from pgoutput_etl.scan.message_row import DAMAGE_TAG
from pgoutput_etl.schema.version_spans import RowPositions
from pgoutput_etl.spark.connect import frame
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.statistics import BatchStatistics, CommitRange, StatisticsRequest
from pgoutput_etl.transactions.status_lookup import StatusLookup

_CHANGES = (BlockKind.CHANGE, BlockKind.WAITING)


@dataclass(frozen=True)
class MessageRows:
    """A batch's message rows as blocks, and the assembly of their transactions.

    blocks: of all scanned files; files with a number in `left_out` don't belong to the batch. waiting: changes of
    transactions that earlier batches left open, in Spark or on the driver.
    """

    blocks: ScannedBlocks
    waiting: DataFrame | pa.Table | None
    left_out: frozenset[int]
    assembly: Assembly

    @property
    def spark(self) -> SparkSession:
        assert self.blocks.spark is not None
        return self.blocks.spark

    @cached_property
    def statuses(self) -> StatusLookup:
        """Available once all files are assembled."""
        outcomes = (*self.assembly.outcomes, *self.assembly.open_outcomes())
        return StatusLookup.of(outcomes, self.assembly.watermarks, self.left_out, self.assembly.origins)

    @property
    def are_local(self) -> bool:
        """True if the rows of the batch's files are on the driver."""
        return self.blocks.local is not None

    def statistics(self, request: StatisticsRequest) -> BatchStatistics:
        local = self._local
        if local is None:
            return batch_statistics(self._all_blocks(), self.statuses, request)
        blocks = iterate_blocks(local.drop_columns("tuples").to_batches())
        return statistics_of(blocks, self.statuses, request)

    def positions(self, oids: Collection[int], windows: Mapping[int, CommitRange]) -> dict[int, RowPositions]:
        """The positions of all committed rows of these relations, by OID."""
        if self._local is not None:
            return positions_of(iterate_blocks(self.collect_changes(oids).to_batches()), self.statuses, windows)
        return committed_positions(self.changes().where(F.col("relation").isin(*oids)), self.statuses, windows)

    def changes(self) -> DataFrame:
        """Blocks of all changes, including those of waiting transactions."""
        return of_kind(self._all_blocks(), *_CHANGES)

    def collect_changes(self, oids: Collection[int]) -> pa.Table:
        """The blocks with changes of these relations."""
        names, local = ["relation", *UNPACKED_BY], self._local
        if local is None:
            return self.changes().where(F.col("relation").isin(*oids)).select(*names).toArrow()
        is_change = pc.is_in(local.column("kind"), pa.array([kind.value for kind in _CHANGES]))
        is_chosen = pc.is_in(local.column("relation"), pa.array(sorted(oids), pa.int64()))
        return local.filter(pc.and_(is_change, is_chosen)).select(names)

    def logical_messages(self) -> DataFrame:
        """The logical decoding Messages that count, including waiting ones. Non-transactional ones may be repeated."""
        blocks = of_kind(self._all_blocks(), BlockKind.LOGICAL, BlockKind.WAITING_LOGICAL)
        return logical_messages(blocks, self.statuses)

    def ended(self, which: TransactionFilter | None = None) -> DataFrame:
        """Ordinary transactions within one file (columns of ENDED_SCHEMA), filtered by `which`."""
        return ended_transactions(self.blocks.frame, self.statuses, which)

    @cached_property
    def ended_on_driver(self) -> pa.Table:
        """Like `ended`, if the transactions fit on the driver."""
        blocks = iterate_blocks(self.blocks.collect(BlockKind.COMMIT).to_batches())
        return pa.Table.from_batches([ended_in(block, self.statuses) for block in blocks], ENDED_SCHEMA)

    def damages(self) -> DataFrame:
        """One row per unreadable range of the batch's files."""
        rows = message_rows(self.blocks.of_kind(BlockKind.DAMAGE)).where(F.col("tag") == DAMAGE_TAG)
        return rows.where(~F.col("file").isin(*self.left_out)) if self.left_out else rows

    def with_status(self) -> DataFrame:
        """One row per message, including waiting changes, with the status of its transaction. Slow, for rare cases
        only."""
        return rows_with_status(self._all_blocks(), self.statuses)

    def content_with_status(self) -> DataFrame:
        """Like `with_status`, but only changes and Messages of the batch's own files."""
        return rows_with_status(self.blocks.of_kind(BlockKind.CHANGE, BlockKind.LOGICAL), self.statuses)

    def _all_blocks(self) -> DataFrame:
        if self.waiting is None:
            return self.blocks.frame
        waiting = frame(self.spark, self.waiting) if isinstance(self.waiting, pa.Table) else self.waiting
        return self.blocks.frame.unionByName(waiting)

    @cached_property
    def _local(self) -> pa.Table | None:
        """All blocks, if they are on the driver."""
        if self.blocks.local is None or self.waiting is None:
            return self.blocks.local
        if not isinstance(self.waiting, pa.Table):
            return None
        return pa.concat_tables([self.blocks.local, self.waiting.select(self.blocks.local.column_names)])
