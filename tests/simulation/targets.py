"""Target tables on simulated storage, written one event after the other, as replay does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from pgoutput_etl.config.rules import Mode
from pgoutput_etl.errors import TableError
from pgoutput_etl.ingest.committed_rows import CommittedBlocks
from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.load.change_source import window_of
from pgoutput_etl.load.commit import TargetRows, WriteResult
from pgoutput_etl.load.table_features import FeatureNeed
from pgoutput_etl.load.table_writer import DeltaTransaction
from pgoutput_etl.load.targets import SpanWrite
from pgoutput_etl.places import Place
from pgoutput_etl.replay.mirror import KeyedRows, Row
from pgoutput_etl.schema.layout import Layout
from pgoutput_etl.schema.migration import SchemaMigration
from pgoutput_etl.schema.removal import Removal
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.targets.mismatches import Mismatches
from pgoutput_etl.targets.plan import SchemaSpan, TableTask
from pgoutput_etl.transactions.cutoff import Cutoff, commits_before
from pgoutput_etl.transactions.statistics import CommitRange
from pgoutput_etl.transactions.status_lookup import StatusLookup
from tests.simulation.archive import SimRows
from tests.simulation.modes import Rows, migrated, needs_key, printed, rows_after, rows_left
from tests.simulation.scheduler import SimMachine, SimPool
from tests.simulation.storage import Commit, Kind, Writer
from tests.support.nights import Block, events_in

_STATEMENTS = 2  # of the ALTER TABLEs for one change of columns


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """A table's rows, as events of the shape that they were written under. is_foreign: another program has changed
    them since the job wrote all of them. is_erased: an erasure has removed some, after which a table without rows may
    still lack those that the other program has deleted."""

    shape: TableShape | None
    rows: tuple[Row, ...]
    mode: Mode = Mode.MIRROR
    is_foreign: bool = False
    is_erased: bool = False

    def having(self, rows: Iterable[Row]) -> Content:
        return replace(self, rows=tuple(rows))

    def printed(self) -> Rows:
        assert self.shape is not None or not self.rows
        return () if self.shape is None else printed(self.mode, self.shape, self.rows)


@dataclass(frozen=True, slots=True)
class _SpanChanges(ABC):
    """targets.Changes, from the events of a schema span."""

    targets: SimTargets

    def prepared(self, task: TableTask, span: SchemaSpan) -> SpanWrite:
        return partial(self.targets.write_span, task, span.shape, self._events(task, span))

    def compared(
        self, task: TableTask, span: SchemaSpan, before: TargetRows, version: int | None = None
    ) -> Mismatches | None:
        return self.targets.compared(task, span.shape, self._events(task, span), before, version)

    @abstractmethod
    def _events(self, task: TableTask, span: SchemaSpan) -> list[Row]: ...


@dataclass(frozen=True, slots=True)
class SimChanges(_SpanChanges):
    blocks: list[Block]
    statuses: StatusLookup
    windows: Mapping[int, CommitRange]

    def _events(self, task: TableTask, span: SchemaSpan) -> list[Row]:
        return events_in(self.blocks, self.statuses, window_of(task, span, self.windows), span.shape, task.mode)


@dataclass(frozen=True, slots=True)
class SimArchivedChanges(_SpanChanges):
    """commits: as targets.Targets.archived_changes."""

    rows: SimRows
    commits: tuple[int, int] | None

    def _events(self, task: TableTask, span: SchemaSpan) -> list[Row]:
        window = window_of(task, span, self.rows.windows)
        events = events_in(self.rows.blocks, self.rows.statuses, window, span.shape, task.mode)
        if self.commits is not None:
            key = KeyedRows(span.shape).key
            first, last = self.commits
            changed = {key(event) for event in events if first <= event["_lsn"] <= last}
            events = [event for event in events if key(event) in changed]
        return events


@dataclass(frozen=True, slots=True)
class SimTargets:
    """targets.Targets, for one process."""

    writer: Writer
    machine: SimMachine

    @property
    def marks_commits(self) -> bool:
        return True

    @property
    def may_overlap(self) -> bool:
        return True

    @property
    def memory(self) -> int | None:
        return None

    def refuse_large_rows(self, place: Place) -> None:
        pass

    def is_running(self) -> bool:
        return True

    def pool(self, tables: int) -> SimPool:
        return self.machine.pool(tables)

    def batch_changes(self, rows: MessageRows, cutoffs: Mapping[int, Cutoff], tasks: Iterable[TableTask]) -> SimChanges:
        blocks = rows.collect_changes([task.oid for task in tasks]).to_pylist()
        return SimChanges(self, blocks, rows.statuses, commits_before(cutoffs))

    def archived_changes(
        self,
        rows: CommittedBlocks,
        tasks: Iterable[TableTask],  # noqa: ARG002
        commits: tuple[int, int] | None = None,
    ) -> SimArchivedChanges:
        assert isinstance(rows, SimRows)
        return SimArchivedChanges(self, rows, commits)

    def exists(self, place: Place) -> bool:
        return self.writer.read_version(str(place)) >= 0

    def check_exists(self, place: Place, version: int = -1, commit: DeltaTransaction | None = None) -> None:  # noqa: ARG002
        if self.writer.read_version(str(place)) < 0:
            raise TableError(f"there is no table at {place} any more")

    def check_free(self, place: Place, is_new: bool) -> bool:
        return is_new and self.exists(place)

    def has_rows(self, place: Place) -> bool:
        return bool(self._newest(place).rows)

    def count(self, place: Place) -> int:
        return len(self._newest(place).rows)

    def applications(self, place: Place) -> set[str]:
        return {str(entry["application"]) for entry in self._metadata(place).values()}

    def committed_steps(self, place: Place, commit: DeltaTransaction) -> dict[str, int]:
        own = (commit.application, commit.batch)
        found = self._metadata(place).items()
        return {str(e["step"]): version for version, e in found if (e["application"], e["batch"]) == own}

    def last_result(self, place: Place, commit: DeltaTransaction) -> WriteResult:  # noqa: ARG002
        version = self.writer.read_version(str(place))
        return WriteResult(version, *self.writer.storage.table(str(place)).commits[version].result)

    def move(
        self,
        old_place: Place,
        old_version: int,
        place: Place,
        commit: DeltaTransaction,
        task: TableTask | None = None,  # noqa: ARG002
    ) -> None:
        self.writer.read_version(str(old_place))
        moved: Content = self.writer.storage.table(str(old_place)).read(old_version)
        self._commit(place, commit, lambda _: moved, Kind.METADATA, (len(moved.rows), 0, 0))

    def empty(self, place: Place, commit: DeltaTransaction) -> None:
        emptied = replace(self._newest(place), rows=(), is_foreign=False, is_erased=False)
        self._commit(place, commit, lambda _: emptied, Kind.CHANGE)

    def restore(self, place: Place, version: int | None, commit: DeltaTransaction) -> None:  # noqa: ARG002
        newest = self.writer.read_version(str(place))
        if newest < 0 or (version is not None and newest <= version):
            return
        table = self.writer.storage.table(str(place))
        emptied = replace(table.content(newest), rows=(), is_foreign=False, is_erased=False)
        before = emptied if version is None else table.read(version)
        self.writer.commit(str(place), lambda _: Commit("RESTORE", Kind.METADATA, lambda _: before))

    def lay_out(self, place: Place, layout: Layout, commit: DeltaTransaction) -> tuple[str, ...]:
        raise NotImplementedError("no simulated configuration has a layout")

    def lacking_features(self, task: TableTask, number: int, before: TargetRows) -> list[FeatureNeed]:  # noqa: ARG002
        return []

    def enable(self, place: Place, need: FeatureNeed, commit: DeltaTransaction) -> None:
        raise NotImplementedError("no simulated table lacks a feature")

    def evolve(self, place: Place, migration: SchemaMigration, commit: DeltaTransaction, mode: Mode) -> tuple[str, ...]:
        """In several commits without a transaction, which each look at what is left to do, or in one with it."""
        content = self._newest(place)
        has_new_key = any(migration.origins[position] is None for position in migration.key)
        if has_new_key and needs_key(mode, content.rows):
            migration.check_key()
        evolved = replace(content, shape=None, rows=migrated(mode, content.rows, migration))
        if len(evolved.rows) % 2:
            self._commit(place, commit, lambda _: evolved, Kind.METADATA)
            return ()
        metadata = asdict(replace(commit, step=f"{commit.step}:log"))
        if content.shape is not None:
            for number in range(_STATEMENTS):
                after = evolved if number == _STATEMENTS - 1 else content
                self._alter(place, after, metadata)
        return ()

    def remove(self, place: Place, removal: Removal, commit: DeltaTransaction, mode: Mode) -> WriteResult:
        content = self._newest(place)
        left = content.having(rows_left(mode, content.shape, content.rows, removal))
        self._commit(place, commit, lambda _: left, Kind.CHANGE)
        return replace(self.last_result(place, commit), rows=len(left.rows))

    def _alter(self, place: Place, after: Content, metadata: Mapping[str, Any]) -> None:
        self.writer.commit(str(place), lambda _: Commit("ALTER TABLE", Kind.METADATA, lambda _: after, None, metadata))

    def write_span(
        self,
        task: TableTask,
        shape: TableShape,
        events: list[Row],
        before: TargetRows,
        commit: DeltaTransaction,
        _: int | None,
    ) -> WriteResult:
        place, is_new = task.path, before is TargetRows.NOTHING
        counts = [0, 0, 0]
        mismatches: list[Mismatches | None] = [None]

        def apply(content: Content | None) -> Content:
            stored = () if is_new or content is None else content.rows
            rows, mismatches[0] = rows_after(task.mode, shape, stored, events)
            had = len(stored)
            counts[0], counts[2] = max(len(rows) - had, 0), max(had - len(rows), 0)
            own = Content(shape, rows, task.mode)
            if is_new or content is None or not (stored or content.is_erased):
                return own
            return replace(own, is_foreign=content.is_foreign, is_erased=content.is_erased)

        read = self.writer.storage.table(str(place))
        apply(read.content(read.version) if read.version >= 0 else None)
        kind = Kind.METADATA if is_new else Kind.CHANGE
        self._commit(place, commit, apply, kind, (counts[0], counts[1], counts[2]))
        return replace(self.last_result(place, commit), mismatches=mismatches[0])

    def compared(
        self, task: TableTask, shape: TableShape, events: list[Row], before: TargetRows, version: int | None
    ) -> Mismatches | None:
        stored = Content(None, ())
        if before is TargetRows.ROWS:
            place = str(task.path)
            stored = self._newest(task.path) if version is None else self.writer.storage.table(place).read(version)
        return rows_after(task.mode, shape, stored.rows, events)[1]

    def _commit(
        self,
        place: Place,
        commit: DeltaTransaction,
        change: Any,
        kind: Kind,
        result: tuple[int, int, int] = (0, 0, 0),
    ) -> None:
        transaction = (f"{commit.application}:{commit.step}", commit.batch)
        made = Commit(commit.step, kind, change, transaction, asdict(commit), result)
        self.writer.commit(str(place), lambda _: made)

    def _newest(self, place: Place) -> Content:
        version = self.writer.read_version(str(place))
        content: Content = self.writer.storage.table(str(place)).content(version) if version >= 0 else Content(None, ())
        return content

    def _metadata(self, place: Place) -> dict[int, Mapping[str, Any]]:
        """By version."""
        version = self.writer.read_version(str(place))
        commits = self.writer.storage.table(str(place)).commits[: version + 1]
        return {n: commit.metadata for n, commit in enumerate(commits) if commit.metadata is not None}
