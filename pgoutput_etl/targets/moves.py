"""Tables whose definitions have changed without a row after the change, or whose rows have left with a partition,
according to catalog Messages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace

from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.schema.definitions import Definition, DefinitionEntry
from pgoutput_etl.schema.relation_history import CommitPosition, RelationHistory, RelationSpan, is_described_alike
from pgoutput_etl.targets.plan import BEFORE_FILES, TableChanges, TableState
from pgoutput_etl.transactions.cutoff import Cutoff

_NO_CUTOFFS: Mapping[int, Cutoff] = {}


def with_moves(
    history: RelationHistory,
    changes: Mapping[int, TableChanges],
    states: Mapping[int, TableState],
    last_commit_lsn: int,
    cutoffs: Mapping[int, Cutoff] = _NO_CUTOFFS,
) -> dict[int, TableChanges]:
    """A batch's changes, plus an empty change for each table whose definition, partitions, or comments have changed, or
    whose values were rewritten, since its last row. states: after the previous batch. last_commit_lsn: of the last
    commit to apply."""
    moved = dict(changes)
    for oid in {*changes, *states}:
        state, own = states.get(oid), changes.get(oid, TableChanges(oid))
        entry = history.definitions.committed(oid)
        relation = own.runs[-1].relation if own.runs else None if state is None else state.relation
        last_row = own.last_row or (state and state.last_row) or (0, 0, 0)
        if relation is None or entry is None or entry.commit_lsn is None or entry.definition.is_dropped:
            continue
        is_within = last_row < entry.at and entry.commit_lsn <= _end(oid, last_commit_lsn, cutoffs)
        if is_within and (steps := _steps(relation, entry.definition, history, last_row)):
            runs = (*own.runs, *(RelationSpan(entry.at, step) for step in steps))
            moved[oid] = replace(own, runs=runs, last_row=entry.at)
    return moved


def with_removals(
    history: RelationHistory,
    changes: Mapping[int, TableChanges],
    states: Mapping[int, TableState],
    last_commit_lsn: int,
    cutoffs: Mapping[int, Cutoff] = _NO_CUTOFFS,
) -> dict[int, TableChanges]:
    """The changes, plus the commits that moved partitions out of these tables. states: before the changes."""
    found = dict(changes)
    for oid in {*changes, *states}:
        state, own = states.get(oid), changes.get(oid, TableChanges(oid))
        end = _end(oid, last_commit_lsn, cutoffs)
        first = own.runs[0].start if own.runs else (end + 1, 0, 0)
        start = first if state is None else (state.last_commit_lsn + 1, BEFORE_FILES, 0)
        runs, last_row = own.runs, own.last_row
        for entry in history.definitions.removals(oid):
            if start <= entry.at and entry.at[0] <= end:
                runs, last_row = _with_removal(runs, entry, state), max(last_row or entry.at, entry.at)
        found |= {oid: replace(own, runs=runs, last_row=last_row)} if runs != own.runs else {}
    return found


def _end(oid: int, last_commit_lsn: int, cutoffs: Mapping[int, Cutoff]) -> int:
    return min(last_commit_lsn, cutoffs[oid].lsn - 1) if oid in cutoffs else last_commit_lsn


def _with_removal(
    runs: tuple[RelationSpan, ...], entry: DefinitionEntry, state: TableState | None
) -> tuple[RelationSpan, ...]:
    """Rows from the removal on become a separate run."""
    place = bisect_left(runs, entry.at, key=lambda run: run.start)
    before = runs[place - 1] if place else None
    relation = before.relation if before is not None else runs[0].relation if state is None else state.relation
    return (*runs[:place], RelationSpan(entry.at, relation, entry), *runs[place:])


def _steps(
    relation: Relation, definition: Definition, history: RelationHistory, last_row: CommitPosition
) -> list[Relation]:
    """The descriptions that follow a table's last one. The description with column numbers comes first, so it decides
    the next step."""
    oid, completed = relation.oid, _completed(history.numbered(relation, last_row[1:]), history)
    applied = definition.followed(completed) if history.masks_of(oid) else definition.applied(completed)
    if applied == relation:
        has_others = history.attached(oid, last_row[1:]) or history.detached(oid, last_row[1:])
        return [relation] if has_others or history.definitions.has_new_comments(oid) else []
    return [step for step in dict.fromkeys((completed, applied)) if step != relation]


def _completed(relation: Relation, history: RelationHistory) -> Relation:
    """The relation with its columns' numbers, if a Message arrived after its last row."""
    newest = history.newest(relation.oid)
    if relation.catalog is not None or newest is None or newest.catalog is None:
        return relation
    is_same = is_described_alike(relation, newest)
    return replace(relation, columns=newest.columns, catalog=newest.catalog) if is_same else relation
