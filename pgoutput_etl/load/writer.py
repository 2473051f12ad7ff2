"""Executes a batch's plan: writes its tables, several at a time, and reports each table's new state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from pgoutput_etl.config.column_rules import masks_in_words
from pgoutput_etl.config.rules import OnMissingRow
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import counted
from pgoutput_etl.errors import RunError, TableError, during
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.load.change_source import DRIVER_TABLE_BYTES
from pgoutput_etl.load.commit import TargetRows, WriteResult
from pgoutput_etl.load.holding import FAULTS, SPARK_ERRORS, held_reason, spark_fault, table_fault
from pgoutput_etl.load.summary import TableSummary
from pgoutput_etl.load.table_features import ENABLED, features_of_new
from pgoutput_etl.load.table_writer import DeltaTransaction
from pgoutput_etl.load.targets import Changes, Targets, WrittenTargets
from pgoutput_etl.places import NO_PLACE, Place
from pgoutput_etl.reasons import Reason, ReasonKind, to_json
from pgoutput_etl.schema.diff import SchemaChange
from pgoutput_etl.schema.relation_history import CommitPosition
from pgoutput_etl.schema.table_shape import TableColumn
from pgoutput_etl.targets.mismatches import Mismatches, added
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.plan import (
    HELD,
    SKIPPED,
    HeldTable,
    SchemaSpan,
    TablePlan,
    TableState,
    TableTask,
    others_at,
)
from pgoutput_etl.targets.write_method import has_few

_OF_SPANS = ("changes:", "columns:", "removed:")  # prefixes of steps that end with the number of a schema span

_HELD = "held: "  # prefix of the step that undoes a batch's changes to a table that it holds; the reason follows

_AT_A_TIME = 16  # tables to handle at once when the driver only waits for storage


@dataclass(frozen=True, slots=True)
class TableResult:
    """A table after the batch. is_passed_over: the configuration skips the table. columns: the target's, without those
    of the mode, if the batch wrote it."""

    state: TableState
    summary: TableSummary
    schema_changes: tuple[tuple[CommitPosition | None, SchemaChange], ...] = ()
    is_passed_over: bool = False
    columns: tuple[TableColumn, ...] = ()


def unchanged_result(outcome: TableResult, states: Mapping[int, TableState]) -> TableResult:
    """The result of a table that could not be rebuilt: its state before the batch."""
    state = states.get(outcome.state.oid, outcome.state)
    return TableResult(state, replace(outcome.summary, path=str(state.path), version=state.version))


def no_claim() -> None:
    """The `check_claim` of a Writer whose tables no other run writes."""


@dataclass(frozen=True, slots=True)
class Writer:
    """Writes the tables of one batch.

    batch: if it is resumed, an earlier run may have written some tables. last_commit_lsn: after the batch, tables are
    consistent through this LSN. check_claim: called before every write; raises RunError if another run has taken over.
    path_of: a file's path by its number, for errors. rereading: a context in which errors about files that were scanned
    before end the run.
    """

    targets: WrittenTargets
    config: Config
    batch: Batch
    last_commit_lsn: int
    check_claim: Callable[[], None]
    path_of: Callable[[int], str]
    progress: Callable[[str], None]
    rereading: Callable[[], AbstractContextManager[None]] = nullcontext

    def write(self, plan: TablePlan, changes: Changes) -> list[TableResult]:
        """Writes all tables. One that fails is held; the others continue."""
        results = [self._held(held) for held in plan.held]
        results += [self._passed_over(skipped) for skipped in plan.passed_over]
        tasks = []
        # Moves come first: they copy rows from the old path at the last batch's version, before any table is written.
        for task in plan.tasks:
            try:
                self._move(task)
                tasks.append(task)
            except FAULTS as error:
                results.append(self._hold_midway(task, self.fault(error, f"moving {task.full_name}")))
        results += self._write_tables(changes, tasks)
        occupied = {result.state.path for result in results}  # a table whose move failed is still at its old path
        for path in plan.vacated:
            if path not in occupied:
                self.vacate(path)
        return results

    def _write_tables(self, changes: Changes, tasks: Sequence[TableTask]) -> list[TableResult]:
        """The results in the tasks' order."""
        at_a_time, results = self.config.merge.parallel_tables, dict[int, TableResult]()
        waiting, others = list[int](), list[int]()
        for number, task in enumerate(tasks):
            (waiting if _waits_for_storage(task) else others).append(number)
        for threads, numbers in ((max(_AT_A_TIME, at_a_time), waiting), (at_a_time, others)):
            if numbers:
                with self.targets.pool(threads) as pool:
                    written = pool.map(partial(self._write_table, changes), [tasks[number] for number in numbers])
                    results.update(zip(numbers, written, strict=True))
        return [results[number] for number in range(len(tasks))]

    def fault(self, error: Exception, step: str) -> Reason:
        """Why the error holds the table that the step is about. Raises the error if it ends the run."""
        return held_reason(error, step, self.path_of, self.targets.is_running)

    def vacate(self, path: Place) -> None:
        """Empties a path that no table uses any more. If that fails, its rows stay."""
        self.check_claim()
        try:
            # Several places may be in one Delta table, which accepts each step once.
            self.targets.empty(path, self.commit("left", f"vacate {path}"))
        except FAULTS as error:
            self.fault(error, f"deleting the rows at {path}, which a table has left,")

    def _move(self, task: TableTask) -> None:
        """Raises TableError if the table is no longer at its old path."""
        if task.moved_from is None:
            return
        self.progress(f"moving {task.full_name} to its new path")
        self.check_claim()
        commit = self.commit(task.oid, "move")
        self.targets.check_exists(*task.moved_from, commit)
        self._refuse_large_rows(task, task.moved_from[0])
        self.targets.move(*task.moved_from, task.path, commit, task)

    def _write_table(self, changes: Changes, task: TableTask) -> TableResult:
        self.progress(f"writing {task.full_name}: {counted(task.changes.total, 'change')}")
        step = f"writing {task.full_name}"
        try:
            with during(step), self.rereading():
                written, remarks = self._commit_changes(changes, task)
                rows = self._rows(task, written)
                written = replace(written, inserted=rows, updated=0, deleted=0) if counts_rows(task) else written
        except FAULTS as error:
            why = self.fault(error, step)
            missing = self._missing_reason(task) if table_fault(error, self.path_of) is None else None
            return self._hold_midway(task, missing or why)
        state = self._state_after(task, written, rows)
        summary = TableSummary(
            state.schema,
            state.table,
            str(state.path),
            state.version,
            rows=rows,
            inserted=written.inserted,
            updated=written.updated,
            deleted=written.deleted,
            notes=(*_notes(task, written), *remarks, *written.remarks),
            held=state.reason,
        )
        return TableResult(state, summary, task.schema_changes, columns=task.shape.columns)

    def _state_after(self, task: TableTask, written: WriteResult, rows: int) -> TableState:
        before, cutoff = task.state, task.cutoff
        own_lsn = -1 if before is None else before.last_commit_lsn  # a snapshot may have advanced the table further
        known = self.batch.tables.get(task.oid)  # a rebuild has no previous state of its own
        state = TableState.planned(task, known, max(self.last_commit_lsn, own_lsn))
        if cutoff is not None:
            state = replace(state, last_commit_lsn=cutoff.lsn - 1, status=HELD, reason=cutoff.reason)
        return replace(
            state,
            version=written.version,
            rows=rows,
            snapshot=None if before is None else before.snapshot,
            last_row=task.changes.last_row or (None if before is None else before.last_row),
            mismatches=added(state.mismatches, written.mismatches),
            memory=self._memory(task),
        )

    def _refuse_large_rows(self, task: TableTask, place: Place) -> None:
        """Checks tables that keep rows, unless the task replaces them all, or a finished batch wrote them with no more
        memory than there is now."""
        memory, known = self.targets.memory, None if task.state is None else task.state.memory
        is_known = known is not None and memory is not None and known <= memory and not self.batch.resumed
        if table_mode(task.mode).has_rows and not is_known and not task.replaces:
            self.targets.refuse_large_rows(place)

    def _memory(self, task: TableTask) -> int | None:
        """The memory limit to record in the table's new state. A run that died may have had more, and rows of tables
        that are only appended to were not measured."""
        return None if self.batch.resumed or not table_mode(task.mode).has_rows else self.targets.memory

    def _missing_reason(self, task: TableTask) -> Reason | None:
        """The error if a table that was written before is gone."""
        try:
            if task.state is not None and task.moved_from is None:
                self.targets.check_exists(task.path)
        except TableError as error:
            return error.reason
        except SPARK_ERRORS as error:
            self.fault(error, f"looking for {task.full_name}")
        return None

    def _rows(self, task: TableTask, written: WriteResult) -> int:
        rows = written.rows_after(self._rows_before(task))
        if rows is None or self.batch.resumed:
            return self.targets.count(task.path)
        return rows

    def _rows_before(self, task: TableTask) -> int | None:
        """The previous batch's row count; None if this batch moves the table or an earlier run may have written it."""
        is_known = task.moved_from is None and not self.batch.resumed
        return task.state.rows if task.state is not None and is_known else None

    def _steps_done(self, task: TableTask) -> dict[str, int]:
        """The steps of this batch that an earlier run has committed, and their versions. Raises TableError if that run
        held the table."""
        if task.state is not None and task.moved_from is None and task.path.tag:
            self.targets.check_exists(task.path, task.state.version, self.commit(task.oid, ""))
        if self.batch.resumed and not self.targets.marks_commits:
            self._restore(task, "restore")  # commits of a run that died can't be recognized
        if task.state is not None and task.moved_from is None:
            self._refuse_large_rows(task, task.path)
        done = self.targets.committed_steps(task.path, self.commit(task.oid, "")) if self.batch.resumed else {}
        held = next((step for step in done if step.startswith(_HELD)), None)
        if held is not None:  # the history also has steps that were undone, and they would not be repeated
            reason = Reason.from_json(held.removeprefix(_HELD))
            raise TableError(reason, reason.kind)
        return done

    def _commit_changes(self, changes: Changes, task: TableTask) -> tuple[WriteResult, list[str]]:
        """Makes one commit per schema span, preceded by others where columns or the layout change. Also returns remarks
        about the layout."""
        done = self._steps_done(task)
        reached = max((int(step.split(":")[1]) for step in done if step.startswith(_OF_SPANS)), default=0)
        total: WriteResult | None = None
        mismatches: Mismatches | None = None  # of changes that an earlier run has written
        remarks = [*task.remarks, *(step.removeprefix(ENABLED) for step in done if step.startswith(ENABLED))]
        for number, span in enumerate(task.spans):
            written_at, before = done.get(f"changes:{number}"), rows_before_span(task, number)
            if written_at is not None:
                found = changes.compared(task, span, before, written_at - 1)
                mismatches = added(mismatches, found)
            if number < reached or written_at is not None:
                continue  # the columns may have changed since
            for need in self.targets.lacking_features(task, number, before):
                self.check_claim()
                self.targets.enable(task.path, need, self.commit(task.oid, ""))
                remarks.append(str(need))
            if span.migration is not None and f"columns:{number}" not in done:
                self.check_claim()
                self.progress(f"changing the columns of {task.full_name}")
                columns = self.commit(task.oid, f"columns:{number}")
                remarks += self.targets.evolve(task.path, span.migration, columns, task.mode)
            if span.removal is not None and f"removed:{number}" not in done:
                self.check_claim()
                self.progress(f"removing rows of former partitions of {task.full_name}")
                removed = self.targets.remove(
                    task.path, span.removal, self.commit(task.oid, f"removed:{number}"), task.mode
                )
                total = removed if total is None else total.plus(removed)
            if span.shape.layout and before is TargetRows.ROWS:  # an overwrite applies the layout itself
                self.check_claim()
                remarks += self.targets.lay_out(task.path, span.shape.layout, self.commit(task.oid, "layout"))
            known = self._rows_before(task)
            rows = known if total is None else total.rows_after(known)
            self._refuse_mismatches(changes, task, span, before)
            write = changes.prepared(task, span)
            self.check_claim()
            written = write(before, self.commit(task.oid, f"changes:{number}"), rows)
            if rows is not None and total is None and _may_follow_other_commits(written, span, task):
                written = replace(written, rows=self.targets.count(task.path))
            total = written if total is None else total.plus(written)
        total = total or self.targets.last_result(task.path, self.commit(task.oid, ""))
        return replace(total, mismatches=added(mismatches, total.mismatches)), remarks

    def _refuse_mismatches(self, changes: Changes, task: TableTask, span: SchemaSpan, before: TargetRows) -> None:
        """Raises TableError if the table is configured to be held when changes contradict its rows."""
        relation = task.shape.relation
        if self.config.rule_for(relation.namespace, relation.name).on_missing_row is not OnMissingRow.HOLD:
            return
        found = changes.compared(task, span, before)
        if found is not None:
            raise TableError(
                f"on_missing_row is hold, and {found}. The archive lacks rows that only the server has",
                ReasonKind.ON_SERVER,
            )

    def _restore(self, task: TableTask, step: str) -> None:
        """Restores the table's version from before the batch, unless the batch starts by overwriting the table."""
        if task.moved_from is None and not task.replaces:
            self.check_claim()
            version = None if task.state is None else task.state.version
            self.targets.restore(task.path, version, self.commit(task.oid, step))

    def _hold_midway(self, task: TableTask, reason: str) -> TableResult:
        """Undoes the spans before the one that failed, and the move: the rows are still at the old path."""
        try:
            self._undo(task, reason)
        except FAULTS as error:  # the rebuild that releases the table overwrites what is left
            self.fault(error, f"undoing changes of {task.full_name}")
        return self.held(task, reason)

    def _undo(self, task: TableTask, reason: str) -> None:
        self._restore(task, _HELD + to_json(reason))
        is_new_here = task.moved_from is not None or bool(others_at(self.batch.tables, task))
        if is_new_here and task.path != task.way_out:
            self.check_claim()
            self.targets.empty(task.path, self.commit(task.oid, _HELD + to_json(reason)))

    def held(self, task: TableTask, reason: str) -> TableResult:
        return self._held(_held_for(task, reason))

    def _held(self, held: HeldTable) -> TableResult:
        after = self._left(held, HELD)
        return TableResult(after, replace(_unchanged_summary(held, after), held=held.reason))

    def _passed_over(self, skipped: HeldTable) -> TableResult:
        """A held table keeps its status, so it is still held once the configuration no longer skips it."""
        state = skipped.state
        after = self._left(skipped, SKIPPED if state is None or state.is_complete else state.status)
        return TableResult(after, _unchanged_summary(skipped, after), is_passed_over=True)

    def _left(self, held: HeldTable, status: str) -> TableState:
        """The state of a table that receives no changes in this batch."""
        state = held.state
        if state is None:
            return TableState.unwritten(held, status, self.batch.last_commit_lsn)
        reached = max(held.complete_to or 0, state.last_commit_lsn)
        reason = held.reason if state.is_complete or status == HELD else state.reason
        return replace(self._make_room(held, state), status=status, reason=reason, last_commit_lsn=reached)

    def _make_room(self, held: HeldTable, state: TableState) -> TableState:
        """Moves the rows of a held table if another table takes its path."""
        if held.moves_to is None:
            return state
        self.progress(f"moving {state.full_name} out of the way of another table")
        self.check_claim()
        commit = self.commit(held.oid, _HELD + to_json(held.reason))
        try:
            self.targets.check_exists(state.path, state.version, commit)
            self.targets.move(state.path, state.version, held.moves_to, commit)
            version = self.targets.last_result(held.moves_to, commit).version
        except FAULTS as error:  # a rebuild releases the table, with or without the rows
            self.fault(error, f"moving {state.full_name}")
            return replace(state, path=NO_PLACE, version=-1)
        return replace(state, path=held.moves_to, version=version)

    def commit(self, table: int | str, step: str) -> DeltaTransaction:
        """The identity of a Delta commit. table: the table's OID, or "left" for paths that no table uses any more."""
        application = f"pgoutput_etl:{self.batch.ledger_id}:{table}"
        return DeltaTransaction(application, step, self.batch.number, self.last_commit_lsn)


