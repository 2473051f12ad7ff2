"""A backfill of some rows or columns in the table itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.config.settings import Mode
from pgoutput_etl.errors import RunError
from pgoutput_etl.ingest.rows import count_changes
from pgoutput_etl.jobs.backfill.commit_range import Progress, _commits, _lacking
from pgoutput_etl.jobs.backfill.report import BackfillSummary
from pgoutput_etl.jobs.backfill.request import BackfillOrder
from pgoutput_etl.jobs.backfill.summary import backfill_summary
from pgoutput_etl.ledger.archive import CommitRange, LedgerArchive, ReadFile, refuse_unreadable
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.load.change_source import ChangeRows
from pgoutput_etl.load.net_effect import all_of, event_key_parts
from pgoutput_etl.load.rebuild import Rebuild
from pgoutput_etl.load.writer import TableResult, Writer, refuse_existing_rows, unchanged_result
from pgoutput_etl.schema.diff import SchemaChange
from pgoutput_etl.schema.relation_history import CommitPosition
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.platform import persist, unpersist
from pgoutput_etl.targets.plan import HELD, TableChanges, TablePlan, TableState, TableTask
from pgoutput_etl.targets.planner import make_plan


@dataclass(slots=True)
class InPlaceBackfill:
    """A batch of the ledger that does tables again where they are."""

    archive: LedgerArchive
    order: BackfillOrder
    progress: Progress
    batch: Batch
    check_claim: Callable[[], None]

    def run(self) -> BackfillSummary:
        now = self.batch.last_commit_lsn
        reasons = {oid: self._why_whole(oid) for oid in self.order.oids}
        if self.order.is_range:
            partly = [oid for oid, reason in reasons.items() if reason is None]
            return self._range(partly, reasons, CommitRange(self.order.first_lsn or 0, now))
        return self._write({}, None, reasons, {})

    def _why_whole(self, oid: int) -> str | None:
        """Why a table can't be repaired within a range of commits, as far as its state tells."""
        state = self.batch.tables.get(oid)
        if not self.order.is_range:
            return ""
        if state is None or not state.is_complete:
            return "it was not applied up to now"
        if state.mode is not Mode.MIRROR:
            return f"mode {state.mode.value} keeps what was"
        if not state.key:
            return "it has no key"
        return "it has columns that its relation has no more" if state.retired else None

    def _range(self, partly: list[int], reasons: dict[int, str | None], until_now: CommitRange) -> BackfillSummary:
        archive = self.archive
        files = archive.files_with(partly, until_now)
        rows = persist(archive.committed(files, partly, until_now), StorageLevel.DISK_ONLY)
        try:
            refuse_unreadable(rows)
            tasks: dict[int, TableTask] = {}
            counted = count_changes(rows, archive.relations)
            for oid in partly:
                if oid in counted:
                    found = self._task(oid, counted[oid])
                    if isinstance(found, TableTask):
                        tasks[oid] = found
                    else:
                        reasons[oid] = found
            return self._write(tasks, rows, reasons, {oid: [f for f in files if oid in f.changes] for oid in tasks})
        finally:
            unpersist(rows)

    def _task(self, oid: int, changes: TableChanges) -> TableTask | str:
        """What to merge, or why nothing less than the whole table will do."""
        state, archive = self.batch.tables[oid], self.archive
        if changes.truncates:
            return "it was truncated since"
        if changes.moves_toast:
            return "keys changed, and large values that were not sent went with their rows"
        tables = self.batch.tables
        try:
            plan = make_plan(
                archive.config, archive.relations, {oid: changes}, {oid: state}, archive.user_types, named=tables
            )
        except RunError:
            return "the configuration has changed"
        if not plan.tasks:
            return "the configuration has changed"
        [task] = plan.tasks
        names = tuple(task.shape.columns[i].name for i in task.shape.key)
        if len(task.spans) > 1 or task.spans[0].migration is not None:
            return "its columns changed since"
        if names != state.key or task.moved_from is not None:
            return "its key or its place changed since"
        return task

    def _write(
        self,
        tasks: dict[int, TableTask],
        rows: DataFrame | None,
        reasons: Mapping[int, str | None],
        files: dict[int, list[ReadFile]],
    ) -> BackfillSummary:
        """Tables within the range by `tasks` and `rows`, and those that have a reason whole."""
        archive, batch = self.archive, self.batch
        whole = [oid for oid, reason in reasons.items() if reason is not None]
        since = archive.since(self.order.since_version, whole)
        commits = _lacking(whole, since, batch.last_commit_lsn)
        of_whole = archive.files_with(whole, commits)
        all_rows = persist(archive.committed(of_whole, whole, commits), StorageLevel.DISK_ONLY)
        try:
            if whole:
                refuse_unreadable(all_rows)
            places = {oid: state.path for oid, state in batch.tables.items() if oid in whole}
            places = {oid: path for oid, path in places.items() if path}
            rebuilding = Rebuild(
                archive.spark,
                archive.config,
                archive.assembly,
                batch.tables,
                since,
                self.progress,
                self._writer(),
                self._scratch(),
            )
            known = {oid: batch.tables[oid] for oid in whole if oid in batch.tables}
            lacking = rebuilding.missing_rows(all_rows)
            plan = rebuilding.plan(lacking, whole, places) if whole else TablePlan()
            if not batch.resumed:
                if not plan.tasks and not tasks:
                    _, left = rebuilding.write(plan, lacking)
                    as_before = [unchanged_result(outcome, batch.tables) for outcome in left]
                    return backfill_summary(archive, 0, batch.last_commit_lsn, as_before, files, reasons, plan.skipped)
                new = [task for task in plan.tasks if task.oid not in places]
                refuse_existing_rows(archive.spark, TablePlan([replace(task, state=None) for task in new]))
            self.check_claim()
            archive.ledger.begin(batch)
            built, left = rebuilding.write(plan, lacking)
            outcomes = [*built, *(unchanged_result(outcome, batch.tables) for outcome in left)]
            if rows is not None:
                touched = partial(_of_touched_rows, _commits(self.order, batch.last_commit_lsn))
                within = replace(self._writer(), event_filter=touched).write(
                    TablePlan(list(tasks.values())), ChangeRows(rows)
                )
                outcomes += [unchanged_result(o, batch.tables) if o.state.status == HELD else o for o in within]
            self.progress("writing the ledger")
            done = {o.state.oid: o.state for o in outcomes if o.summary.held is None}
            rebuilt = [oid for oid in done if oid in whole]
            archive.ledger.close_backfill(batch, done, rebuilt, _news(outcomes, known))
        finally:
            unpersist(all_rows)
        files = {**files, **{oid: [f for f in of_whole if oid in f.changes] for oid in whole}}
        return backfill_summary(archive, batch.number, batch.last_commit_lsn, outcomes, files, reasons, plan.skipped)

    def _writer(self) -> Writer:
        batch, archive = self.batch, self.archive
        through, path_of = batch.last_commit_lsn, partial(archive.ledger.path_of, batch)
        return Writer.of(archive.spark, archive.config, batch, through, self.check_claim, path_of, self.progress)

    def _scratch(self) -> str:
        return f"{self.archive.config.state.root.rstrip('/')}/rebuilt"


def _of_touched_rows(commits: CommitRange, events: DataFrame, shape: TableShape) -> DataFrame:
    """All events of those keys that have one within these commits: what they come to is how the row stands now."""
    parts = event_key_parts(shape)
    within = events.where(F.col("_lsn").between(commits.first, commits.last))
    touched = within.select(*(part.alias(f"_k{n}") for n, part in enumerate(parts))).distinct()
    same = all_of(part.eqNullSafe(F.col(f"_k{n}")) for n, part in enumerate(parts))
    return events.join(touched, same, "left_semi")


def _news(
    outcomes: Iterable[TableResult], before: Mapping[int, TableState]
) -> list[tuple[TableState, CommitPosition | None, SchemaChange]]:
    """Changes of schema that a held table missed. What was applied once was written down then."""
    return [
        (outcome.state, place, change)
        for outcome in outcomes
        if outcome.summary.held is None and outcome.state.oid in before and not before[outcome.state.oid].is_complete
        for place, change in outcome.schema_changes
        if place is not None and place[0] > before[outcome.state.oid].last_commit_lsn
    ]
