"""Tables whose definitions have changed without a row after it, as catalog Messages show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.schema.definitions import Definition
from pgoutput_etl.schema.relation_history import CommitPosition, RelationHistory, RelationSpan
from pgoutput_etl.targets.plan import TableChanges, TableState


def with_moves(
    history: RelationHistory, changes: Mapping[int, TableChanges], states: Mapping[int, TableState]
) -> dict[int, TableChanges]:
    """A batch's changes, with a change of no row for each table with another definition, rewritten values, other
    partitions, or other comments since its last row. states: after the previous batch."""
    moved = dict(changes)
    for oid in {*changes, *states}:
        state, own = states.get(oid), changes.get(oid, TableChanges(oid))
        entry = history.definitions.committed(oid)
        relation = own.runs[-1].relation if own.runs else None if state is None else state.relation
        last_row = own.last_row or (state and state.last_row) or (0, 0, 0)
        if relation is None or entry is None or entry.commit_lsn is None or entry.definition.is_dropped:
            continue
        at = (entry.commit_lsn, *entry.position)
        if at > last_row and (steps := _steps(relation, entry.definition, history, last_row)):
            runs = (*own.runs, *(RelationSpan(at, step) for step in steps))
            moved[oid] = replace(own, runs=runs, last_row=at)
    return moved


def _steps(
    relation: Relation, definition: Definition, history: RelationHistory, last_row: CommitPosition
) -> list[Relation]:
    """The descriptions that follow a table's last one. Its numbers come first, so that they decide the next step."""
    oid, completed = relation.oid, _completed(relation, history)
    applied = definition.followed(completed) if history.masks_of(oid) else definition.applied(completed)
    if applied == relation:
        has_others = history.attached(oid, last_row[1:]) or history.detached(oid, last_row[1:])
        return [relation] if has_others or history.definitions.has_new_comments(oid) else []
    return [step for step in dict.fromkeys((completed, applied)) if step != relation]


def _completed(relation: Relation, history: RelationHistory) -> Relation:
    """The relation with its columns' numbers, if a Message came after its last row."""
    newest = history.newest(relation.oid)
    if relation.catalog is not None or newest is None or newest.catalog is None:
        return relation
    is_same = [c.described_as for c in relation.columns] == [c.described_as for c in newest.columns]
    return replace(relation, columns=newest.columns, catalog=newest.catalog) if is_same else relation
