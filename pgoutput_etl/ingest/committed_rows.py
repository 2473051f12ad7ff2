"""Committed changes that backfills reread from the archive."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.ingest.executors import batch_statistics, committed_changes, committed_positions
from pgoutput_etl.scan.blocks import UNPACKED_BY
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.schema.version_spans import RowPositions
from pgoutput_etl.targets.plan import TableChanges
from pgoutput_etl.targets.target_plan import changes_in
from pgoutput_etl.transactions.statistics import BatchStatistics, CommitRange, StatisticsRequest
from pgoutput_etl.transactions.status_lookup import StatusLookup


@dataclass(frozen=True, slots=True)
class CommittedBlocks:
    """Committed changes of some tables. blocks: of changes. windows: the commits to use, by relation OID; without a
    window, all of them. unique: OIDs of relations with one INSERT for each replica identity, and no other changes."""

    blocks: DataFrame
    statuses: StatusLookup
    windows: Mapping[int, CommitRange]
    unique: frozenset[int] = frozenset()

    @property
    def spark(self) -> SparkSession:
        return self.blocks.sparkSession

    def after(self, lsns: Mapping[int, int]) -> CommittedBlocks:
        """These changes, without those up to a commit LSN. lsns: by relation OID."""
        return replace(self, windows=windows_after(self.windows, lsns))

    def plus(self, later: CommittedBlocks) -> CommittedBlocks:
        """These changes plus later ones, within the windows of the later ones."""
        return replace(later, blocks=self.blocks.unionByName(later.blocks))

    def through(self, lsn: int) -> CommittedBlocks:
        """These changes, without those after a commit LSN, for relations that have a window."""
        windows = {oid: replace(own, last=min(own.last, lsn)) for oid, own in self.windows.items()}
        return replace(self, windows=windows)

    def counts(self, history: RelationHistory) -> dict[int, TableChanges]:
        """Summaries of the relations' changes, by OID."""
        return changes_in(self, history, self.windows)

    def commits(self) -> DataFrame:
        """The relation and commit LSN of each transaction's changes to a table."""
        changes = committed_changes(self.blocks, self.statuses, self.windows)
        return changes.select("relation", "commit_lsn").distinct()

    def statistics(self, request: StatisticsRequest) -> BatchStatistics:
        return batch_statistics(self.blocks, self.statuses, request)

    def positions(self, oids: Collection[int], windows: Mapping[int, CommitRange]) -> dict[int, RowPositions]:
        return committed_positions(self._changes_of(oids), self.statuses, windows)

    def changes(self) -> DataFrame:
        return self.blocks

    def collect_changes(self, oids: Collection[int]) -> pa.Table:
        """The blocks with changes of these relations."""
        return self._changes_of(oids).select("relation", *UNPACKED_BY).toArrow()

    def _changes_of(self, oids: Collection[int]) -> DataFrame:
        return self.blocks.where(F.col("relation").isin(*oids))


def windows_after(windows: Mapping[int, CommitRange], lsns: Mapping[int, int]) -> dict[int, CommitRange]:
    """The windows, without commits up to an LSN. lsns: by relation OID."""
    owns = {oid: windows.get(oid, CommitRange()) for oid in lsns}
    return {**windows, **{oid: replace(own, first=max(own.first, lsns[oid] + 1)) for oid, own in owns.items()}}
