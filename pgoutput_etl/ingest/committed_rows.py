"""Committed changes that are read from the archive again, for backfills."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.ingest.rows import count_changes
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.targets.plan import TableChanges

R = TypeVar("R")


class CommittedRows(Protocol):
    """Committed changes of some tables."""

    def after(self, lsns: Mapping[int, int]) -> CommittedRows:
        """These changes without those up to a commit LSN. lsns: by relation OID."""
        ...

    def plus(self: R, other: R) -> R:
        """These changes and others."""
        ...

    def counts(self, history: RelationHistory) -> dict[int, TableChanges]:
        """Summaries of the relations' changes, by OID."""
        ...


@dataclass(frozen=True, slots=True)
class SparkRows:
    """frame: one row per change, with the status of its transaction."""

    frame: DataFrame

    def after(self, lsns: Mapping[int, int]) -> SparkRows:
        frame = self.frame
        for oid, lsn in lsns.items():
            frame = frame.where((F.col("relation") != oid) | (F.col("commit_lsn") > lsn))
        return SparkRows(frame)

    def plus(self, other: SparkRows) -> SparkRows:
        return SparkRows(self.frame.unionByName(other.frame, allowMissingColumns=True))

    def through(self, lsn: int) -> SparkRows:
        """These changes without those after a commit LSN."""
        return SparkRows(self.frame.where(F.col("commit_lsn") <= lsn))

    def counts(self, history: RelationHistory) -> dict[int, TableChanges]:
        return count_changes(self.frame, history)