def _waits_for_storage(task: TableTask) -> bool:
    """True if the driver writes the table, and spends the time waiting for answers from storage."""
    size, rows = task.changes.size, 0 if task.state is None else task.state.rows
    is_small = size is not None and size <= DRIVER_TABLE_BYTES and has_few(rows)
    is_plain = table_mode(task.mode).is_copy and not task.path.tag  # otherwise, Spark writes it
    return is_small and is_plain and task.path.is_remote


def counts_rows(task: TableTask) -> bool:
    """True if all rows after the batch are inserted ones, although its spans may have changed a row several times."""
    return len(task.spans) > 1 and rows_before_span(task, 0) is TargetRows.NOTHING


def rows_before_span(task: TableTask, number: int) -> TargetRows:
    """The rows that the target may have before the span and that the span doesn't replace."""
    has_rows = number > 0 or (task.state is not None and task.changes.truncated_at is None)
    return TargetRows.ROWS if has_rows else TargetRows.NOTHING


def refuse_existing_rows(targets: Targets, plan: TablePlan, tasks: Iterable[TableTask]) -> None:
    """Raises RunError, before anything is written, if a new table's path has rows that the ledger doesn't know, or if a
    path has anything but a table like the task's. Holds a table of the plan if Spark can't read its path. tasks: the
    plan's."""
    tasks = [*tasks]
    with targets.pool(_AT_A_TIME) as pool:
        errors = [*pool.map(partial(_existing_rows, targets), tasks)]
    for task, error in zip(tasks, errors, strict=True):
        if isinstance(error, TableError):  # nothing is written yet, so stop the run rather than hold the table
            raise RunError(f"{task.full_name}: {error}") from None
        if error is not None:
            fault = spark_fault(error, targets.is_running)
            if fault is None:
                raise error
            planned = next(other for other in plan.tasks if other.oid == task.oid)
            plan.tasks.remove(planned)
            plan.held.append(_held_for(planned, str(fault)))


