"""What a batch means for each target: which tables it writes, where they are, and which can't be brought further.

A table is its OID. Under another name it is the same table, and its rows move with it; another OID under its name takes
its place, and it is *displaced*: renamed out of the way or dropped, the archive doesn't say which. A displaced table
goes on under the ledger's folder, so that it is whole should it turn up under a new name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from pgoutput_etl.changes import TableShape, table_shape
from pgoutput_etl.config import Config
from pgoutput_etl.errors import SequenceError, TableError
from pgoutput_etl.messages import Relation
from pgoutput_etl.naming import path_segment
from pgoutput_etl.outcomes import Fate
from pgoutput_etl.relations import (
    ChangeKind,
    RelationHistory,
    SchemaChange,
    Unsupported,
    difference,
)
from pgoutput_etl.transactions import Assembly

APPLIED, HELD = "applied", "held"


@dataclass(frozen=True, slots=True)
class TableState:
    """Where a table stands, by its OID. status: APPLIED, or HELD if it could not be brought further.

    last_commit_lsn: every commit up to it is in the table. version: Delta's, -1 for one that was never written.
    """

    oid: int
    schema: str
    table: str
    path: str
    version: int
    last_commit_lsn: int
    status: str
    reason: str | None
    relation: Relation
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableChanges:
    """What the committed rows of one relation amount to, counted without looking into them.

    truncated_at: (commit LSN, file, ordinal) of the last truncate. unchanged: positions of unchanged TOAST.
    """

    oid: int
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0
    truncated_at: tuple[int, int, int] | None = None
    unchanged: frozenset[int] = frozenset()
    moves_toast: bool = False

    @property
    def total(self) -> int:
        return self.inserts + self.updates + self.deletes + self.truncates


@dataclass(frozen=True, slots=True)
class Task:
    """One table to write.

    moved_from: path and version of the rows to begin with, if they are elsewhere. replaces: another table's rows are
    at `path`.
    """

    shape: TableShape
    path: str
    changes: TableChanges
    state: TableState | None
    moved_from: tuple[str, int] | None
    replaces: bool
    schema_changes: tuple[SchemaChange, ...]

    @property
    def oid(self) -> int:
        return self.shape.relation.oid


@dataclass(frozen=True, slots=True)
class Held:
    """A table that is left where it stands; what it would have received is in the archive still."""

    oid: int
    relation: Relation
    reason: str
    changes: TableChanges
    state: TableState | None


@dataclass(slots=True)
class Plan:
    tasks: list[Task] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    vacated: list[str] = field(default_factory=list)


def changed_on_the_way(
    assembly: Assembly, oids: Iterable[int], states: Mapping[int, TableState], first_file: int
) -> list[int]:
    """The tables that more than one version of their relation may concern in this batch: a closer look will tell."""
    scopes = {o.scope for o in assembly.outcomes if o.fate is Fate.COMMITTED and o.scope is not None}
    found: dict[int, set[Relation]] = {oid: {states[oid].relation} if oid in states else set() for oid in oids}
    for entry in assembly.relations.entries:
        concerns = entry.position[0] >= first_file if entry.scope is None else entry.scope in scopes
        if concerns and entry.relation.oid in found:
            found[entry.relation.oid].add(entry.relation)
    return [oid for oid, relations in found.items() if len(relations) > 1]


def make_plan(
    config: Config,
    history: RelationHistory,
    changes: Mapping[int, TableChanges],
    states: Mapping[int, TableState],
    used: Mapping[int, Sequence[Relation]],
) -> Plan:
    """`changes` of this batch and `states` after the last one, by OID. `used`: the versions of those relations that
    have several in this batch, in the order in which committed rows stood under them."""
    plan = Plan()
    holders = history.name_holders()
    for oid in sorted({*changes, *states}):
        state = states.get(oid)
        seen = _versions(history, oid, used) if oid in changes else [states[oid].relation]
        relation = seen[-1]
        if config.rule_for(relation.namespace, relation.name).skip:
            plan.skipped += [f"{relation.namespace}.{relation.name}"] if oid in changes else []
            continue
        path = _location(config, relation, holders)
        was_held = state is not None and state.status == HELD  # said in every run, until it goes on
        if oid not in changes and states[oid].path == path and not was_held:
            continue
        of_table = changes.get(oid, TableChanges(oid))
        before = [] if state is None else [state.relation]
        try:
            plan.tasks.append(_task(config, history, relation, path, of_table, state, before + seen))
        except TableError as error:
            plan.held.append(Held(oid, relation, str(error), of_table, state))
    return _with_places(plan, states)


def _versions(history: RelationHistory, oid: int, used: Mapping[int, Sequence[Relation]]) -> list[Relation]:
    if used.get(oid):
        return list(used[oid])
    latest = history.latest(oid)
    if latest is None:
        raise SequenceError(
            f"no Relation message describes OID {oid}, which has changes: the archive begins after the server sent it. "
            "Begin with the slot's first file"
        )
    return [latest]


def _location(config: Config, relation: Relation, holders: Mapping[tuple[str, str], int]) -> str:
    name = (relation.namespace, relation.name)
    if holders.get(name) != relation.oid:
        return f"{config.state.root.rstrip('/')}/displaced/{relation.oid}"
    root = (config.target.root or "").rstrip("/")
    return f"{root}/{path_segment(relation.namespace)}/{path_segment(relation.name)}"


def _task(
    config: Config,
    history: RelationHistory,
    relation: Relation,
    path: str,
    changes: TableChanges,
    state: TableState | None,
    seen: list[Relation],
) -> Task:
    if state is not None and state.status == HELD:
        raise TableError(state.reason or "held by an earlier batch")
    schema_changes = _schema_changes(seen)
    versions = history.versions(relation.oid)
    toast = {v.columns[i].name for v in versions.relations for i in changes.unchanged if i < len(v.columns)}
    key = config.rule_for(relation.namespace, relation.name).key
    shape = table_shape(relation, versions, key, frozenset(toast), changes.moves_toast)
    names = tuple(shape.columns[i].name for i in shape.key)
    if state is not None and set(state.key) != set(names):
        raise TableError(f"its key changed from ({', '.join(state.key)}) to ({', '.join(names)})")
    moved_from = None if state is None or state.path == path else (state.path, state.version)
    return Task(shape, path, changes, state, moved_from, False, tuple(schema_changes))


def _schema_changes(seen: list[Relation]) -> list[SchemaChange]:
    """Raises TableError for a change that can't be applied yet."""
    found: list[SchemaChange] = []
    for old, new in pairwise(seen):
        step = difference(old, new)
        if isinstance(step, Unsupported):
            raise TableError(f"{step.reason}; this can't be applied yet")
        found += step
    dropped = {change.column for change in found if change.kind is ChangeKind.DROPPED}
    again = dropped & {change.column for change in found if change.kind is ChangeKind.ADDED}
    if again:
        raise TableError(f"column {min(again)!r} was dropped and added again; this can't be applied yet")
    return found


def _with_places(plan: Plan, states: Mapping[int, TableState]) -> Plan:
    """Finds which tables write over another's place, and which places nobody is in any more."""
    stays = {oid: state.path for oid, state in states.items()}
    moves = {task.oid: task.path for task in plan.tasks}
    occupied = {**stays, **moves}
    for n, task in enumerate(plan.tasks):
        others = {path for oid, path in stays.items() if oid != task.oid}
        if task.path in others and stays.get(task.oid) != task.path:
            plan.tasks[n] = replace(task, replaces=True)
    left = {stays[oid] for oid, path in moves.items() if oid in stays and stays[oid] != path}
    plan.vacated = sorted(left - set(occupied.values()))
    return plan
