"""What a batch means for each target: which tables it writes, where they are, and which can't be brought further.

A table is its OID. Under another name it is the same table, and its rows move with it; another OID under its name takes
its place, and it is *displaced*: renamed out of the way or dropped, the archive doesn't say which. A displaced table
goes on under the ledger's folder, so that it is whole should it turn up under a new name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pgoutput_etl.config.column_rules import changed_masks
from pgoutput_etl.config.settings import Config, Mode
from pgoutput_etl.errors import RunError, SequenceError, TableError
from pgoutput_etl.identifiers import is_catalog_place, is_within
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity
from pgoutput_etl.schema.diff import ChangeKind, Declared, Lineage, SchemaChange, lineage
from pgoutput_etl.schema.migration import Retired, migration_to, next_version
from pgoutput_etl.schema.relation_history import CommitPosition, RelationHistory, RelationSpan
from pgoutput_etl.schema.table_shape import TableColumn, table_columns, table_shape
from pgoutput_etl.targets.location import (
    check_is_only,
    check_location,
    check_names,
    displaced_path,
    location,
    refuse_taken_names,
)
from pgoutput_etl.targets.plan import (
    BEFORE_FILES,
    HeldTable,
    SchemaSpan,
    TableChanges,
    TablePlan,
    TableState,
    TableTask,
)
from pgoutput_etl.transactions.cutoff import Cutoff
from pgoutput_etl.types import UserTypes

Name = tuple[str, str]  # schema, table


def is_displaced(state: TableState) -> bool:
    """Whether it was moved out of the way of another table with its name."""
    return state.path.endswith(f"/displaced/{state.oid}")


def name_holders(states: Mapping[int, TableState], changes: Mapping[int, TableChanges]) -> dict[Name, int]:
    """By name the OID of the table that bears it: of those whose last committed row stood under that name, the one with
    the last such row. `changes`: of this batch; `states`: after the one before it.

    A Relation message alone names no table: its transaction may never be committed.
    """
    last: dict[Name, tuple[CommitPosition, int]] = {}
    for oid in {*states, *changes}:
        found = _last_named(states.get(oid), changes.get(oid))
        if found is not None:
            name, place = found
            last[name] = max(last.get(name, (place, oid)), (place, oid))
    return {name: oid for name, (_, oid) in last.items()}


def _last_named(state: TableState | None, changes: TableChanges | None) -> tuple[Name, CommitPosition] | None:
    if changes is not None and changes.runs:
        relation = changes.runs[-1].relation
        return (relation.namespace, relation.name), changes.last_row or (0, 0, 0)
    if state is None:
        return None
    return (state.schema, state.table), state.last_row or (-1 if is_displaced(state) else 0, 0, 0)


def make_plan(
    config: Config,
    history: RelationHistory,
    changes: Mapping[int, TableChanges],
    states: Mapping[int, TableState],
    user_types: UserTypes,
    *,
    cutoffs: Mapping[int, Cutoff] | None = None,
    ahead: Collection[int] = (),
    placed: Collection[int] = (),
    named: Mapping[int, TableState] | None = None,
) -> TablePlan:
    """`changes` of this batch and `states` after the last one, by OID. `cutoffs`: of those that something in quarantine
    concerns; their changes behind it are none of `changes`. `ahead`: of those that have commits already which this
    batch brings; these are none of `changes`. `placed`: of those that are built anew where they are, whatever `states`
    says. `named`: all tables that may bear a name, if `states` are fewer."""
    cutoffs = cutoffs or {}
    changes = {oid: _described(history, of_table) for oid, of_table in changes.items()}
    holders = name_holders(states if named is None else named, changes)
    refuse_taken_names(config, holders)
    planner = _Planner(config, history, user_types, holders)
    plan = TablePlan()
    for oid in sorted({*changes, *states, *cutoffs}):
        case = _Case(oid, changes.get(oid), states.get(oid), cutoffs.get(oid), oid in ahead, oid in placed)
        planner.add(plan, case)
    return _with_positions(plan, states)


def _described(history: RelationHistory, changes: TableChanges) -> TableChanges:
    """Rows that stand before all that describes them can't be read, and their table is the one that is described."""
    newest = None if changes.runs else history.newest(changes.oid)
    return changes if newest is None else replace(changes, runs=(RelationSpan((0, 0, 0), newest),))


@dataclass(frozen=True, slots=True)
class _Case:
    """One table, and what a batch has of it."""

    oid: int
    changes: TableChanges | None
    state: TableState | None
    cutoff: Cutoff | None
    is_ahead: bool
    has_place: bool


