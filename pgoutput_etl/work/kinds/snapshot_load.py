"""Replaces tables with a snapshot's rows as of an LSN, and applies the archive's commits from that LSN onward.

To the load code, a snapshot is the table's first transaction: only INSERTs, committed at the snapshot's LSN, in a file
before all others. Its rows are TupleData, so their values are converted like replicated ones.

The rows are staged first, while other runs may continue. Then a batch replaces the tables. A loaded table may be ahead
of the archive; `apply` skips the commits that it already includes (targets.plan.tables_ahead).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from pgoutput_etl.console import Progress
from pgoutput_etl.errors import RunError
from pgoutput_etl.ingest.committed_rows import CommittedBlocks
from pgoutput_etl.ledger.archive import LedgerArchive
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.load.rebuild import Rebuild, in_their_places
from pgoutput_etl.load.summary import TableSummary
from pgoutput_etl.load.writer import TableResult, Writer, refuse_existing_rows, unchanged_result
from pgoutput_etl.masking.policy import masking_policy
from pgoutput_etl.protocol.messages import Relation, Type
from pgoutput_etl.schema.partitions import has_same_identity
from pgoutput_etl.schema.relation_history import (
    RelationEntry,
    RelationHistory,
    RelationSpan,
    is_of_snapshot,
    snapshot_position,
)
from pgoutput_etl.targets.location import scratch_folder
from pgoutput_etl.targets.moves import with_removals
from pgoutput_etl.targets.plan import (
    BEFORE_FILES,
    HELD,
    CompleteSince,
    HeldTable,
    Since,
    TableChanges,
    TablePlan,
    TableState,
    TableTask,
    others_at,
    own_places,
)
from pgoutput_etl.targets.planner import make_plan
from pgoutput_etl.targets.target_plan import settings_of
from pgoutput_etl.transactions.statistics import CommitRange
from pgoutput_etl.types import UserTypes
from pgoutput_etl.work.batch import Nothing, Prepared, World
from pgoutput_etl.work.kinds.snapshot_order import Repair, SnapshotOrder


@dataclass(frozen=True, slots=True)
class SnapshotResult:
    """batch: 0 if nothing was done. lsn: the last commit. states: of the tables that now have the snapshot's rows.
    loaded: number of the snapshot's rows, by OID; changes: including later changes. skipped: names of tables that the
    configuration skips."""

    batch: int
    lsn: int
    order: SnapshotOrder
    tables: Collection[TableResult] = ()
    states: Collection[TableState] = ()
    loaded: Mapping[int, int] = field(default_factory=dict)
    changes: Mapping[int, TableChanges] = field(default_factory=dict)
    skipped: Sequence[str] = ()


def with_snapshot(history: RelationHistory, relations: Sequence[Relation]) -> RelationHistory:
    """Adds the snapshot's relations before the archive's, so that each applies to its own rows."""
    first = [RelationEntry((BEFORE_FILES, 0), relation, None) for relation in relations]
    return RelationHistory.of([*history.entries, *first])


def types_with(archive: LedgerArchive, types: Iterable[Type]) -> UserTypes:
    """The archive's user types, and the snapshot's."""
    known = {**archive.assembly.types, **{t.oid: t for t in types}}
    return UserTypes.of(known.values(), archive.config.types)


@dataclass(slots=True)
class SnapshotLoad(Prepared[SnapshotResult]):
    """Replaces or repairs tables with staged rows. begun: the ledger has recorded the batch, so the staged rows must be
    kept. unique: OIDs of tables in whose staged rows each replica identity occurs once, as far as this run knows.
    loaded: number of staged rows, by OID."""

    world: World
    archive: LedgerArchive
    order: SnapshotOrder
    progress: Progress
    unique: frozenset[int] = frozenset()
    begun: bool = False
    batch: Batch = field(init=False)
    check_claim: Callable[[], None] = field(init=False)
    rows: CommittedBlocks = field(init=False)
    loaded: Mapping[int, int] = field(init=False)
    changes: Mapping[int, TableChanges] = field(init=False)
    plan: TablePlan = field(init=False)
    written: list[TableResult] = field(default_factory=list)
    results: list[TableResult] = field(default_factory=list)
    done: dict[int, TableState] = field(default_factory=dict)

    @contextmanager
    def prepare(
        self, batch: Batch, check_claim: Callable[[], None]
    ) -> Iterator[SnapshotLoad | Nothing[SnapshotResult]]:
        archive, definitions = self.archive, self.archive.relations.definitions
        order = replace(self.order, relations=tuple(map(definitions.typed, self.order.relations)))
        self.order, self.check_claim = order, check_claim
        self.batch = batch = batch.with_order(settings_of(archive.config), order.to_json())
        if not order.relations:
            yield Nothing(SnapshotResult(0, batch.last_commit_lsn, order))
            return
        since = CommitRange(order.lsn, batch.last_commit_lsn)
        has_later = since.first <= since.last and order.repairs is None  # a repaired table hasn't changed since
        files = archive.files_with(order.oids, since) if has_later else []
        with ExitStack() as stack:
            staged = replace(archive.staged(order.staged, order.oids), unique=self.unique)
            self.changes = staged.counts(self._history())
            self.loaded = {oid: changes.inserts for oid, changes in self.changes.items()}
            self.rows = staged
            if files:
                self.rows = staged.plus(stack.enter_context(archive.reading(files, order.oids, since)))
                self.changes = self.rows.counts(self._history())
            repairs = order.repairs
            self.plan = self._plan(self.changes) if repairs is None else self._repair_plan(self.changes, repairs)
            if not batch.resumed:
                refuse_existing_rows(self.world.targets, self.plan, self._at_new_paths(self.plan))
            yield self

    def begin(self, record: Callable[[], None]) -> None:
        self.begun = True
        record()

    def write(self) -> None:
        if self.order.repairs is None:
            self._replace()
        else:
            self._repair(self.order.repairs)

    def close(self) -> None:
        self.progress("writing the ledger")
        archive, batch, since = self.archive, self.batch, CompleteSince(Since.SNAPSHOT, self.order.lsn)
        repairs = self.order.repairs or {}
        for result in self.written:
            state = replace(result.state, snapshot=result.state.version)
            is_whole = state.oid not in repairs or repairs[state.oid].is_whole
            self.done[state.oid] = replace(state, complete_since=since) if is_whole else state
        archive.ledger.history.append_relations(self._new_relations(), batch)
        types = [t for t in self.order.types if archive.assembly.types.get(t.oid) != t]
        archive.ledger.history.append_types(types, batch)
        archive.ledger.close_backfill(batch, self.done, list(self.done), [])
        archive.discard(self.order.staged)

    def result(self) -> SnapshotResult:
        number, lsn, counts = self.batch.number, self.batch.last_commit_lsn, (self.loaded, self.changes)
        return SnapshotResult(number, lsn, self.order, self.results, self.done.values(), *counts, self.plan.skipped)

    def _at_new_paths(self, plan: TablePlan) -> list[TableTask]:
        """The tasks whose path no table has yet. Raises RunError if another table has it: `apply` must first move that
        table. A table whose name now belongs to another OID makes room later."""
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

    def _replace(self) -> None:
        archive, tables = self.archive, self.batch.tables
        scratch = scratch_folder(archive.config)
        rebuild = Rebuild(archive.config, archive.assembly, tables, {}, self.progress, self._writer(), scratch)
        self.written, unchanged = rebuild.write(self.plan, self.rows)
        self.results = [*self.written, *(unchanged_result(result, tables) for result in unchanged)]

    def _repair(self, repairs: Mapping[int, Repair]) -> None:
        ranges = {oid: repair.ranges for oid, repair in repairs.items()}
        written = self._writer().write(self.plan, self.world.repair_changes(self.rows, self.plan.tasks, ranges))
        equal = [self._equal(oid) for oid in repairs.keys() - {result.state.oid for result in written}]
        self.written = [*(result for result in written if result.summary.held is None), *equal]
        self.results = [*written, *equal]

    def _equal(self, oid: int) -> TableResult:
        """The result for a table that equals the snapshot, which needs no write."""
        state = self.batch.tables[oid]
        reached = max(state.last_commit_lsn, self.order.through)
        state = replace(state, last_commit_lsn=reached, mismatches=None, doubts=())
        place = (state.schema, state.table, str(state.path), state.version, state.rows or 0)
        return TableResult(state, TableSummary(*place, notes=("no difference",)))

    def _user_types(self) -> UserTypes:
        return types_with(self.archive, self.order.types)

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
        changes = with_removals(archive.relations, changes, {}, batch.last_commit_lsn)
        paths = own_places(batch.tables, batch.tables)
        user_types = self._user_types()
        plan = make_plan(archive.config, history, changes, {}, user_types, placed=paths, named=batch.tables)
        plan = in_their_places(plan, paths)
        plan.held += [
            HeldTable(oid, relations[oid], _MAY_LACK_ROWS, TableChanges(oid), batch.tables.get(oid)) for oid in damaged
        ]
        return plan

    def _repair_plan(self, counts: Mapping[int, TableChanges], repairs: Mapping[int, Repair]) -> TablePlan:
        """The plan for the tables with differences."""
        archive, batch, history, start = self.archive, self.batch, self._history(), (self.order.lsn, BEFORE_FILES, 0)
        changes = {}
        for relation in self.order.relations:
            if relation.oid in counts or repairs[relation.oid].ranges != ():
                empty = TableChanges(relation.oid, runs=(RelationSpan(start, relation),), last_row=start)
                changes[relation.oid] = counts.get(relation.oid, empty)
        # The repair resolves all problems found in the rows before it.
        mended = {oid: replace(batch.tables[oid], mismatches=None, doubts=()) for oid in changes}
        states = {oid: state if repairs[oid].is_whole else batch.tables[oid] for oid, state in mended.items()}
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
        through = self.order.through
        if self.batch.state is not None:  # without files, the archive has no commit after the snapshot
            through = max(self.batch.last_commit_lsn, through)
        callbacks = (self.check_claim, self._path_of, self.progress)
        return Writer(self.world.targets, self.archive.config, self.batch, through, *callbacks)

    def _path_of(self, number: int) -> str:
        return "the snapshot" if number == BEFORE_FILES else self.archive.ledger.files.path_of(self.batch, number)


_MAY_LACK_ROWS = (
    "unreadable bytes after the snapshot's LSN may concern this table: take a snapshot that is newer than everything "
    "read so far"
)
