"""Rows from before the slot: a snapshot of tables as of an LSN, and behind it what the archive has from there on.

To the rest a snapshot is the table's first transaction: inserts alone, committed at its LSN, in a file before all
others. Its rows are TupleData like any other, so that a value is the same whichever way it came.

Rows are staged first, while other runs go on. Then a batch of the ledger replaces the tables, like a backfill: claimed,
written down before it begins, finished by the next run of any job should it die. A table may then stand further than
the archive: the nightly job passes over what it has already (targets.tables_ahead).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.config.settings import Config
from pgoutput_etl.errors import RunError
from pgoutput_etl.ingest.rows import count_changes
from pgoutput_etl.jobs.snapshot.report import LoadedTable, SnapshotSummary
from pgoutput_etl.jobs.snapshot.request import SnapshotOrder, SnapshotRequest
from pgoutput_etl.jobs.snapshot.staging import Staging, discard, new_types, staged_rows, with_snapshot
from pgoutput_etl.ledger.archive import CommitRange, LedgerArchive, refuse_unreadable
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.ledger import Ledger
from pgoutput_etl.load.rebuild import Rebuild
from pgoutput_etl.load.writer import TableResult, Writer, refuse_existing_rows, unchanged_result
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.masking.policy import masking_policy
from pgoutput_etl.schema.relation_history import (
    RelationEntry,
    RelationHistory,
    RelationSpan,
    is_of_snapshot,
    snapshot_position,
)
from pgoutput_etl.spark.platform import persist, unpersist
from pgoutput_etl.targets.plan import BEFORE_FILES, HELD, HeldTable, TableChanges, TablePlan
from pgoutput_etl.targets.planner import make_plan
from pgoutput_etl.types import UserTypes

Progress = Callable[[str], None]

_NOTHING_YET = Batch("", 0, {}, False, None, {}, 0)


def snapshot(spark: SparkSession, config: Config, request: SnapshotRequest, progress: Progress) -> SnapshotSummary:
    """Raises PgoutputEtlError; nothing is changed then, or what was is taken up by the next run of any job."""
    request.check()
    ledger = Ledger(spark, config.state.root, config.source.name)
    _finish_others(spark, config, ledger, progress)
    archive = LedgerArchive(spark, config, ledger, ledger.last_batch() or _NOTHING_YET)
    _refuse_unreliable(archive)
    order, skipped = Staging(spark, config, archive, request, progress).run()
    loading: _SnapshotLoad | None = None
    try:
        last = ledger.last_batch()  # the nightly job may have run meanwhile
        if last is not None and last.resumed:
            raise RunError(f"another run is at work on batch {last.number}. Run again when it is done")
        archive = LedgerArchive(spark, config, ledger, last or _NOTHING_YET)
        _refuse_unreliable(archive)
        batch = replace(Batch.after(last, {}), backfill=order.to_json())
        with ledger.claimed(last, batch, progress) as check_claim:
            loading = _SnapshotLoad(archive, order, batch, check_claim, progress)
            return loading.run(skipped)
    finally:
        if loading is None or not loading.begun:
            discard(spark, order.staged)


def finish_snapshot(
    spark: SparkSession, config: Config, ledger: Ledger, batch: Batch, order: SnapshotOrder, progress: Progress
) -> SnapshotSummary:
    """A batch of an earlier run that died."""
    with ledger.claimed(batch, batch, progress) as check_claim:
        return _SnapshotLoad(LedgerArchive(spark, config, ledger, batch), order, batch, check_claim, progress).run(())


def _finish_others(spark: SparkSession, config: Config, ledger: Ledger, progress: Progress) -> None:
    last = ledger.last_batch()
    if last is None or not last.resumed:
        return
    order = SnapshotOrder.from_json(last.backfill or "{}")
    if order is None:
        raise RunError(f"batch {last.number} was begun by a run that died. Run jobs/apply.py, which finishes it, first")
    progress(f"batch {last.number} is a snapshot that died: finishing it")
    finish_snapshot(spark, config, ledger, last, order, progress)


def _refuse_unreliable(archive: LedgerArchive) -> None:
    found = archive.assembly.unreliable_from
    if found is not None:
        raise RunError(
            f"from LSN {format_lsn(found[0])} on, bytes of the archive can't be read that may be about any table, so "
            "that a snapshot's would go no further either: jobs/backfill.py --from-quarantine, once they are mended"
        )


@dataclass(slots=True)
class _SnapshotLoad:
    """A batch that replaces tables by a snapshot's rows and the commits of the archive from there on. begun: it is
    written down, so that what is staged has to stay."""

    archive: LedgerArchive
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
        files = archive.files_with(order.oids, since) if since.first <= since.last else []
        rows = staged_rows(archive.spark, order)
        history = self._history()
        loaded = {oid: changes.inserts for oid, changes in count_changes(rows, history).items()}
        if files:
            committed = persist(archive.committed(files, order.oids, since), StorageLevel.DISK_ONLY)
            rows = rows.unionByName(committed, allowMissingColumns=True)
        else:
            committed = None
        try:
            if committed is not None:
                refuse_unreadable(committed)
            return self._write(rows, loaded, skipped)
        finally:
            if committed is not None:
                unpersist(committed)

    def _write(self, rows: DataFrame, loaded: Mapping[int, int], skipped: tuple[str, ...]) -> SnapshotSummary:
        archive, batch = self.archive, self.batch
        changes = count_changes(rows, self._history())
        plan = self._plan(changes)
        known = {state.path for state in batch.tables.values()}
        if not batch.resumed:
            refuse_existing_rows(archive.spark, TablePlan([task for task in plan.tasks if task.path not in known]))
        self.check_claim()
        self.begun = True
        archive.ledger.begin(batch)
        scratch = f"{archive.config.state.root.rstrip('/')}/rebuilt"
        rebuilding = Rebuild(
            archive.spark, archive.config, archive.assembly, batch.tables, {}, self.progress, self._writer(), scratch
        )
        built, left = rebuilding.write(plan, rows)
        outcomes = [*built, *(unchanged_result(outcome, batch.tables) for outcome in left)]
        self.progress("writing the ledger")
        done = {o.state.oid: replace(o.state, snapshot=o.state.version) for o in built}
        archive.ledger.append_relations(self._new_relations(), batch)
        archive.ledger.append_types(new_types(self.order, archive.assembly.types), batch)
        archive.ledger.close_backfill(batch, done, list(done), [])
        discard(archive.spark, self.order.staged)
        return self._summary(batch.number, outcomes, loaded, changes, (*skipped, *plan.skipped))

    def _user_types(self) -> UserTypes:
        types = {**self.archive.assembly.types, **{t.oid: t for t in self.order.types}}
        return UserTypes.of(types.values(), self.archive.config.types)

    def _history(self) -> RelationHistory:
        history = with_snapshot(self.archive.relations, self.order.relations)
        history.mask = masking_policy(self.archive.config, history, self._user_types(), {})
        return history

    def _plan(self, counted: Mapping[int, TableChanges]) -> TablePlan:
        archive, order, batch, history = self.archive, self.order, self.batch, self._history()
        relations = {relation.oid: relation for relation in order.relations}
        damaged = {oid for oid in relations if self._may_lack_rows(oid)}
        changes = {}
        for oid in relations.keys() - damaged:
            begin = (order.lsn, BEFORE_FILES, 0)
            empty = TableChanges(oid, runs=(RelationSpan(begin, history.masked(relations[oid])),), last_row=begin)
            changes[oid] = counted.get(oid, empty)
        places = {oid: state.path for oid, state in batch.tables.items() if state.path}
        named = batch.tables
        plan = make_plan(archive.config, history, changes, {}, self._user_types(), placed=places, named=named)
        plan.tasks = [replace(task, path=places.get(task.oid, task.path)) for task in plan.tasks]
        plan.held += [
            HeldTable(oid, relations[oid], _MAY_LACK_ROWS, TableChanges(oid), batch.tables.get(oid)) for oid in damaged
        ]
        return plan

    def _new_relations(self) -> list[RelationEntry]:
        """Of tables that the archive has said nothing of, as their server described them."""
        known: dict[int, RelationEntry] = {entry.relation.oid: entry for entry in self.archive.relations.entries}
        last_file = self.archive.last_file
        found = []
        for relation in self.order.relations:
            entry = known.get(relation.oid)
            if entry is None or (is_of_snapshot(entry) and entry.relation != relation):
                found.append(RelationEntry(snapshot_position(last_file, self.batch.number), relation, None))
        return found

    def _may_lack_rows(self, oid: int) -> bool:
        """Whether commits behind the snapshot may be among bytes that could not be read."""
        state = self.batch.tables.get(oid)
        is_behind = self.order.lsn <= self.batch.last_commit_lsn
        return is_behind and self.archive.assembly.was_damaged and (state is None or state.status == HELD)

    def _writer(self) -> Writer:
        batch, archive = self.batch, self.archive
        through = max(batch.last_commit_lsn, self.order.through)
        return Writer.of(archive.spark, archive.config, batch, through, self.check_claim, self._path_of, self.progress)

    def _path_of(self, number: int) -> str:
        return "the snapshot" if number == BEFORE_FILES else self.archive.ledger.path_of(self.batch, number)

    def _summary(
        self,
        batch: int,
        outcomes: list[TableResult],
        loaded: Mapping[int, int],
        changes: Mapping[int, TableChanges],
        skipped: tuple[str, ...],
    ) -> SnapshotSummary:
        tables = []
        for outcome in sorted(outcomes, key=lambda o: (o.summary.schema, o.summary.table)):
            oid = outcome.state.oid
            own = loaded.get(oid, 0)
            since = changes[oid].total - own if oid in changes else 0
            tables.append(LoadedTable(outcome.summary, own, since))
        reached = self.batch.last_commit_lsn
        return SnapshotSummary(
            self.archive.config.source.name,
            batch,
            self.order.lsn,
            reached,
            reached < self.order.through,
            tuple(tables),
            skipped,
        )


_MAY_LACK_ROWS = (
    "bytes of the archive behind the snapshot could not be read, and may be about it: take a snapshot that is newer "
    "than all that was read"
)