@dataclass(frozen=True, slots=True)
class _Planner:
    """What a batch means for each table. holders: by name the OID of the table that bears it."""

    config: Config
    history: RelationHistory
    user_types: UserTypes
    holders: Mapping[Name, int]

    def add(self, plan: TablePlan, case: _Case) -> None:
        changes, state = case.changes, case.state
        if changes is None and (case.cutoff is not None or state is None):
            self._hold(plan, case)
            return
        seen = self._runs(case)
        if seen is None:
            self._hold(plan, case)
            return
        relation = seen[-1].relation
        rule = self.config.rule_for(relation.namespace, relation.name)
        if rule.skip:
            self._skip(plan, case, relation)
            return
        _check_mode(self.config, state, relation)
        _check_uses(self.history, state)
        path = location(self.config, relation, self.holders)
        if changes is None and state is not None and state.path == path and state.is_complete:
            return
        of_table = changes or TableChanges(case.oid)
        try:
            task = self._task(case, of_table, path, seen)
            plan.tasks.append(replace(task, cutoff=case.cutoff, uses=self.history.masks_of(case.oid)))
        except TableError as error:
            plan.held.append(HeldTable(case.oid, relation, str(error), of_table, state, moves_to=self._moves_to(state)))

    def _runs(self, case: _Case) -> Sequence[RelationSpan] | None:
        """None where nothing can be said, as the table's description is among what can't be read. Raises SequenceError
        for rows that nothing describes."""
        if case.changes is None:
            assert case.state is not None
            return [RelationSpan((0, 0, 0), case.state.relation)]
        if case.changes.runs:
            return case.changes.runs
        if case.cutoff is not None:
            return None
        raise SequenceError(
            f"no Relation message describes OID {case.oid}, which has changes: the archive begins after the server "
            "sent it. Begin with the slot's first file"
        )

    def _hold(self, plan: TablePlan, case: _Case) -> None:
        """A table of which everything that is new is behind its cut."""
        assert case.cutoff is not None
        state = case.state
        relation = state.relation if state is not None else self.history.newest(case.oid)
        if relation is None:  # its description is among what can't be read
            relation = Relation(None, case.oid, "unknown", f"oid_{case.oid}", ReplicaIdentity.DEFAULT, ())
        if self.config.rule_for(relation.namespace, relation.name).skip:
            return
        was_held = state is not None and not state.is_complete
        reason = state.reason if state is not None and was_held else case.cutoff.reason
        complete_to = None if was_held else case.cutoff.lsn - 1
        no_changes, moves_to = TableChanges(case.oid), self._moves_to(state)
        plan.held.append(
            HeldTable(case.oid, relation, reason or case.cutoff.reason, no_changes, state, complete_to, moves_to)
        )

    def _skip(self, plan: TablePlan, case: _Case, relation: Relation) -> None:
        """A table that gets changes while it is skipped lacks them from then on, also when it is skipped no more."""
        name = f"{relation.namespace}.{relation.name}"
        moves_to = self._moves_to(case.state)
        if case.changes is not None:
            plan.skipped.append(name)
        elif moves_to is None:
            return
        reason = (
            "the configuration skipped it while changes were committed, which it lacks: have it rebuilt from the "
            f"archive: jobs/backfill.py --tables '{name}'"
        )
        changes = case.changes or TableChanges(case.oid)
        plan.passed_over.append(HeldTable(case.oid, relation, reason, changes, case.state, moves_to=moves_to))

    def _moves_to(self, state: TableState | None) -> str | None:
        """Where the rows of a held table go if another table bears its name by now, and so takes its place."""
        if state is None or not state.path:
            return None
        is_mine = self.holders.get((state.schema, state.table), state.oid) == state.oid
        displaced = displaced_path(self.config, state.oid)
        return None if is_mine or state.path == displaced else displaced

    def _task(self, case: _Case, of_table: TableChanges, path: str, seen: Sequence[RelationSpan]) -> TableTask:
        state, config = case.state, self.config
        if state is not None and not state.is_complete:
            raise TableError(state.reason or "held by an earlier batch")
        relation = seen[-1].relation
        why_not = self.history.mask and self.history.mask.reason_unmaskable(relation.oid)
        if why_not is not None:
            raise TableError(why_not)
        check_location(config, relation, path)
        is_there = case.has_place or (state is not None and state.path == path)
        if is_catalog_place(path) and not is_there:
            check_is_only(config, relation, self.holders)
        rule = config.rule_for(relation.namespace, relation.name)
        if state is not None and state.mode is not rule.mode:
            raise TableError(_other_mode(state, rule.mode, f"{relation.namespace}.{relation.name}"))
        if rule.mode is not Mode.MIRROR:  # to others a truncate is a change like any other
            of_table = replace(of_table, truncated_at=None)
        start = _start(state, case.is_ahead)
        tracer = _SpanPlanner(self.history, of_table, state, self.user_types, start)
        segments, retired, changes = tracer.spans(_merged(seen), rule.key, rule.lineage)
        for segment in segments:
            check_names(segment.shape, rule.mode)
            if rule.mode is Mode.SOFT_DELETE and segment.shape.is_bag:
                raise TableError(
                    "mode soft_delete needs a key, and it has none: an UPDATE would look like a DELETE. Name one in "
                    "the configuration (`key`), or use mode history, which needs none"
                )
        moved_from = None if state is None or state.path == path else (state.path, state.version)
        is_displaced = moved_from is not None and is_within(path, f"{config.state.root}/displaced")
        changes += [(None, change) for change in _name_changes(relation, state, moved_from, is_displaced)]
        return TableTask(
            tuple(segments), path, of_table, state, moved_from, False, tuple(changes), retired, mode=rule.mode
        )


