"""Tables built anew from the archive, so that no reader sees what is half done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.config.settings import Config
from pgoutput_etl.ingest.rows import count_changes
from pgoutput_etl.load import commit as merge_commit
from pgoutput_etl.load.change_source import ChangeRows
from pgoutput_etl.load.writer import TableResult, Writer
from pgoutput_etl.targets.plan import APPLIED, TableChanges, TablePlan, TableState, TableTask
from pgoutput_etl.targets.planner import make_plan
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.cutoff import Cutoff
from pgoutput_etl.types import UserTypes


@dataclass(slots=True)
class Rebuild:
    """Tables built anew, each put in its place by one commit.

    tables: where all tables stand, by OID. since: where those stood that don't begin with nothing. scratch: a folder
    for what takes more commits.
    """

    spark: SparkSession
    config: Config
    assembly: Assembly
    tables: Mapping[int, TableState]
    since: Mapping[int, TableState]
    progress: Callable[[str], None]
    writer: Writer
    scratch: str

    def lacking(self, rows: DataFrame) -> DataFrame:
        """The rows of commits that the tables in `since` do not have yet, and all rows of other tables."""
        for oid, state in self.since.items():
            rows = rows.where((F.col("relation") != oid) | (F.col("commit_lsn") > state.last_commit_lsn))
        return rows

    def plan(
        self,
        rows: DataFrame,
        oids: Iterable[int],
        places: Mapping[int, str],
        cutoffs: Mapping[int, Cutoff] | None = None,
    ) -> TablePlan:
        """`rows`: those that the tables lack. places: where they are; one that has none, and no rows, is left out."""
        relations, since, cutoffs = self.assembly.relations, self.since, cutoffs or {}
        counted = count_changes(rows, relations)
        whole = {*counted, *(oid for oid in {*places, *since} if oid not in cutoffs)}
        changes = {oid: counted.get(oid, TableChanges(oid)) for oid in oids if oid in whole}
        cutoffs = {oid: cutoff for oid, cutoff in cutoffs.items() if oid in oids}
        states = {oid: replace(state, status=APPLIED) for oid, state in since.items()}
        user_types = UserTypes.of(self.assembly.types.values(), self.config.types)
        plan = make_plan(
            self.config, relations, changes, states, user_types, cutoffs=cutoffs, placed=places, named=self.tables
        )
        for n, task in enumerate(plan.tasks):
            begun = since.get(task.oid)
            moved_from = None if begun is None else (begun.path, begun.version)
            plan.tasks[n] = replace(task, path=places.get(task.oid, task.path), moved_from=moved_from)
        return plan

    def write(self, plan: TablePlan, rows: DataFrame) -> tuple[list[TableResult], list[TableResult]]:
        """What was built, and what was left as it was: at once where it is one commit, else by way of a scratch place,
        so that no reader sees what is half done."""
        tasks = [self._task(task) for task in plan.tasks]
        outcomes = self.writer.write(TablePlan(tasks, plan.held), ChangeRows(rows))
        paths = {task.oid: task.path for task in tasks}
        by_oid = {task.oid: task for task in plan.tasks}
        built, left = [], []
        for outcome in outcomes:
            oid = outcome.state.oid
            if oid not in paths or outcome.state.path != paths[oid]:
                left.append(outcome)
            elif paths[oid] == by_oid[oid].path:
                built.append(outcome)
            else:
                built.append(self._put_in_place(outcome, by_oid[oid]))
        return built, left

    def _task(self, task: TableTask) -> TableTask:
        if len(task.spans) == 1 and task.moved_from is None:
            return replace(task, replaces=True)
        return replace(task, path=f"{self.scratch}/{task.oid}")

    def _put_in_place(self, outcome: TableResult, task: TableTask) -> TableResult:
        self.progress(f"putting {task.shape.relation.namespace}.{task.shape.relation.name} in its place")
        built = outcome.state
        commit = self.writer.commit(task.oid, "rebuilt")
        self.writer.check_claim()
        merge_commit.move(self.spark, built.path, built.version, task.path, commit)
        merge_commit.empty(self.spark, built.path, self.writer.commit(task.oid, "emptied"))
        version = merge_commit.write_result(self.spark, task.path).version
        summary = replace(outcome.summary, path=task.path, version=version)
        return replace(outcome, state=replace(built, path=task.path, version=version), summary=summary)
