"""Tables whose definitions have changed without a row after it, as catalog Messages show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.schema.relation_history import RelationHistory, RelationSpan
from pgoutput_etl.targets.plan import TableChanges, TableState


def with_moves(
    history: RelationHistory, changes: Mapping[int, TableChanges], states: Mapping[int, TableState]
) -> dict[int, TableChanges]:
    """A batch's changes, with a change of no row for each table with another definition, rewritten values, or other
    partitions since its last row. states: after the previous batch."""
    moved = dict(changes)
    for oid in {*changes, *states}:
        state, own = states.get(oid), changes.get(oid, TableChanges(oid))
        entry = history.definitions.committed(oid)
        relation = own.runs[-1].relation if own.runs else None if state is None else state.relation
        last_row = own.last_row or (state and state.last_row) or (0, 0, 0)
        if entry is None or entry.commit_lsn is None or relation is None or entry.definition.is_dropped:
            continue
        definition, completed = entry.definition, _completed(relation, history)
        applied = definition.followed(completed) if history.masks_of(oid) else definition.applied(completed)
        at = (entry.commit_lsn, *entry.position)
        has_others = history.attached(oid, last_row[1:]) or history.detached(oid, last_row[1:])
        if (applied != relation or has_others) and at > last_row:
            # Two steps, so that the numbers decide the second one.
            steps = tuple(RelationSpan(at, step) for step in dict.fromkeys((completed, applied)) if step != relation)
            moved[oid] = replace(own, runs=(*own.runs, *(steps or (RelationSpan(at, relation),))), last_row=at)
    return moved


def _completed(relation: Relation, history: RelationHistory) -> Relation:
    """The relation with its columns' numbers, if a Message came after its last row."""
    newest = history.newest(relation.oid)
    if relation.catalog is not None or newest is None or newest.catalog is None:
        return relation
    forms = [[(c.name, c.type_oid, c.type_modifier) for c in r.columns] for r in (relation, newest)]
    is_same = forms[0] == forms[1]
    return replace(relation, columns=newest.columns, catalog=newest.catalog) if is_same else relation
