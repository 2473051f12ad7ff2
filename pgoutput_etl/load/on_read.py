"""Target tables that are only read: merges a batch's changes into DataFrames and writes nothing."""

# ruff: noqa: ARG002 - the parameters are those of an interface

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from pgoutput_etl.config.rules import Mode
from pgoutput_etl.ingest.committed_rows import CommittedBlocks
from pgoutput_etl.load import mirror
from pgoutput_etl.load.change_source import ChangeBlocks
from pgoutput_etl.load.commit import TargetRows, WriteResult
from pgoutput_etl.load.evolve import check_migration, migrated
from pgoutput_etl.load.log_modes import LOG_MODES
from pgoutput_etl.load.removal import rows_left
from pgoutput_etl.load.table_features import FeatureNeed
from pgoutput_etl.load.table_writer import DeltaTransaction
from pgoutput_etl.load.targets import SpanWrite
from pgoutput_etl.places import Place
from pgoutput_etl.schema.layout import Layout
from pgoutput_etl.schema.migration import SchemaMigration
from pgoutput_etl.schema.removal import Removal
from pgoutput_etl.targets.plan import SchemaSpan, TableTask

_NO_COUNTS = WriteResult(0, 0, 0, 0, rows=0)


@dataclass(frozen=True, slots=True)
class FrameChanges:
    """Computes a table's rows after each of its schema spans."""

    targets: FrameTargets
    source: ChangeBlocks

    def prepared(self, task: TableTask, span: SchemaSpan) -> SpanWrite:
        def write(before: TargetRows, commit: DeltaTransaction, rows: int | None) -> WriteResult:  # noqa: ARG001
            stored = None if before is TargetRows.NOTHING else self.targets.rows(task.path)
            self.targets.written[task.path] = self._rows_after(stored, task, span)
            return _NO_COUNTS

        return write

    def compared(self, task: TableTask, span: SchemaSpan, before: TargetRows, version: int | None = None) -> None:
        """Does nothing: a read records no mismatches."""

    def _rows_after(self, stored: DataFrame | None, task: TableTask, span: SchemaSpan) -> DataFrame:
        if task.mode not in LOG_MODES:
            return mirror.rows_after(stored, span.shape, self.source.events(task, span))
        return LOG_MODES[task.mode].rows_after(stored, span.shape, self.source.event_log(task, span))


@dataclass(frozen=True, slots=True)
class FrameTargets:
    """Implements load.targets.WrittenTargets. stored: the tables' rows before the batch, by place; written: their rows
    after it, for tables that it changes or moves. Row counts are 0, because counting would read the tables."""

    stored: Mapping[Place, DataFrame]
    written: dict[Place, DataFrame] = field(default_factory=dict)

    marks_commits = True
    memory = None

    def refuse_large_rows(self, place: Place) -> None:
        pass  # nothing is written, and a reader needs less memory than a writer

    def rows(self, place: Place) -> DataFrame:
        return self.written[place] if place in self.written else self.stored[place]

    def is_running(self) -> bool:
        return False  # nothing is written, so an error from Spark ends the read and holds no table

    def pool(self, tables: int) -> Executor:
        return ThreadPoolExecutor(1)

    def archived_changes(
        self, rows: CommittedBlocks, tasks: Iterable[TableTask], commits: tuple[int, int] | None = None
    ) -> FrameChanges:
        return FrameChanges(self, ChangeBlocks(rows, rows.windows, finds_keys=False))

    def check_exists(self, place: Place, version: int = -1, commit: DeltaTransaction | None = None) -> None:
        pass  # the caller has read the table

    def count(self, place: Place) -> int:
        return 0

    def committed_steps(self, place: Place, commit: DeltaTransaction) -> dict[str, int]:
        return {}

    def last_result(self, place: Place, commit: DeltaTransaction) -> WriteResult:
        return _NO_COUNTS

    def move(
        self, old_place: Place, old_version: int, place: Place, commit: DeltaTransaction, task: TableTask | None = None
    ) -> None:
        self.written[place] = self.stored[old_place]

    def empty(self, place: Place, commit: DeltaTransaction) -> None:
        self.written[place] = self.rows(place).limit(0)

    def restore(self, place: Place, version: int | None, commit: DeltaTransaction) -> None:
        self.written.pop(place, None)

    def lay_out(self, place: Place, layout: Layout, commit: DeltaTransaction) -> tuple[str, ...]:
        return ()

    def lacking_features(self, task: TableTask, number: int, before: TargetRows) -> list[FeatureNeed]:
        return []

    def enable(self, place: Place, need: FeatureNeed, commit: DeltaTransaction) -> None:
        pass

    def evolve(self, place: Place, migration: SchemaMigration, commit: DeltaTransaction, mode: Mode) -> tuple[str, ...]:
        check_migration(lambda: self.rows(place), migration, mode)
        self.written[place] = migrated(self.rows(place), migration, mode)
        return ()

    def remove(self, place: Place, removal: Removal, commit: DeltaTransaction, mode: Mode) -> WriteResult:
        self.written[place] = rows_left(self.rows(place), removal, mode)
        return _NO_COUNTS