def _start(state: TableState | None, is_ahead: bool) -> CommitPosition | None:
    """Behind the last commit that the table has, if the batch brings commits before."""
    if state is None or not is_ahead:
        return None
    return (state.last_commit_lsn + 1, BEFORE_FILES, 0)


@dataclass(frozen=True, slots=True)
class _SpanPlanner:
    """Cuts a table's committed rows where its columns change. start: of the first segment."""

    history: RelationHistory
    changes: TableChanges
    state: TableState | None
    user_types: UserTypes
    start: CommitPosition | None

    def spans(
        self, runs: Sequence[RelationSpan], key: tuple[str, ...] | None, declared: Declared
    ) -> tuple[list[SchemaSpan], Retired, list[tuple[CommitPosition | None, SchemaChange]]]:
        state, truncated_at = self.state, self.changes.truncated_at
        before = None if state is None else state.relation
        retired: Retired = () if state is None else state.retired
        columns = None if state is None else self._stored_columns(state)
        segments: list[SchemaSpan] = []
        changes: list[tuple[CommitPosition | None, SchemaChange]] = []
        chain = [*([] if before is None else [before]), *(run.relation for run in runs)]
        keys = None if key is None else _followed(key, chain, declared)
        versions = self.history.versions(self.changes.oid)
        for run, end in zip(runs, [*(run.start for run in runs[1:]), None], strict=True):
            found: Lineage | None = None
            begins_empty = truncated_at is not None and not segments
            if before is not None:
                try:
                    found, retired = next_version(before, retired, run.relation, declared)
                    changes += [(run.start, change) for change in found.changes]
                except TableError:
                    if not begins_empty:
                        raise
            before = run.relation
            if truncated_at is not None and end is not None and end <= truncated_at:
                continue  # nothing of it is left
            retired = () if begins_empty else retired
            shape = table_shape(
                run.relation,
                versions,
                None if keys is None else keys[run.relation.columns],
                self.changes.unchanged,
                self.changes.moves_toast,
                self.user_types,
                retired,
            )
            reshaping = (
                None if begins_empty or columns is None or found is None else migration_to(columns, shape, found)
            )
            if reshaping is not None and reshaping.changes_nothing:
                reshaping = None
            segments.append(SchemaSpan(shape, run.start if segments else self.start, end, reshaping))
            columns = shape.columns
        return segments, retired, changes

    def _stored_columns(self, state: TableState) -> tuple[TableColumn, ...]:
        columns = table_columns(state.relation, state.retired, self.user_types)
        for column, stored in zip(columns, state.types, strict=True):
            if column.type.stored_as != stored:
                raise RunError(
                    f"column {column.name!r} of {state.schema}.{state.table} is stored as {stored}, and would be "
                    f"{column.type.stored_as} by the configuration's `types`. What is stored is not changed by them: "
                    "set them back, or have the table rebuilt: jobs/backfill.py "
                    f"--tables '{state.schema}.{state.table}'"
                )
        return columns


def _check_mode(config: Config, state: TableState | None, relation: Relation) -> None:
    """Raises RunError if the configuration asks for another mode than a table was written in."""
    mode = config.rule_for(relation.namespace, relation.name).mode
    has_name = state is not None and (state.schema, state.table) == (relation.namespace, relation.name)
    if state is not None and has_name and state.is_complete and state.mode is not mode:
        raise RunError(_other_mode(state, mode, f"{state.schema}.{state.table}"))


