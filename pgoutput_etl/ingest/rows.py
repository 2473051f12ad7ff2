"""A batch's message rows with the status of their transactions, and the changes to apply from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.changes.events import ROW_SCHEMA
from pgoutput_etl.ingest.executors import (
    TransactionFilter,
    batch_statistics,
    committed_positions,
    ended_transactions,
    logical_messages,
    message_rows,
    of_kind,
    row_positions,
    rows_with_status,
    version_spans,
)
from pgoutput_etl.scan.blocks import BlockKind
from pgoutput_etl.scan.message_row import CHANGE_TAGS
from pgoutput_etl.schema.relation_history import CommitPosition, RelationHistory, RelationSpan
from pgoutput_etl.schema.version_spans import RowPositions
from pgoutput_etl.targets.plan import SchemaSpan, TableChanges
from pgoutput_etl.targets.target_plan import relation_spans
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.statistics import BatchStatistics, CommitWindow, StatisticsRequest
from pgoutput_etl.transactions.status_lookup import StatusLookup


def _by_file(rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Stretches of rows of one file."""
    files = rows.column("file").to_numpy()
    begins = [0, *(np.flatnonzero(np.diff(files)) + 1).tolist()]
    for begin, end in zip(begins, [*begins[1:], len(files)], strict=True):
        yield int(files[begin]), rows.slice(begin, end - begin)


@dataclass(frozen=True)
class MessageRows:
    """A batch's message rows, as blocks, and what became of them.

    blocks: of the files that were scanned, of which those with a number in `left_out` are none of the batch's. waiting:
    changes of transactions that earlier batches left open.
    """

    spark: SparkSession
    blocks: DataFrame
    waiting: DataFrame | None
    left_out: frozenset[int]
    assembly: Assembly

    @cached_property
    def statuses(self) -> StatusLookup:
        """Once all files are assembled."""
        outcomes = (*self.assembly.outcomes, *self.assembly.open_outcomes())
        return StatusLookup.of(outcomes, self.assembly.watermarks, self.left_out, self.assembly.origins)

    def statistics(self, request: StatisticsRequest) -> BatchStatistics:
        return batch_statistics(self._all_blocks(), self.statuses, request)

    def positions(self, oids: Collection[int], windows: Mapping[int, CommitWindow]) -> dict[int, RowPositions]:
        """Of each committed row of these relations."""
        return committed_positions(self.changes().where(F.col("relation").isin(*oids)), self.statuses, windows)

    def changes(self) -> DataFrame:
        """Blocks of all changes, those that waited too."""
        return self._blocks_of_kinds(BlockKind.CHANGE, BlockKind.WAITING)

    def logical_messages(self) -> DataFrame:
        """The logical decoding Messages that count, those that waited too; those of no transaction maybe repeatedly."""
        return logical_messages(self._blocks_of_kinds(BlockKind.LOGICAL, BlockKind.WAITING_LOGICAL), self.statuses)

    def _blocks_of_kinds(self, new: BlockKind, waiting: BlockKind) -> DataFrame:
        found = of_kind(self.blocks, new)
        return found if self.waiting is None else found.unionByName(of_kind(self.waiting, waiting))

    def ended(self, which: TransactionFilter | None = None) -> DataFrame:
        """The ordinary transactions within a file."""
        return ended_transactions(self.blocks, self.statuses, which)

    def messages(self, *kinds: BlockKind) -> DataFrame:
        """A row per message of the batch's files: for what is rare."""
        rows = message_rows(of_kind(self.blocks, *kinds))
        return rows.where(~F.col("file").isin(*self.left_out)) if self.left_out else rows

    def with_status(self) -> DataFrame:
        """One row per message, with the status of its transaction, including waiting changes. Slow: for rare cases."""
        return rows_with_status(self._all_blocks(), self.statuses)

    def changes_with_status(self) -> DataFrame:
        """As `with_status`, only changes."""
        return rows_with_status(self.changes(), self.statuses)

    def content_with_status(self) -> DataFrame:
        """As `with_status`, only changes and Messages of the batch's own files."""
        return rows_with_status(of_kind(self.blocks, BlockKind.CHANGE, BlockKind.LOGICAL), self.statuses)

    def _all_blocks(self) -> DataFrame:
        return self.blocks if self.waiting is None else self.blocks.unionByName(self.waiting)


def count_changes(rows: DataFrame, history: RelationHistory) -> dict[int, TableChanges]:
    """By OID, of committed rows with the outcome of their transactions: little comes to the driver, whatever their
    changes."""
    tag = F.col("tag")
    position = F.struct("commit_lsn", "file", "ordinal")
    unchanged = F.col("unchanged").isNotNull()
    moves = unchanged & (F.col("old_kind") == "K")
    counted = rows.groupBy("relation").agg(
        *(F.sum((tag == t).cast("long")).alias(t) for t in CHANGE_TAGS),
        F.max(F.when(tag == "T", position)).alias("truncated_at"),
        F.array_distinct(F.flatten(F.collect_set("unchanged"))).alias("unchanged"),
        F.coalesce(F.bool_or(moves), F.lit(False)).alias("moves_toast"),
        F.max(position).alias("last_row"),
    )
    counts = {row.relation: row for row in counted.collect()}
    runs = _runs(rows, history, counts)
    return {
        oid: TableChanges(
            oid,
            row.I,
            row.U,
            row.D,
            row.T,
            None if row.truncated_at is None else tuple(row.truncated_at),
            frozenset(row.unchanged),
            row.moves_toast,
            runs=runs[oid],
            last_row=tuple(row.last_row),
        )
        for oid, row in counts.items()
    }


def _runs(rows: DataFrame, history: RelationHistory, oids: Iterable[int]) -> dict[int, tuple[RelationSpan, ...]]:
    versions = {oid: history.versions(oid) for oid in oids}
    several = {oid: each for oid, each in versions.items() if len(each.relations) > 1}
    found = {
        oid: tuple(RelationSpan((0, 0, 0), relation) for relation in each.relations) for oid, each in versions.items()
    }
    if not several:
        return found
    spans = version_spans(rows, several)
    return found | relation_spans({oid: spans.get(oid, ()) for oid in several}, several, partial(row_positions, rows))


def messages_to_apply(
    rows: DataFrame, changes: TableChanges, segment: SchemaSpan, with_truncates: bool = False
) -> DataFrame:
    """The rows of one relation in a segment, since it was last truncated, as changes.events takes them."""
    of_table = rows.where(F.col("relation") == changes.oid)
    if not with_truncates:
        of_table = of_table.where(F.col("tag") != "T")
    if changes.truncated_at is not None:
        of_table = of_table.where(_is_behind(changes.truncated_at, False))
    if segment.start is not None:
        of_table = of_table.where(_is_behind(segment.start, True))
    if segment.end is not None:
        of_table = of_table.where(~_is_behind(segment.end, True))
    return of_table.select(*ROW_SCHEMA.names)


def _is_behind(place: CommitPosition, or_there: bool) -> Column:
    lsn, file, ordinal = (F.lit(part) for part in place)
    further = F.col("ordinal") >= ordinal if or_there else F.col("ordinal") > ordinal
    later = (F.col("file") > file) | ((F.col("file") == file) & further)
    return (F.col("commit_lsn") > lsn) | ((F.col("commit_lsn") == lsn) & later)
