"""Replaces tables with a snapshot's rows as of an LSN, and applies the archive's commits from that LSN on.

The load code sees a snapshot as the table's first transaction: inserts only, committed at the snapshot's LSN, in a file
before all others. Its rows are TupleData, so values convert the same way as replicated ones.

The rows are staged first, while other runs may continue. Then a batch of the ledger replaces the tables, like a
backfill: it is claimed, recorded before it begins, and finished by the next run of any job if it dies. A loaded table
may be ahead of the archive; the nightly job skips the commits it already has (targets.plan.tables_ahead).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress
from pgoutput_etl.errors import AnotherRunError, ConfigError, RunError
from pgoutput_etl.ingest.committed_rows import SparkRows
from pgoutput_etl.ingest.rows import count_changes
from pgoutput_etl.jobs.command_line import jdbc_job_line, job_line
from pgoutput_etl.jobs.next_commands import Findings, next_commands
from pgoutput_etl.jobs.snapshot.check_report import CheckReport, check_server
from pgoutput_etl.jobs.snapshot.checks import OK, Coverage, order_problem
from pgoutput_etl.jobs.snapshot.report import LoadedTable, SnapshotSummary
from pgoutput_etl.jobs.snapshot.request import Repair, SnapshotOrder, SnapshotRequest
from pgoutput_etl.jobs.snapshot.staging import Staging, discard, staged_rows, with_snapshot
from pgoutput_etl.ledger.archive import CommitRange
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load.rebuild import Rebuild, in_their_places
from pgoutput_etl.load.repair import RepairChanges
from pgoutput_etl.load.summary import TableSummary
from pgoutput_etl.load.targets import DeltaTargets
from pgoutput_etl.load.writer import TableResult, Writer, refuse_existing_rows, unchanged_result
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.masking.policy import masking_policy
from pgoutput_etl.postgres.connection import credentials
from pgoutput_etl.postgres.jdbc import Server, jdbc_errors
from pgoutput_etl.postgres.source_server import QUERY, SourceServer
from pgoutput_etl.schema.partitions import has_same_identity
from pgoutput_etl.schema.relation_history import (
    RelationEntry,
    RelationHistory,
    RelationSpan,
    is_of_snapshot,
    snapshot_position,
)
from pgoutput_etl.targets.condition import conditions_of
from pgoutput_etl.targets.location import scratch_folder
from pgoutput_etl.targets.plan import (
    BEFORE_FILES,
    HELD,
    CompleteSince,
    HeldTable,
    Since,
    TableChanges,
    TablePlan,
    TableTask,
    others_at,
    own_places,
)
from pgoutput_etl.targets.planner import make_plan
from pgoutput_etl.targets.target_plan import refuse_other_settings, settings_of
from pgoutput_etl.types import UserTypes

_NO_BATCH = Batch("", 0, {}, False, None, {}, 0)


def snapshot(spark: SparkSession, config: Config, request: SnapshotRequest, progress: Progress) -> SnapshotSummary:
    """Raises PgoutputEtlError. Then nothing was changed, or the next run of any job finishes the batch."""
    request.check()
    ledger = DeltaLedger.of(spark, config)
    _finish_pending_snapshot(spark, config, ledger, progress)
    archive = DeltaArchive.of(spark, config, ledger, ledger.batches.last() or _NO_BATCH)
    _refuse_unreliable(archive)
    remarks = _refuse_lost_rows(archive, request)
    staged = Staging(spark, config, archive, request, progress).run()
    load: _SnapshotLoad | None = None
    try:
        last = ledger.batches.last()  # another job may have run while the rows were staged
        if last is not None and last.resumed:
            raise AnotherRunError(f"another run is at work on batch {last.number}. Run again when it is done")
        archive = DeltaArchive.of(spark, config, ledger, last or _NO_BATCH)
        _refuse_unreliable(archive)
        batch = Batch.after(last, {})
        with ledger.batches.claimed(last, batch, progress) as check_claim:
            if _is_overtaken(staged.order, batch):
                progress("comparing again: another run has changed the tables meanwhile, and the next one waits")
                discard(spark, staged.order.staged)
                staged = Staging(spark, config, archive, request, progress).run()
            batch = replace(batch, work=staged.order.to_json(), settings=settings_of(config))
            load = _SnapshotLoad(archive, staged.order, batch, check_claim, progress)
            summary = load.run(staged.skipped)
            unread = (LoadedTable(table, 0, 0) for table in staged.unread)
            tables = (*summary.tables, *unread)
            held = {loaded.table.name: loaded.table.held for loaded in tables if loaded.table.held is not None}
            steps = next_commands(config, Findings(held, conditions=summary.conditions))
            return replace(summary, remarks=remarks, tables=tables, next=steps)
    finally:
        if load is None or not load.begun:
            discard(spark, staged.order.staged)


def _is_overtaken(order: SnapshotOrder, batch: Batch) -> bool:
    """True if a table has changed since it was compared. Rows without a difference may then be behind the snapshot."""
    for oid, repair in (order.repairs or {}).items():
        state = batch.tables.get(oid)
        if state is None or state.version != repair.version:
            return True
    return False


def check(spark: SparkSession, config: Config, request: SnapshotRequest) -> CheckReport:
    """Compares the server with the order of an initial load. Changes nothing. Raises PgoutputEtlError."""
    request.check()
    ledger = DeltaLedger.of(spark, config)
    return _checks(DeltaArchive.of(spark, config, ledger, ledger.batches.last() or _NO_BATCH), request)


def _checks(archive: DeltaArchive, request: SnapshotRequest) -> CheckReport:
    config, url = archive.config, request.jdbc or ""
    server = Server(archive.spark, url, credentials(url, os.environ), 1)
    with jdbc_errors():
        [row] = server.ask(QUERY).toArrow().to_pylist()
    return check_server(SourceServer.of(row["server"]), config, request, _coverage(archive))


def _coverage(archive: DeltaArchive) -> Coverage:
    commits = archive.commits
    return Coverage(None, None) if commits is None else Coverage(commits.first, commits.last)


def _refuse_lost_rows(archive: DeltaArchive, request: SnapshotRequest) -> tuple[str, ...]:
    """Returns remarks on the server. Raises ConfigError if rows and archive don't fit together."""
    if request.jdbc is None:
        apply = job_line(archive.config, "apply")
        problem = order_problem(request.lsn or 0, request.slot_lsn, None, _coverage(archive).first, apply)
        if problem is not None:
            raise ConfigError(f"--lsn: loading now would lose rows: {problem}")
        return ()
    report = _checks(archive, request)
    losses = [f"{check.subject}: {check.text}" for check in report.checks if check.loses_rows]
    if losses:
        options = ("--tables", ",".join(request.tables), "--jdbc", request.jdbc, "--check")
        raise ConfigError(
            f"loading now would lose rows: {'; '.join(losses)}. For the commands that solve this, run "
            f"{jdbc_job_line(archive.config, 'snapshot', *options)}"
        )
    return tuple(
        f"Check {check.status}: {check.subject}: {check.text}" for check in report.checks if check.status != OK
    )


