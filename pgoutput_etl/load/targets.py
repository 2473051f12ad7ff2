"""The interface for writing a batch to target tables, and its implementation with Delta tables in Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.changes.events import HEAP_PER_BYTE, memory_for
from pgoutput_etl.config.rules import Mode
from pgoutput_etl.errors import RunError, TableError
from pgoutput_etl.ingest.committed_rows import CommittedBlocks
from pgoutput_etl.ingest.listing import heap_of
from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.load import commit as delta_commit
from pgoutput_etl.load import mirror
from pgoutput_etl.load.change_source import ChangeBlocks
from pgoutput_etl.load.commit import TargetRows, WriteResult
from pgoutput_etl.load.evolve import applications, committed_steps, evolve
from pgoutput_etl.load.layout import lay_out
from pgoutput_etl.load.log_modes import LOG_MODES
from pgoutput_etl.load.mismatches import mismatches_in_log
from pgoutput_etl.load.net_effect import TableEvents, event_key_parts, has_key, keyed_columns
from pgoutput_etl.load.removal import remove
from pgoutput_etl.load.shared_table import check_shared, tagged_target
from pgoutput_etl.load.table_features import FeatureNeed, enable, lacking_features
from pgoutput_etl.load.table_writer import DeltaTransaction, committing
from pgoutput_etl.load.target_columns import current_rows
from pgoutput_etl.places import Place
from pgoutput_etl.schema.layout import Layout
from pgoutput_etl.schema.migration import SchemaMigration
from pgoutput_etl.schema.removal import Removal
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.connect import is_connect
from pgoutput_etl.spark.delta import is_delta_table, is_in_catalog, read_table
from pgoutput_etl.spark.platform import marks_commits
from pgoutput_etl.spark.retries import again
from pgoutput_etl.spark.row_size import large_row
from pgoutput_etl.spark.session import is_running, session_settings, writes_may_overlap
from pgoutput_etl.targets.mismatches import Mismatches
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.plan import SchemaSpan, TableTask
from pgoutput_etl.transactions.cutoff import Cutoff, commits_before

T = TypeVar("T")

_READS_PER_HEAP = 4  # reading one row at a time needs memory for its row group, its page, and the row

# Makes one commit, given the rows in the target before it and their number, or None if unknown.
SpanWrite = Callable[[TargetRows, DeltaTransaction, int | None], WriteResult]


class Changes(Protocol):
    """The committed changes of the tables to write."""

    def prepared(self, task: TableTask, span: SchemaSpan) -> SpanWrite:
        """Prepares the write of a schema span: everything that changes no table."""

    def compared(
        self, task: TableTask, span: SchemaSpan, before: TargetRows, version: int | None = None
    ) -> Mismatches | None:
        """The mismatches of the span's changes with the rows before them. version: the table's version with these rows;
        None is the newest."""


class WrittenTargets(Protocol):
    """The operations on targets that the writer needs. A place is a path or a name in a catalog. Methods that take a
    DeltaTransaction make its commit only once, no matter how often they are called."""

    @property
    def marks_commits(self) -> bool:
        """False if commits can't later be recognized by their DeltaTransaction."""

    @property
    def memory(self) -> int | None:
        """Bytes of Java heap for a table's rows; None if unknown, or if rows can't be measured."""

    def is_running(self) -> bool:
        """False once Spark has ended."""

    def pool(self, tables: int) -> Executor:
        """Threads that write this many tables at the same time or one after the other."""

    def archived_changes(
        self, rows: CommittedBlocks, tasks: Iterable[TableTask], commits: tuple[int, int] | None = None
    ) -> Changes:
        """commits: the first and last commit LSN of a range; limits the changes to keys that change in it."""

    def check_exists(self, place: Place, version: int = -1, commit: DeltaTransaction | None = None) -> None:
        """Raises TableError if the table is gone. version: the one that the commit's application last wrote; needed to
        tell whether a shared table is still the same one."""

    def refuse_large_rows(self, place: Place) -> None:
        """Raises TableError if the table has a row so large that updating it would kill the Java process."""

    def count(self, place: Place) -> int: ...

    def committed_steps(self, place: Place, commit: DeltaTransaction) -> dict[str, int]:
        """The steps of this batch that a dead run committed, with their versions, from the table's history."""

    def last_result(self, place: Place, commit: DeltaTransaction) -> WriteResult:
        """The effect of the table's last commit. commit: in a shared table, only commits of its application count."""

    def move(
        self, old_place: Place, old_version: int, place: Place, commit: DeltaTransaction, task: TableTask | None = None
    ) -> None:
        """Copies a table's rows at `old_version` from its old place over whatever is at the new one. task: the table's;
        without it, rows from a shared table include other sources' columns."""

    def empty(self, place: Place, commit: DeltaTransaction) -> None:
        """Deletes all rows at a place that a table has left. Time travel still reaches them."""

    def restore(self, place: Place, version: int | None, commit: DeltaTransaction) -> None:
        """Restores the table to a version, or empties it if the version is None. commit: as in `last_result`."""

    def lay_out(self, place: Place, layout: Layout, commit: DeltaTransaction) -> tuple[str, ...]:
        """Applies the missing parts of the layout to an existing table. Returns the changes in words, including those
        that only a rebuild can make. Raises TableError."""

    def lacking_features(self, task: TableTask, number: int, before: TargetRows) -> list[FeatureNeed]:
        """The Delta features that the task's span needs and the table lacks, if it has `readers: auto`. Raises
        TableError."""

    def enable(self, place: Place, need: FeatureNeed, commit: DeltaTransaction) -> None:
        """Turns the feature on, in its own Delta commit. commit: identifies the batch."""

    def evolve(self, place: Place, migration: SchemaMigration, commit: DeltaTransaction, mode: Mode) -> tuple[str, ...]:
        """Changes the columns. Returns remarks about the layout. Raises TableError if existing rows would lack a
        key."""

    def remove(self, place: Place, removal: Removal, commit: DeltaTransaction, mode: Mode) -> WriteResult:
        """Removes the rows that left with partitions: deletes them or marks them ended, depending on the mode."""