def _check_uses(history: RelationHistory, state: TableState | None) -> None:
    """Raises RunError if the configuration's `columns` says something else of values that are there."""
    if state is None or not state.is_complete:
        return
    clear = {column.name for column in (*state.relation.columns, *state.retired)} - state.uses.keys()
    found = changed_masks(state.uses, frozenset(clear), history.masks_of(state.oid))
    if found:
        name = f"{state.schema}.{state.table}"
        raise RunError(
            f"{name} was written with other `columns` than the configuration has: {', '.join(found)}. What is stored "
            "doesn't change by itself: set them back, or have the table rebuilt from the archive: jobs/backfill.py "
            f"--tables '{name}'"
        )


def _other_mode(state: TableState, mode: Mode, name: str) -> str:
    return (
        f"{state.schema}.{state.table} was written in mode {state.mode.value}, and the configuration asks for "
        f"{mode.value} for {name}. A table's mode doesn't change by itself, as what is kept in one isn't in the "
        f"other: set `mode` back, or have the table rebuilt from the archive: jobs/backfill.py --tables '{name}'"
    )


def _name_changes(
    relation: Relation, state: TableState | None, moved_from: tuple[str, int] | None, is_displaced: bool
) -> list[SchemaChange]:
    if state is None:
        return []
    if (state.schema, state.table) != (relation.namespace, relation.name):
        return [SchemaChange(ChangeKind.TABLE_RENAMED, "", f"was {state.schema}.{state.table}")]
    if moved_from is None:
        return []
    return [SchemaChange(ChangeKind.TABLE_DISPLACED if is_displaced else ChangeKind.TABLE_MOVED, "")]


def _merged(runs: Sequence[RelationSpan]) -> list[RelationSpan]:
    """Without those that differ from the one before in nothing but the table's name."""
    merged: list[RelationSpan] = []
    for run in runs:
        last = merged[-1].relation if merged else None
        if last is None or (last.columns, last.replica_identity) != (
            run.relation.columns,
            run.relation.replica_identity,
        ):
            merged.append(run)
        else:
            merged[-1] = replace(merged[-1], relation=run.relation)
    return merged


Columns = tuple[RelationColumn, ...]


def _followed(key: tuple[str, ...], chain: Sequence[Relation], declared: Declared) -> dict[Columns, tuple[str, ...]]:
    """The configured key in each version: a column of it may have been renamed, before the configuration or after."""
    steps = [lineage(old, new, declared).origins for old, new in pairwise(chain)]
    named = [i for i, relation in enumerate(chain) if set(key) <= {column.name for column in relation.columns}]
    if not named:
        return {relation.columns: key for relation in chain}  # refused where it is used
    places: dict[int, list[int | None]] = {}
    at = named[-1]
    names = [column.name for column in chain[at].columns]
    places[at] = [names.index(name) for name in key]
    for i in range(at, 0, -1):
        places[i - 1] = [None if place is None else steps[i - 1][place] for place in places[i]]
    for i in range(at, len(steps)):
        onward = {origin: place for place, origin in enumerate(steps[i])}
        places[i + 1] = [None if place is None else onward.get(place) for place in places[i]]
    return {
        relation.columns: tuple(
            name if place is None else relation.columns[place].name for place, name in zip(places[i], key, strict=True)
        )
        for i, relation in enumerate(chain)
    }


def _with_positions(plan: TablePlan, states: Mapping[int, TableState]) -> TablePlan:
    """Finds which tables write over another's place, and which places nobody is in any more."""
    stays = {oid: state.path for oid, state in states.items()}
    moves = {task.oid: task.path for task in plan.tasks}
    moves |= {held.oid: held.moves_to for held in (*plan.held, *plan.passed_over) if held.moves_to is not None}
    occupied = {**stays, **moves}
    for n, task in enumerate(plan.tasks):
        others = [state for oid, state in states.items() if oid != task.oid and state.path == task.path]
        if others and stays.get(task.oid) != task.path:
            change = SchemaChange(
                ChangeKind.TABLE_REPLACED, "", f"the other one's rows: Delta version {others[0].version}"
            )
            plan.tasks[n] = replace(task, replaces=True, schema_changes=(*task.schema_changes, (None, change)))
    left = {stays[oid] for oid, path in moves.items() if oid in stays and stays[oid] != path}
    plan.vacated = sorted(left - set(occupied.values()))
    return plan
