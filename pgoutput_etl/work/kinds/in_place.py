"""Backfill in place: rebuilds target tables, or repairs the rows that a range of commits changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from pgoutput_etl.console import Progress
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.ingest.committed_rows import CommittedBlocks
from pgoutput_etl.ledger.archive import LedgerArchive, ReadFile
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.load.rebuild import Rebuild
from pgoutput_etl.load.targets import Targets
from pgoutput_etl.load.writer import TableResult, Writer, refuse_existing_rows, unchanged_result
from pgoutput_etl.schema.diff import SchemaChange
from pgoutput_etl.schema.relation_history import CommitPosition
from pgoutput_etl.targets.location import scratch_folder
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.moves import with_removals
from pgoutput_etl.targets.plan import HELD, TableChanges, TablePlan, TableState, TableTask, own_places
from pgoutput_etl.targets.planner import make_plan
from pgoutput_etl.targets.target_plan import settings_of
from pgoutput_etl.transactions.statistics import CommitRange
from pgoutput_etl.work.batch import Nothing, Prepared
from pgoutput_etl.work.kinds.backfill_order import BackfillOrder, BackfillResult
from pgoutput_etl.work.kinds.rebuild import archive_rebuild


@dataclass(slots=True)
class InPlaceBackfill(Prepared[BackfillResult]):
    """Rebuilds or repairs tables at their current paths. tasks: tables to repair with `rows`. plan: tables to rebuild
    with `missing_rows`; reasons: why, by OID; None for repaired tables. files: those read, by OID."""

    archive: LedgerArchive
    targets: Targets
    order: BackfillOrder
    progress: Progress
    batch: Batch = field(init=False)
    check_claim: Callable[[], None] = field(init=False)
    reasons: dict[int, str | None] = field(default_factory=dict)
    tasks: dict[int, TableTask] = field(default_factory=dict)
    rows: CommittedBlocks | None = None
    rebuild: Rebuild = field(init=False)
    plan: TablePlan = field(default_factory=TablePlan)
    missing_rows: CommittedBlocks = field(init=False)
    files: dict[int, list[ReadFile]] = field(default_factory=dict)
    results: list[TableResult] = field(default_factory=list)

    @contextmanager
    def prepare(
        self, batch: Batch, check_claim: Callable[[], None]
    ) -> Iterator[InPlaceBackfill | Nothing[BackfillResult]]:
        self.batch = batch.with_order(settings_of(self.archive.config), self.order.to_json())
        self.check_claim = check_claim
        self.reasons |= {oid: self._rebuild_reason(oid) for oid in self.order.oids}
        with self._repairs(), self._rebuilds():
            if not (self.batch.resumed or self.plan.tasks or self.tasks):
                _, unchanged = self.rebuild.write(self.plan, self.missing_rows)
                self.results = [unchanged_result(result, batch.tables) for result in unchanged]
                yield Nothing(replace(self.result(), batch=0, files={}))
                return
            if not self.batch.resumed:
                paths = own_places(batch.tables, self._before)
                new = [replace(task, state=None) for task in self.plan.tasks if task.path != paths.get(task.oid)]
                refuse_existing_rows(self.targets, self.plan, new)
            yield self

    def _rebuild_reason(self, oid: int) -> str | None:
        """Why a table's state requires rebuilding it whole: "" if no range was requested; None if it can be
        repaired."""
        state = self.batch.tables.get(oid)
        if not self.order.is_range:
            return ""
        if state is None or not state.is_complete:
            return "not applied through the last commit"
        if not table_mode(state.mode).is_copy:
            return f"mode {state.mode.value}"
        if not state.key:
            return "no key"
        return "columns that its relation no longer has" if state.retired else None

    @contextmanager
    def _repairs(self) -> Iterator[None]:
        """Reads the commits from the range's first to the last applied one."""
        if not self.order.is_range:
            yield
            return
        archive, commits = self.archive, CommitRange(self.order.first_lsn or 0, self.batch.last_commit_lsn)
        oids = [oid for oid, reason in self.reasons.items() if reason is None]
        files = archive.files_with(oids, commits)
        with archive.reading(files, oids, commits) as self.rows:
            counts = self.rows.counts(archive.relations)
            for oid in oids:
                if oid in counts:
                    task = self._task(oid, counts[oid])
                    if isinstance(task, TableTask):
                        self.tasks[oid] = task
                    else:
                        self.reasons[oid] = task
            self.files |= {oid: [file for file in files if oid in file.changes] for oid in self.tasks}
            yield

    @property
    def _whole(self) -> list[int]:
        return [oid for oid, reason in self.reasons.items() if reason is not None]

    @property
    def _before(self) -> dict[int, TableState]:
        return {oid: self.batch.tables[oid] for oid in self._whole if oid in self.batch.tables}

    @contextmanager
    def _rebuilds(self) -> Iterator[None]:
        whole = self._whole
        source = archive_rebuild(self.archive, self.order, whole, self._writer(), scratch_folder(self.archive.config))
        with source as (self.rebuild, self.missing_rows, files):
            if whole:
                self.plan = self.rebuild.plan(self.missing_rows, whole, own_places(self.batch.tables, self._before))
            self.files |= {oid: [file for file in files if oid in file.changes] for oid in whole}
            yield

    def _task(self, oid: int, changes: TableChanges) -> TableTask | str:
        """The task to merge, or the reason to rebuild the table whole."""
        state, archive = self.batch.tables[oid], self.archive
        if changes.truncates:
            return "truncated since"
        if changes.moves_toast:
            return "keys changed in rows with unsent large values"
        tables = self.batch.tables
        try:
            plan = make_plan(
                archive.config,
                archive.relations,
                with_removals(archive.relations, {oid: changes}, {}, self.batch.last_commit_lsn),
                {oid: state},
                archive.user_types,
                named=tables,
                accepts_changes=True,
            )
        except ConfigError:
            return "configuration changed"
        if not plan.tasks:
            return "configuration changed"
        [task] = plan.tasks
        names = tuple(task.shape.columns[i].name for i in task.shape.key)
        if any(span.removal is not None for span in task.spans):
            return "a partition has left since"
        if len(task.spans) > 1 or task.spans[0].migration is not None:
            return "columns changed since"
        if names != state.key or task.moved_from is not None:
            return "key or path changed since"
        return task

    def write(self) -> None:
        rebuilt, unchanged = self.rebuild.write(self.plan, self.missing_rows)
        self.results = [*rebuilt, *(unchanged_result(result, self.batch.tables) for result in unchanged)]
        if self.rows is not None:
            tasks = list(self.tasks.values())
            changes = self.targets.archived_changes(self.rows, tasks, self.order.commits(self.batch.last_commit_lsn))
            repaired = self._writer().write(TablePlan(tasks), changes)
            self.results += [self._repaired(result) for result in repaired]

    def close(self) -> None:
        self.progress("writing the ledger")
        done = {r.state.oid: r.state for r in self.results if r.summary.held is None}
        rebuilt = [oid for oid in done if oid in self._whole]
        schema_changes = _new_schema_changes(self.results, self._before)
        self.archive.ledger.close_backfill(self.batch, done, rebuilt, schema_changes)

    def result(self) -> BackfillResult:
        number, lsn, skipped = self.batch.number, self.batch.last_commit_lsn, self.plan.skipped
        return BackfillResult(number, lsn, self.results, self.files, skipped, self.reasons)

    def _repaired(self, result: TableResult) -> TableResult:
        """The result for a table whose rows in a range were set. Its mismatches and doubts stay: rows outside the range
        may still be wrong, and the range's own changes were counted when they were first applied."""
        before = self.batch.tables[result.state.oid]
        if result.state.status == HELD:
            return unchanged_result(result, self.batch.tables)
        kept = {name: getattr(before, name) for name in ("mismatches", "doubts", "used", "changed_at")}
        return replace(result, state=replace(result.state, **kept))

    def _writer(self) -> Writer:
        batch, archive = self.batch, self.archive
        through, path_of = batch.last_commit_lsn, partial(archive.ledger.files.path_of, batch)
        return Writer(self.targets, archive.config, batch, through, self.check_claim, path_of, self.progress)


def _new_schema_changes(
    results: Iterable[TableResult], before: Mapping[int, TableState]
) -> list[tuple[TableState, CommitPosition | None, SchemaChange]]:
    """Schema changes that held tables missed. The ledger already has the applied ones."""
    return [
        (result.state, position, change)
        for result in results
        if result.summary.held is None and result.state.oid in before and not before[result.state.oid].is_complete
        for position, change in result.schema_changes
        if position is not None and position[0] > before[result.state.oid].last_commit_lsn
    ]
