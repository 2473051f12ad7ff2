"""Rebuilds tables from the archive without exposing an intermediate state to readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from pgoutput_etl.config.settings import Config
from pgoutput_etl.ingest.committed_rows import CommittedBlocks
from pgoutput_etl.load.holding import FAULTS
from pgoutput_etl.load.writer import TableResult, Writer
from pgoutput_etl.places import Place
from pgoutput_etl.schema.layout import Readers
from pgoutput_etl.targets.moves import with_moves, with_removals
from pgoutput_etl.targets.plan import APPLIED, SchemaSpan, TableChanges, TablePlan, TableState, TableTask
from pgoutput_etl.targets.planner import make_plan
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.cutoff import Cutoff
from pgoutput_etl.types import UserTypes


def in_their_places(plan: TablePlan, places: Mapping[int, Place]) -> TablePlan:
    """The plan to rebuild tables where they are now. places: by OID.

    If the configuration names another place by now, the next batch moves the table there. A table that enters or leaves
    a shared table moves at once, because the columns of other sources may be the reason for the rebuild.
    """
    tasks, vacated = [], []
    for task in plan.tasks:
        place = places.get(task.oid, task.path)
        if place != task.path and (place.tag or task.path.tag):
            vacated.append(place)
        else:
            task = replace(task, path=place)
        tasks.append(task)
    return replace(plan, tasks=tasks, vacated=vacated)


def _in_scratch(span: SchemaSpan) -> SchemaSpan:
    """The span with all Delta features from the start: the table that it replaces gains none of them (commit.py)."""
    layout = span.shape.layout
    readers = Readers.SPARK if layout.readers is Readers.AUTO else layout.readers
    return replace(span, shape=replace(span.shape, layout=replace(layout, readers=readers)))


@dataclass(slots=True)
class Rebuild:
    """Rebuilds tables; each one appears in its place with a single commit.

    tables: the state of all tables, by OID. since: states that tables start from; the others start empty. scratch: a
    folder for tables that need more than one commit.
    """

    config: Config
    assembly: Assembly
    tables: Mapping[int, TableState]
    since: Mapping[int, TableState]
    progress: Callable[[str], None]
    writer: Writer
    scratch: str

    def missing_rows(self, rows: CommittedBlocks) -> CommittedBlocks:
        """The rows committed after the state that each table starts from."""
        return rows.after({oid: state.last_commit_lsn for oid, state in self.since.items()})

    def plan(
        self,
        rows: CommittedBlocks,
        oids: Iterable[int],
        places: Mapping[int, Place],
        cutoffs: Mapping[int, Cutoff] | None = None,
    ) -> TablePlan:
        """Plans the rebuild. rows: the result of `missing_rows`. places: paths by OID; a table without a path and
        without rows is skipped."""
        relations, since, cutoffs = self.assembly.relations, self.since, cutoffs or {}
        counts = rows.counts(relations)
        included = {*counts, *(oid for oid in {*places, *since} if oid not in cutoffs)}
        changes = {oid: counts.get(oid, TableChanges(oid)) for oid in oids if oid in included}
        changes = with_moves(relations, changes, since, self.writer.last_commit_lsn, cutoffs)
        changes = with_removals(relations, changes, since, self.writer.last_commit_lsn, cutoffs)
        cutoffs = {oid: cutoff for oid, cutoff in cutoffs.items() if oid in oids}
        states = {oid: replace(state, status=APPLIED) for oid, state in since.items()}
        user_types = UserTypes.of(self.assembly.types.values(), self.config.types)
        plan = make_plan(
            self.config,
            relations,
            changes,
            states,
            user_types,
            cutoffs=cutoffs,
            placed=places,
            named=self.tables,
            accepts_changes=True,
        )
        for n, task in enumerate(plan.tasks):
            start = since.get(task.oid)
            plan.tasks[n] = replace(task, moved_from=None if start is None else (start.path, start.version))
        return in_their_places(plan, places)

    def write(self, plan: TablePlan, rows: CommittedBlocks) -> tuple[list[TableResult], list[TableResult]]:
        """Returns the results of rebuilt tables, and those of unchanged tables. A table that takes several commits is
        first built in the scratch folder."""
        tasks = [self._task(task) for task in plan.tasks]
        results = self.writer.write(TablePlan(tasks, plan.held), self.writer.targets.archived_changes(rows, tasks))
        paths = {task.oid: task.path for task in tasks}
        by_oid = {task.oid: task for task in plan.tasks}
        rebuilt: list[TableResult] = []
        unchanged: list[TableResult] = []
        for result in results:
            oid = result.state.oid
            if oid not in paths or result.state.path != paths[oid]:
                unchanged.append(result)
            elif paths[oid] == by_oid[oid].path:
                rebuilt.append(result)
            else:
                try:
                    rebuilt.append(self._replace_table(result, by_oid[oid]))
                except FAULTS as error:
                    task = replace(by_oid[oid], state=self.tables.get(oid))
                    unchanged.append(self.writer.held(task, self.writer.fault(error, f"replacing {task.full_name}")))
        for result in rebuilt:
            before = self.tables.get(result.state.oid)
            if before is not None and before.path in plan.vacated:
                self.writer.vacate(before.path)
        return rebuilt, unchanged

    def _task(self, task: TableTask) -> TableTask:
        if len(task.spans) == 1 and task.moved_from is None:
            return replace(task, replaces=True)
        spans = tuple(map(_in_scratch, task.spans))
        return replace(task, spans=spans, path=Place(f"{self.scratch}/{task.oid}"))

    def _replace_table(self, result: TableResult, task: TableTask) -> TableResult:
        """Raises TableError if the columns conflict with those of sources that share the table."""
        self.progress(f"replacing {task.full_name}")
        built = result.state
        commit = self.writer.commit(task.oid, "rebuilt")
        self.writer.check_claim()
        targets = self.writer.targets
        targets.move(built.path, built.version, task.path, commit, task)
        # Only now: if this run dies before, the run that finishes it can move the rows again.
        targets.empty(built.path, self.writer.commit(task.oid, "emptied"))
        version = targets.last_result(task.path, commit).version
        # A finished rebuild's scratch folder may be empty again.
        rows = targets.count(task.path) if self.writer.batch.resumed else result.summary.rows
        summary = replace(result.summary, path=str(task.path), version=version, rows=rows)
        return replace(result, state=replace(built, path=task.path, version=version, rows=rows), summary=summary)