def _existing_rows(targets: Targets, task: TableTask) -> Exception | None:
    """Returns the error about a table at the task's path. Raises it if it is a RunError."""
    try:
        _refuse_existing_rows(targets, task)
    except (TableError, *SPARK_ERRORS) as error:
        return error
    return None


def _refuse_existing_rows(targets: Targets, task: TableTask) -> None:
    exists = targets.check_free(task.path, is_new=task.state is None or task.moved_from is not None)
    # In a shared table, commits of the same source may have written rows with another tag.
    was_here = not task.path.tag and bool(task.moved_from) and bool(targets.applications(task.path))
    is_new = task.state is None or (task.moved_from is not None and not was_here)
    if is_new and exists and not task.replaces and targets.has_rows(task.path):
        raise RunError(
            f"the table at {task.path} has rows and is not in the ledger, so {task.full_name} can't be created "
            "there. If it is yours, move it away or change target; if the ledger was lost, remove the tables and "
            "apply the archive from its beginning"
        )


def _unchanged_summary(held: HeldTable, after: TableState) -> TableSummary:
    return TableSummary(held.relation.namespace, held.relation.name, str(after.path), after.version)


def _held_for(task: TableTask, reason: str) -> HeldTable:
    return HeldTable(task.oid, task.shape.relation, reason, task.changes, task.state, moves_to=task.way_out)


def _may_follow_other_commits(written: WriteResult, span: SchemaSpan, task: TableTask) -> bool:
    """True if commits other than the last batch's may have changed the row count."""
    if written.rows is not None or task.state is None:
        return False
    return span.migration is not None or written.version > task.state.version + 1


def _notes(task: TableTask, written: WriteResult) -> list[str]:
    notes = [str(change) for _, change in task.schema_changes]
    if len(task.spans) > 1 and not counts_rows(task) and (written.updated or written.deleted):
        notes.append(f"rows counted in each of {len(task.spans)} commits")
    if task.changes.truncates:
        notes.append("truncated")
    if written.not_found:
        notes.append(f"{counted(written.not_found, 'delete')} matched no row")
    if task.state is None and not task.replaces:
        notes.append("new" if table_mode(task.mode).is_copy else f"new, in mode {task.mode.value}")
        notes += [masks_in_words(task.masks)] if task.masks else []
        notes += map(str, features_of_new(task))
    return notes
