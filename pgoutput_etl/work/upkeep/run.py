"""Compacts and vacuums a source's tables and ledger, safely while other runs are active.

Compaction changes no rows, but replaces files that a MERGE may be about to change, so one of the two would fail.
Maintenance therefore claims targets as a run does: other runs wait until it ends, and it doesn't touch targets while
another run is active or has died within a batch. Ledger tables that are only appended to (most of them) are compacted
at any time.

The ledger records each table's Delta version after a batch. Compaction makes a new version; a batch without input
records it before VACUUM removes anything, so `ledger.as_of` and the next run always use the newest version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import ClassVar, TypeVar

from pyspark.sql import SparkSession

from pgoutput_etl.config.chosen_tables import matching_names
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, no_progress
from pgoutput_etl.errors import RunError
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.ledger import DeltaLedger, Ledger
from pgoutput_etl.ledger.tables import SCHEMAS
from pgoutput_etl.load.holding import FAULTS, held_reason
from pgoutput_etl.machine import now
from pgoutput_etl.places import Place
from pgoutput_etl.spark.delta_history import is_as_recorded
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.work.batch import Prepared, Watch, run
from pgoutput_etl.work.upkeep.operations import DeltaUpkeep, TableUpkeep, Upkeep
from pgoutput_etl.work.upkeep.report import MaintainedTable, MaintainSummary
from pgoutput_etl.work.upkeep.request import MaintainRequest
from pgoutput_etl.work.upkeep.retention import (
    APPENDED_TO,
    LEAST_COMMITS,
    FileCounts,
    RetentionRule,
    last_batch_before,
    obsolete_copies,
    retention_rules,
    zorder_columns,
)

T = TypeVar("T")

LEDGER_TABLES = tuple(SCHEMAS)


def maintain(
    spark: SparkSession, config: Config, request: MaintainRequest, progress: Progress = no_progress
) -> MaintainSummary:
    """Leaves tables and ledger consistent even if it is interrupted. Raises PgoutputEtlError."""
    request.check()
    ledger = DeltaLedger.of(spark, config)
    return maintain_tables(DeltaUpkeep(spark, ledger, config.merge.parallel_tables), ledger, request, progress)


def maintain_tables(upkeep: Upkeep, ledger: Ledger, request: MaintainRequest, progress: Progress) -> MaintainSummary:
    """Like `maintain`, with the given upkeep and ledger."""
    last = ledger.batches.last()
    if last is None:
        raise RunError(f"no batch of {ledger.source} has been applied: there is nothing to maintain")
    why_skipped = _why_targets_are_skipped(ledger, last, progress)
    if why_skipped is not None and request.execute and ledger.has_one_driver:
        remark = f"{why_skipped}. The ledger was skipped, too: on S3 only one driver at a time may write to it"
        return MaintainSummary(ledger.source, True, 0, (), (remark,))
    maintenance = _Maintenance(upkeep, ledger, last, Batch.after(last, {}), request, progress, why_skipped)
    if why_skipped is None and request.execute:
        return run(ledger, maintenance, last, Watch(progress))
    maintenance.write()
    maintenance.close()
    return maintenance.result()


def _why_targets_are_skipped(ledger: Ledger, last: Batch, progress: Progress) -> str | None:
    if last.resumed:
        job = "apply" if last.erasure is None else "forget"
        return f"Targets were skipped: a run died within batch {last.number}, which jobs/{job}.py finishes"
    try:
        ledger.batches.claims().refuse_others(Batch.next(last).number, progress)
    except RunError as error:
        return f"Targets were skipped: {error}"
    return None


@dataclass(slots=True)
class _Maintenance(Prepared[MaintainSummary]):
    """The batch of a maintenance run. It changes no rows, so only its end is recorded: a run that dies leaves nothing
    to finish.

    why_skipped: which other run is active or has died; then only steps that are safe while it runs are taken.
    """

    is_recorded: ClassVar[bool] = False

    upkeep: Upkeep
    ledger: Ledger
    last: Batch
    batch: Batch
    request: MaintainRequest
    progress: Progress
    why_skipped: str | None
    check_claim: Callable[[], None] = lambda: None
    compacted: list[MaintainedTable] = field(default_factory=list)
    tables: list[MaintainedTable] = field(default_factory=list)
    moved: dict[int, TableState] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)  # names of tables that another program has changed
    missing: list[str] = field(default_factory=list)
    removed: set[int] = field(default_factory=set)  # OIDs of displaced tables

    @contextmanager
    def prepare(self, batch: Batch, check_claim: Callable[[], None]) -> Iterator[_Maintenance]:
        self.batch, self.check_claim = batch, check_claim
        yield self

    def write(self) -> None:
        """Compacts tables and removes displaced copies."""
        chosen = [] if self.why_skipped is not None else self._chosen()
        copies = self._obsolete_copies(chosen) if "displaced" in self.request.only else []
        targets = self._targets(state for state in chosen if state not in copies)
        self.compacted = self._side_by_side(
            "checking", targets, lambda states: (_name(states), str(states[0].path.table)), self._compact_target
        )
        self.tables = self._side_by_side(
            "removing", copies, lambda state: (_name_of_copy(state), str(state.path)), self._remove
        )

    def close(self) -> None:
        """Records the new versions before older ones are removed, and then maintains the ledger."""
        if self.moved or self.removed:
            self.progress("recording the tables' new versions")
            tables_left = {oid: state for oid, state in self.batch.tables.items() if oid not in self.removed}
            self.ledger.close_backfill(replace(self.batch, tables=tables_left), self.moved, [], [], has_begun=False)
        cleaned = self._side_by_side("cleaning", self.compacted, lambda table: (table.name, table.path), self._finish)
        rules = {rule.table: rule for rule in self._rules()}
        existing = [name for name in LEDGER_TABLES if self.upkeep.ledger_table(name).exists()]
        maintained = self._side_by_side(
            "maintaining",
            existing,
            lambda name: (f"ledger: {name}", self.upkeep.ledger_path(name)),
            lambda name: self._maintain_ledger(name, rules.get(name)),
        )
        self.tables = [*cleaned, *self.tables, *maintained]

    def result(self) -> MaintainSummary:
        remarks = (*self.missing, *(() if self.why_skipped is None else (self.why_skipped,)))
        number = self.batch.number if self.moved or self.removed else 0
        return MaintainSummary(self.ledger.source, self.request.execute, number, tuple(self.tables), remarks)

    def _side_by_side(
        self,
        verb: str,
        tables: Sequence[T],
        place: Callable[[T], tuple[str, str]],
        work: Callable[[T], MaintainedTable],
    ) -> list[MaintainedTable]:
        """Works on tables in parallel. A table that fails is reported; the others continue. place: a table's name and
        path."""

        def maintained(table: T) -> MaintainedTable:
            try:
                return work(table)
            except FAULTS as error:
                name, path = place(table)
                reason = held_reason(error, f"{verb} {name}", str, self.upkeep.is_running)
                return MaintainedTable(name, path, _UNKNOWN, left=(reason,), failed=True)

        return self.upkeep.pool(verb, self.progress).map(tables, lambda table: place(table)[0], maintained)

    def _chosen(self) -> list[TableState]:
        """The tables that the request names, and any that share a Delta table with one of them."""
        written = [state for state in self.last.tables.values() if state.path and state.version >= 0]
        patterns = self.request.tables if written else [pattern for pattern in self.request.tables if pattern != "*"]
        matches = matching_names(patterns, {state.full_name for state in written}, "the ledger")
        places = {state.path.table for state in written if state.full_name in matches}
        return [state for state in written if state.path.table in places]

    def _targets(self, chosen: Iterable[TableState]) -> list[list[TableState]]:
        """Groups PostgreSQL tables by the Delta table that has their rows."""
        targets: dict[Place, list[TableState]] = {}
        for state in chosen:
            targets.setdefault(state.path.table, []).append(state)
        existing = [states for states in targets.values() if self.upkeep.table(states[0].path).exists()]
        missing = (state for states in targets.values() if states not in existing for state in states)
        self.missing += [f"{state.full_name}: no table exists at {state.path}" for state in missing]
        return existing

    def _obsolete_copies(self, chosen: Sequence[TableState]) -> list[TableState]:
        """Displaced copies that no reader needs: as-of reads reach back keep_days."""
        if not any(state.is_displaced for state in chosen):
            return []
        days = max(self.request.keep_days, self.request.ledger_keep_days)
        number = last_batch_before(self.ledger.batches.done_at(), now(self.ledger.machine) - timedelta(days=days))
        before = self.ledger.batches.states_after(number) if number else {}
        return [state for state in obsolete_copies(self.last.tables, before) if state in chosen]

    def _remove(self, state: TableState) -> MaintainedTable:
        """Removes the folder before the ledger entry, so a run that dies in between leaves nothing behind."""
        folder, name, nothing = self.upkeep.table(state.path), _name_of_copy(state), FileCounts(0, 0, 0, 0, 0, 0)
        before = folder.measure(self._expiry) if folder.exists() else nothing
        if not self.request.execute:
            return MaintainedTable(name, str(state.path), before, steps=("remove",))
        self.check_claim()
        why = folder.remove()
        if why is not None:
            return MaintainedTable(name, str(state.path), before, before, left=(why,))
        self.removed.add(state.oid)
        return MaintainedTable(name, str(state.path), before, nothing, steps=("remove",))

    def _compact_target(self, states: Sequence[TableState]) -> MaintainedTable:
        """Compacts a target, unless another program has changed it. states: the tables that share the target; usually
        one."""
        state = min(states, key=lambda state: state.version)
        folder, name, path = self.upkeep.table(state.path), _name(states), str(state.path.table)
        newest, operations = folder.commits_since(state.version)
        before = folder.measure(self._expiry)
        if not is_as_recorded(operations):
            why = (
                f"another program has changed it since batch {self.last.number} wrote version {state.version}, so "
                "maintenance skips it until jobs/apply.py or jobs/backfill.py --tables writes a new version"
            )
            self.changed.add(name)
            return MaintainedTable(name, path, before, left=(why,))
        steps: list[str] = []
        left: list[str] = []
        unclustered = folder.is_unclustered() if "optimize" in self.request.only else None
        order = zorder_columns(state.key) if self.request.zorder and unclustered is None else ()
        if self.request.zorder and unclustered is not None:
            left.append("it is clustered, which orders its rows: --zorder does not apply")
        elif self.request.zorder and not order:
            left.append("it has no key, or one whose names Delta's Z-order can't take; small files are compacted")
        if "optimize" in self.request.only and (before.may_compact or order or unclustered):
            steps.append("optimize by key" if order else "cluster" if unclustered else "optimize")
            if self.request.execute:
                self.check_claim()
                try:
                    if not folder.optimize(order):
                        steps, left = ["optimize"], ["Delta has no statistics for its key; small files are compacted"]
                except self.upkeep.conflicts:  # from another source, if the table is shared
                    steps, left = [], [_CONFLICT]
                newest, _ = folder.commits_since(state.version)
        if self.request.execute:
            self.moved |= {s.oid: replace(s, version=newest) for s in states if s.version != newest}
        return MaintainedTable(name, path, before, steps=tuple(steps), left=tuple(left))

    def _maintain_ledger(self, name: str, rule: RetentionRule | None) -> MaintainedTable:
        folder = self.upkeep.ledger_table(name)
        before = folder.measure(self._expiry)
        rows = 0 if rule is None or "retention" not in self.request.only else self.upkeep.obsolete_rows(rule)
        is_due = "optimize" in self.request.only and before.may_compact
        is_safe = is_due and (name in APPENDED_TO or (self.why_skipped is None and not self.upkeep.is_shared()))
        steps, left = [], ["not compacted: other runs may change its rows"] if is_due and not is_safe else []
        try:
            if rule is not None and rows:
                self._delete_obsolete(rule)
                steps.append("retention")
            if is_due and is_safe:
                if self.request.execute:
                    folder.optimize()
                steps.append("optimize")
        except self.upkeep.conflicts:
            left.append(_CONFLICT)
        table = MaintainedTable(
            f"ledger: {name}", self.upkeep.ledger_path(name), before, None, tuple(steps), tuple(left), rows
        )
        return self._finish(table)

    def _delete_obsolete(self, rule: RetentionRule) -> None:
        if not self.request.execute:
            return
        self.check_claim()
        if rule.table == "transactions":  # before the rows are deleted, because a run may start in between
            self.ledger.transactions.record_trimmed(self.last, self.upkeep.last_obsolete_commit(rule))
        self.upkeep.delete_obsolete(rule)

    def _finish(self, table: MaintainedTable) -> MaintainedTable:
        """Vacuums and checkpoints the table after the ledger has recorded the newest versions."""
        if table.failed:
            return table
        folder = self.upkeep.table(Place(table.path))
        steps = [] if table.name in self.changed else self._last_steps(folder, table)
        done, left = [*table.steps, *steps], list(table.left)
        for step in steps if self.request.execute else ():
            self.check_claim()
            if step == "vacuum":
                folder.vacuum(self.request.keep_days * 24)
            elif (why := folder.checkpoint()) is not None:
                done.remove(step)
                left.append(why)
        after = None
        if self.request.execute:
            after = folder.measure(self._expiry) if {*done} - {"checkpoint"} else table.before
        return replace(table, after=after, steps=tuple(done), left=tuple(left))

    def _last_steps(self, folder: TableUpkeep, table: MaintainedTable) -> list[str]:
        steps = ["vacuum"] if "vacuum" in self.request.only and table.before.may_vacuum else []
        commits = folder.commits_since_checkpoint() if "checkpoint" in self.request.only else 0
        return [*steps, "checkpoint"] if commits is None or commits >= LEAST_COMMITS else steps

    @property
    def _expiry(self) -> datetime:
        return now(self.ledger.machine) - timedelta(days=self.request.keep_days)

    def _rules(self) -> tuple[RetentionRule, ...]:
        if self.why_skipped is not None:
            return ()
        end = now(self.ledger.machine) - timedelta(days=self.request.ledger_keep_days)
        return retention_rules(self.last.number, self.last.since, last_batch_before(self.ledger.batches.done_at(), end))


_UNKNOWN = FileCounts(0, 0, None, None, None, None)

_CONFLICT = "another run changed it at the same moment: skipped until the next maintenance"


def _name_of_copy(state: TableState) -> str:
    return f"{state.full_name} (displaced, OID {state.oid})"


def _name(states: Sequence[TableState]) -> str:
    """The name of a Delta table in the report."""
    return states[0].full_name if len(states) == 1 else str(states[0].path.table)