def finish_snapshot(
    spark: SparkSession, config: Config, ledger: DeltaLedger, batch: Batch, order: SnapshotOrder, progress: Progress
) -> SnapshotSummary:
    """Finishes the batch of a run that died. Raises RunError if it was begun under another configuration."""
    names = [(relation.namespace, relation.name) for relation in order.relations]
    refuse_other_settings(batch.settings, config, names, batch.number, may_skip=False)
    with ledger.batches.claimed(batch, batch, progress) as check_claim:
        return _SnapshotLoad(DeltaArchive.of(spark, config, ledger, batch), order, batch, check_claim, progress).run(())


def _finish_pending_snapshot(spark: SparkSession, config: Config, ledger: DeltaLedger, progress: Progress) -> None:
    last = ledger.batches.last()
    if last is None or not last.resumed:
        return
    last.refuse_erasure()
    order = SnapshotOrder.from_json(last.work or "{}")
    if order is None:
        raise RunError(f"batch {last.number} was begun by a run that died. Run jobs/apply.py first, which finishes it")
    progress(f"batch {last.number}: finishing the snapshot of a run that died")
    finish_snapshot(spark, config, ledger, last, order, progress)


def _refuse_unreliable(archive: DeltaArchive) -> None:
    unreliable_from = archive.assembly.unreliable_from
    if unreliable_from is not None:
        raise RunError(
            f"from LSN {format_lsn(unreliable_from[0])} on, the archive has unreadable bytes that may concern any "
            "table, so loaded tables could not be updated either. Repair the files, then run jobs/backfill.py "
            "--from-quarantine first"
        )