class Targets(WrittenTargets, Protocol):
    """The target tables of a configuration."""

    @property
    def may_overlap(self) -> bool:
        """True if several threads may write at the same time."""

    def batch_changes(
        self, rows: MessageRows, cutoffs: Mapping[int, Cutoff], tasks: Iterable[TableTask]
    ) -> Changes: ...

    def check_free(self, place: Place, is_new: bool) -> bool:
        """Raises RunError or TableError if the place has anything but a table like this one. is_new: the ledger has no
        table there; also checks which sources share an existing table. Returns whether a new table exists already."""

    def has_rows(self, place: Place) -> bool:
        """The table must exist."""

    def applications(self, place: Place) -> set[str]:
        """The applications (DeltaTransaction.application) of the commits in the table's history."""


def _events_of_changed_rows(commits: tuple[int, int], events: DataFrame, shape: TableShape) -> DataFrame:
    """All events of keys that have an event within these commits; their net effect is the row's current state."""
    within = events.where(F.col("_lsn").between(*commits))
    changed = within.select(*keyed_columns(event_key_parts(shape))).distinct()
    return events.join(changed, has_key(shape), "left_semi")


@dataclass(frozen=True, slots=True)
class DeltaChanges:
    """event_filter: selects the events that set the rows of mirrored tables; None if all changes are later than the
    tables' rows."""

    spark: SparkSession
    source: ChangeBlocks
    event_filter: Callable[[DataFrame, TableShape], DataFrame] | None = None

    def prepared(self, task: TableTask, span: SchemaSpan) -> SpanWrite:
        span = with_memory(self.spark, span)
        if task.mode not in LOG_MODES:
            if self.event_filter is None:
                events = self.source.events(task, span)
            else:  # the filter may select a change that a later one supersedes
                events = TableEvents(partial(self.event_filter, self.source.typed_events(task, span), span.shape))
            return partial(again, partial(mirror.write, self.spark, task.path, span.shape, events))
        log = self.source.event_log(task, span)

        def write_in_mode(before: TargetRows, commit: DeltaTransaction, _: int | None) -> WriteResult:
            with committing(self.spark, task.path, commit, mirror.for_size(self.spark, log.size)) as table:
                return again(LOG_MODES[task.mode].write, table, span.shape, log, before)

        return write_in_mode

    def compared(
        self, task: TableTask, span: SchemaSpan, before: TargetRows, version: int | None = None
    ) -> Mismatches | None:
        if self.event_filter is not None:  # the table may have the rows after these changes, not those before
            return None
        span = with_memory(self.spark, span)
        shape, has_rows = span.shape, before is TargetRows.ROWS
        stored = tagged_target(self.spark, task.path, shape.columns, version) if has_rows else None
        if task.mode not in LOG_MODES:
            return mirror.compared(shape, self.source.events(task, span), stored)
        if not table_mode(task.mode).has_rows:
            return None
        current = None if stored is None else current_rows(stored, task.mode)
        return mismatches_in_log(self.source.event_log(task, span), shape, current)


def with_memory(spark: SparkSession, span: SchemaSpan) -> SchemaSpan:
    """The span, limited to rows that fit into Java's memory."""
    return replace(span, shape=replace(span.shape, memory=heap_of(spark)))


