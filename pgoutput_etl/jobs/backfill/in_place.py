"""Backfill in place: rebuilds target tables, or repairs the rows that a range of commits changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from pgoutput_etl.console import Progress
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.ingest.committed_rows import CommittedRows
from pgoutput_etl.jobs.backfill.rebuild import archive_rebuild
from pgoutput_etl.jobs.backfill.report import BackfillSummary
from pgoutput_etl.jobs.backfill.request import BackfillOrder
from pgoutput_etl.jobs.backfill.summary import backfill_summary
from pgoutput_etl.ledger.archive import CommitRange, LedgerArchive, ReadFile
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.load.targets import Targets
from pgoutput_etl.load.writer import TableResult, Writer, refuse_existing_rows, unchanged_result
from pgoutput_etl.schema.diff import SchemaChange
from pgoutput_etl.schema.relation_history import CommitPosition
from pgoutput_etl.targets.location import scratch_folder
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.plan import HELD, TableChanges, TablePlan, TableState, TableTask, own_places
from pgoutput_etl.targets.planner import make_plan


@dataclass(slots=True)
class InPlaceBackfill:
    """A batch that rebuilds or repairs tables at their current paths."""

    archive: LedgerArchive
    targets: Targets
    order: BackfillOrder
    progress: Progress
    batch: Batch
    check_claim: Callable[[], None]

    def run(self) -> BackfillSummary:
        reasons = {oid: self._rebuild_reason(oid) for oid in self.order.oids}
        if self.order.is_range:
            repairable = [oid for oid, reason in reasons.items() if reason is None]
            return self._repair(repairable, reasons)
        return self._write({}, None, reasons, {})

    def _rebuild_reason(self, oid: int) -> str | None:
        """Why the state of a table requires rebuilding it whole; "" without a range, None if it can be repaired."""
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

    def _repair(self, oids: list[int], reasons: dict[int, str | None]) -> BackfillSummary:
        """Reads the commits from the range's first one to the last applied one."""
        archive, commits = self.archive, CommitRange(self.order.first_lsn or 0, self.batch.last_commit_lsn)
        files = archive.files_with(oids, commits)
        with archive.reading(files, oids, commits) as rows:
            tasks: dict[int, TableTask] = {}
            counts = rows.counts(archive.relations)
            for oid in oids:
                if oid in counts:
                    task = self._task(oid, counts[oid])
                    if isinstance(task, TableTask):
                        tasks[oid] = task
                    else:
                        reasons[oid] = task
            return self._write(tasks, rows, reasons, {oid: [f for f in files if oid in f.changes] for oid in tasks})

    def _task(self, oid: int, changes: TableChanges) -> TableTask | str:
        """The task to merge, or why the table must be rebuilt whole."""
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
                {oid: changes},
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
        if len(task.spans) > 1 or task.spans[0].migration is not None:
            return "columns changed since"
        if names != state.key or task.moved_from is not None:
            return "key or path changed since"
        return task

    def _write(
        self,
        tasks: dict[int, TableTask],
        rows: CommittedRows | None,
        reasons: Mapping[int, str | None],
        files: dict[int, list[ReadFile]],
    ) -> BackfillSummary:
        """Repairs tables with `tasks` and `rows`, and rebuilds tables that have a reason."""
        archive, batch = self.archive, self.batch
        whole = [oid for oid, reason in reasons.items() if reason is not None]
        before = {oid: batch.tables[oid] for oid in whole if oid in batch.tables}
        paths = own_places(batch.tables, before)
        source = archive_rebuild(archive, self.order, whole, self._writer(), scratch_folder(archive.config))
        with source as (rebuild, missing_rows, whole_files):
            plan = rebuild.plan(missing_rows, whole, paths) if whole else TablePlan()
            if not batch.resumed:
                if not plan.tasks and not tasks:
                    _, unchanged = rebuild.write(plan, missing_rows)
                    results = [unchanged_result(result, batch.tables) for result in unchanged]
                    return backfill_summary(archive, 0, batch.last_commit_lsn, results, files, reasons, plan.skipped)
                new = [task for task in plan.tasks if task.path != paths.get(task.oid)]
                refuse_existing_rows(self.targets, plan, [replace(task, state=None) for task in new])
            self.check_claim()
            archive.ledger.batches.begin(batch)
            rebuilt, unchanged = rebuild.write(plan, missing_rows)
            results = [*rebuilt, *(unchanged_result(result, batch.tables) for result in unchanged)]
            if rows is not None:
                changes = self.targets.archived_changes(rows, self.order.commits(batch.last_commit_lsn))
                repaired = self._writer().write(TablePlan(list(tasks.values())), changes)
                results += [self._repaired(result) for result in repaired]
            self.progress("writing the ledger")
            done = {r.state.oid: r.state for r in results if r.summary.held is None}
            schema_changes = _new_schema_changes(results, before)
            archive.ledger.close_backfill(batch, done, [oid for oid in done if oid in whole], schema_changes)
        files = {**files, **{oid: [f for f in whole_files if oid in f.changes] for oid in whole}}
        return backfill_summary(archive, batch.number, batch.last_commit_lsn, results, files, reasons, plan.skipped)

    def _repaired(self, result: TableResult) -> TableResult:
        """The result of a table in which the rows of a range were set. Its mismatches and doubts stay: rows outside of
        the range may still be wrong, and the range's own changes were counted when they were applied for the first
        time."""
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
    """Schema changes that held tables missed. The ledger already has those that were applied before."""
    return [
        (result.state, position, change)
        for result in results
        if result.summary.held is None and result.state.oid in before and not before[result.state.oid].is_complete
        for position, change in result.schema_changes
        if position is not None and position[0] > before[result.state.oid].last_commit_lsn
    ]