@dataclass(slots=True)
class _SnapshotLoad:
    """Runs the batch. begun: the ledger has recorded it, so the staged rows must stay."""

    archive: DeltaArchive
    order: SnapshotOrder
    batch: Batch
    check_claim: Callable[[], None]
    progress: Progress
    begun: bool = False

    def run(self, skipped: tuple[str, ...]) -> SnapshotSummary:
        archive, order, batch = self.archive, self.order, self.batch
        if not order.relations:
            return self._summary(0, [], {}, {}, skipped)
        since = CommitRange(order.lsn, batch.last_commit_lsn)
        has_later = since.first <= since.last and order.repairs is None  # a table that is repaired hasn't changed since
        files = archive.files_with(order.oids, since) if has_later else []
        rows = staged_rows(archive.spark, order)
        loaded = {oid: changes.inserts for oid, changes in count_changes(rows, self._history()).items()}
        if not files:
            return self._write(rows, loaded, skipped)
        with archive.reading(files, order.oids, since) as later:
            return self._write(rows.unionByName(later.frame, allowMissingColumns=True), loaded, skipped)

    def _write(self, rows: DataFrame, loaded: Mapping[int, int], skipped: tuple[str, ...]) -> SnapshotSummary:
        archive, order, batch = self.archive, self.order, self.batch
        changes = count_changes(rows, self._history())
        plan = self._plan(changes) if order.repairs is None else self._repair_plan(changes, order.repairs)
        if not batch.resumed:
            refuse_existing_rows(DeltaTargets(archive.spark), plan, self._at_new_paths(plan))
        self.check_claim()
        self.begun = True
        archive.ledger.batches.begin(batch)
        if order.repairs is None:
            rebuilt, results = self._replace(plan, rows)
        else:
            rebuilt, results = self._repair(plan, rows, order.repairs)
        self.progress("writing the ledger")
        since = CompleteSince(Since.SNAPSHOT, self.order.lsn)
        done = {r.state.oid: replace(r.state, snapshot=r.state.version, complete_since=since) for r in rebuilt}
        archive.ledger.history.append_relations(self._new_relations(), batch)
        types = [t for t in self.order.types if archive.assembly.types.get(t.oid) != t]
        archive.ledger.history.append_types(types, batch)
        archive.ledger.close_backfill(batch, done, list(done), [])
        discard(archive.spark, self.order.staged)
        summary = self._summary(batch.number, results, loaded, changes, (*skipped, *plan.skipped))
        return replace(summary, conditions=conditions_of(done.values(), archive.config))

    def _at_new_paths(self, plan: TablePlan) -> list[TableTask]:
        """The tasks whose path no table has yet. Raises RunError if another table has it: the nightly job moves that
        one first. Only a table whose name another OID has now makes room later."""
        tables = self.batch.tables
        own = own_places(tables, tables)
        new = []
        for task in plan.tasks:
            others = others_at(tables, task)
            relation = task.shape.relation
            if any((state.schema, state.table) != (relation.namespace, relation.name) for state in others):
                raise RunError(
                    f"{task.path} has the rows of {others[0].full_name}, and is the place of {task.full_name} now: "
                    "apply the configuration first, which moves them",
                    next_job=("apply",),
                )
            if not others and own.get(task.oid) != task.path:
                new.append(task)
        return new

    def _replace(self, plan: TablePlan, rows: DataFrame) -> tuple[list[TableResult], list[TableResult]]:
        """The results of replaced tables, and of all."""
        archive, tables = self.archive, self.batch.tables
        scratch = scratch_folder(archive.config)
        rebuild = Rebuild(archive.config, archive.assembly, tables, {}, self.progress, self._writer(), scratch)
        rebuilt, unchanged = rebuild.write(plan, SparkRows(rows))
        return rebuilt, [*rebuilt, *(unchanged_result(result, tables) for result in unchanged)]

    def _repair(
        self, plan: TablePlan, rows: DataFrame, repairs: Mapping[int, Repair]
    ) -> tuple[list[TableResult], list[TableResult]]:
        """The results of tables that now equal the snapshot, and of all."""
        ranges = {oid: repair.ranges for oid, repair in repairs.items()}
        written = self._writer().write(plan, RepairChanges(self.archive.spark, SparkRows(rows), ranges))
        equal = [self._equal(oid) for oid in repairs.keys() - {result.state.oid for result in written}]
        repaired = [result for result in written if result.summary.held is None]
        return [*repaired, *equal], [*written, *equal]

    def _equal(self, oid: int) -> TableResult:
        """The result of a table without a difference."""
        state = self.batch.tables[oid]
        reached = max(state.last_commit_lsn, self.order.through)
        state = replace(state, last_commit_lsn=reached, mismatches=None, doubts=())
        place = (state.schema, state.table, str(state.path), state.version, state.rows or 0)
        return TableResult(state, TableSummary(*place, notes=("no difference",)))

    def _user_types(self) -> UserTypes:
        types = {**self.archive.assembly.types, **{t.oid: t for t in self.order.types}}
        return UserTypes.of(types.values(), self.archive.config.types)

    def _history(self) -> RelationHistory:
        history = with_snapshot(self.archive.relations, self.order.relations)
        history.mask = masking_policy(self.archive.config, history, self._user_types(), {})
        return history

    def _plan(self, counts: Mapping[int, TableChanges]) -> TablePlan:
        archive, order, batch, history = self.archive, self.order, self.batch, self._history()
        relations = {relation.oid: relation for relation in order.relations}
        damaged = {oid for oid in relations if self._may_lack_rows(oid)}
        changes = {}
        for oid in relations.keys() - damaged:
            start = (order.lsn, BEFORE_FILES, 0)
            empty = TableChanges(oid, runs=(RelationSpan(start, history.masked(relations[oid])),), last_row=start)
            found = counts.get(oid, empty)
            changes[oid] = replace(found, runs=(replace(found.runs[0], start=start), *found.runs[1:]))
        paths = own_places(batch.tables, batch.tables)
        user_types = self._user_types()
        plan = make_plan(archive.config, history, changes, {}, user_types, placed=paths, named=batch.tables)
        plan = in_their_places(plan, paths)
        plan.held += [
            HeldTable(oid, relations[oid], _MAY_LACK_ROWS, TableChanges(oid), batch.tables.get(oid)) for oid in damaged
        ]
        return plan

    def _repair_plan(self, counts: Mapping[int, TableChanges], repairs: Mapping[int, Repair]) -> TablePlan:
        """Of the tables with a difference."""
        archive, batch, history, start = self.archive, self.batch, self._history(), (self.order.lsn, BEFORE_FILES, 0)
        changes = {}
        for relation in self.order.relations:
            if repairs[relation.oid].ranges != ():
                empty = TableChanges(relation.oid, runs=(RelationSpan(start, relation),), last_row=start)
                changes[relation.oid] = counts.get(relation.oid, empty)
        # What was found against the rows before the repair is mended.
        states = {oid: replace(batch.tables[oid], mismatches=None, doubts=()) for oid in changes}
        return make_plan(archive.config, history, changes, states, self._user_types(), named=batch.tables)

    def _new_relations(self) -> list[RelationEntry]:
        """Entries for tables that the archive doesn't describe, from the server's catalog."""
        known: dict[int, RelationEntry] = {entry.relation.oid: entry for entry in self.archive.relations.entries}
        position = snapshot_position(self.archive.last_file, self.batch.number)
        entries = []
        for relation in self.order.relations:
            entry = known.get(relation.oid)
            if entry is None or (is_of_snapshot(entry) and entry.relation != relation):
                entries.append(RelationEntry(position, relation, None))
        for root in {relation.oid for relation in self.order.relations} & self.order.partitions.keys():
            sent = {oid: entry.relation for oid, entry in known.items() if entry.root == root}
            entries += [
                RelationEntry(position, partition, None, root)
                for partition in self.order.partitions[root]
                if partition.oid not in sent or not has_same_identity(sent[partition.oid], partition)
            ]
        return entries

    def _may_lack_rows(self, oid: int) -> bool:
        """True if unreadable bytes may contain commits after the snapshot."""
        state = self.batch.tables.get(oid)
        is_older = self.order.lsn <= self.batch.last_commit_lsn
        return is_older and self.archive.assembly.was_damaged and (state is None or state.status == HELD)

    def _writer(self) -> Writer:
        batch, archive = self.batch, self.archive
        through = max(batch.last_commit_lsn, self.order.through)
        return Writer(
            DeltaTargets(archive.spark), archive.config, batch, through, self.check_claim, self._path_of, self.progress
        )

    def _path_of(self, number: int) -> str:
        return "the snapshot" if number == BEFORE_FILES else self.archive.ledger.files.path_of(self.batch, number)

    def _summary(
        self,
        batch: int,
        results: list[TableResult],
        loaded: Mapping[int, int],
        changes: Mapping[int, TableChanges],
        skipped: tuple[str, ...],
    ) -> SnapshotSummary:
        tables = []
        for result in sorted(results, key=lambda r: (r.summary.schema, r.summary.table)):
            oid = result.state.oid
            rows = loaded.get(oid, 0)
            later_changes = changes[oid].total - rows if oid in changes else 0
            tables.append(LoadedTable(result.summary, rows, later_changes))
        source, lsn = self.archive.config.source.name, self.batch.last_commit_lsn
        waits = lsn < self.order.through
        is_repair = self.order.repairs is not None
        return SnapshotSummary(source, batch, self.order.lsn, lsn, waits, tuple(tables), skipped, repaired=is_repair)


_MAY_LACK_ROWS = (
    "unreadable bytes after the snapshot's LSN may concern this table: take a snapshot that is newer than everything "
    "read so far"
)