@dataclass(frozen=True, slots=True)
class DeltaTargets:
    spark: SparkSession

    @property
    def marks_commits(self) -> bool:
        return marks_commits(self.spark)

    @property
    def may_overlap(self) -> bool:
        return writes_may_overlap(self.spark)

    @property
    def memory(self) -> int | None:
        return None if is_connect(self.spark) else heap_of(self.spark)

    def is_running(self) -> bool:
        return is_running(self.spark)

    def pool(self, tables: int) -> Executor:
        return ThreadPoolExecutor(tables if self.may_overlap else 1)

    def batch_changes(
        self, rows: MessageRows, cutoffs: Mapping[int, Cutoff], tasks: Iterable[TableTask]
    ) -> DeltaChanges:
        changes = ChangeBlocks(rows, commits_before(cutoffs))
        changes.prepare(tasks)
        return DeltaChanges(self.spark, changes)

    def archived_changes(
        self, rows: CommittedBlocks, tasks: Iterable[TableTask], commits: tuple[int, int] | None = None
    ) -> DeltaChanges:
        changes = ChangeBlocks(rows, rows.windows, unique=rows.unique)
        if commits is not None:
            return DeltaChanges(self.spark, changes, partial(_events_of_changed_rows, commits))
        changes.prepare(tasks)
        return DeltaChanges(self.spark, changes)

    def check_exists(self, place: Place, version: int = -1, commit: DeltaTransaction | None = None) -> None:
        application = None if commit is None else commit.owner
        delta_commit.check_target_exists(self.spark, place, version, application)

    def check_free(self, place: Place, is_new: bool) -> bool:
        is_delta = (is_new or place.is_in_catalog) and is_delta_table(self.spark, place)
        if place.is_in_catalog and not is_delta and is_in_catalog(self.spark, place):
            raise RunError(f"{place} exists and is not a Delta table: move it away, or change target.catalog")
        if place.tag and not self.marks_commits:
            raise RunError(
                f"{place} is in a shared table, and this cluster refuses spark.databricks.delta.write.txnAppId, by "
                "which each source finds its own commits there: use a cluster that allows it, or no `into`"
            )
        if is_new and is_delta:
            check_shared(self.spark, place)
        return is_new and is_delta

    def refuse_large_rows(self, place: Place) -> None:
        memory = self.memory
        if memory is None:
            return
        limit = memory // HEAP_PER_BYTE
        row = large_row(self.spark, place, limit, readable=memory // _READS_PER_HEAP)
        if row is not None:
            raise TableError(
                f"{place}: expected stored rows of at most {limit:,} bytes, found one of {row.size:,} in "
                f"{row.file.rpartition('/')[2]}. It was written with more memory. {memory_for(row.size)}"
            )

    def has_rows(self, place: Place) -> bool:
        return bool(read_table(self.spark, place).limit(1).count())

    def count(self, place: Place) -> int:
        return read_table(self.spark, place).count()

    def applications(self, place: Place) -> set[str]:
        return applications(self.spark, place)

    def committed_steps(self, place: Place, commit: DeltaTransaction) -> dict[str, int]:
        return committed_steps(self.spark, place, commit)

    def last_result(self, place: Place, commit: DeltaTransaction) -> WriteResult:
        return delta_commit.write_result(self.spark, place, commit.application)

    def move(
        self, old_place: Place, old_version: int, place: Place, commit: DeltaTransaction, task: TableTask | None = None
    ) -> None:
        again(delta_commit.move, self.spark, old_place, old_version, place, commit, task)

    def empty(self, place: Place, commit: DeltaTransaction) -> None:
        again(delta_commit.empty, self.spark, place, commit)

    def restore(self, place: Place, version: int | None, commit: DeltaTransaction) -> None:
        again(delta_commit.restore, self.spark, place, version, commit)

    def lay_out(self, place: Place, layout: Layout, commit: DeltaTransaction) -> tuple[str, ...]:
        with session_settings(self.spark, commit.user_metadata()) as session:
            changes = again(lay_out, session, place, layout)
        return (*changes.changes, *changes.remarks)

    def lacking_features(self, task: TableTask, number: int, before: TargetRows) -> list[FeatureNeed]:
        return lacking_features(self.spark, task.path, task, number, before)

    def enable(self, place: Place, need: FeatureNeed, commit: DeltaTransaction) -> None:
        again(enable, self.spark, place, need, commit)

    def evolve(self, place: Place, migration: SchemaMigration, commit: DeltaTransaction, mode: Mode) -> tuple[str, ...]:
        return again(evolve, self.spark, place, migration, commit, mode)

    def remove(self, place: Place, removal: Removal, commit: DeltaTransaction, mode: Mode) -> WriteResult:
        again(remove, self.spark, place, removal, commit, mode)
        return replace(self.last_result(place, commit), rows=self.count(place))
