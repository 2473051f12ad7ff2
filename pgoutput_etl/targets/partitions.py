"""Partitions that are published through their root: replica identities that will hold the root, and rows that it gains
without being sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pgoutput_etl.config.rules import Mode
from pgoutput_etl.errors import TableError
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.schema.removal import Removal
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.plan import BEFORE_FILES, Since, TableChanges, TableState


@dataclass(frozen=True, slots=True)
class RowLsns:
    """The commit LSNs of a table's first and last own row, if known."""

    first: int
    last: int


_NO_ROWS = RowLsns(-1, -1)


def row_lsns(states: Iterable[TableState], changes: Iterable[TableChanges]) -> dict[int, RowLsns]:
    """Each table's first and last row, by OID. changes: made after the states."""
    lsns = {
        s.oid: RowLsns(s.complete_since.lsn if s.complete_since else 0, (s.last_row or (0,))[0])
        for s in states
        if s.version >= 0
    }
    for table in changes:
        first = table.runs[0].start[0] if table.runs else 0
        lsns[table.oid] = RowLsns(lsns.get(table.oid, RowLsns(first, 0)).first, (table.last_row or (0,))[0])
    return lsns


def partition_remarks(shapes: Iterable[TableShape]) -> tuple[str, ...]:
    """One line per table that its first UPDATE or DELETE will hold."""
    lines = []
    for shape in shapes:
        try:
            shape.check_partitions()
        except TableError as error:
            lines.append(f"The first UPDATE or DELETE holds {shape.relation.full_name}: {error}")
    return tuple(lines)


def with_other_partitions(
    history: RelationHistory, state: TableState | None, changes: TableChanges, rows: Mapping[int, RowLsns]
) -> TableChanges:
    """A table's changes, with the tables that became or ceased to be its partitions since its last row, and with the
    roots that it was a partition of, unless a truncate or snapshot came later.

    state: the table's. rows: by OID, for each table that ever had rows of its own.
    """
    if not changes.runs or changes.runs[0].start[1] == BEFORE_FILES:
        return changes
    since = max(row[1:] for row in (changes.truncated_at, state and state.last_row, (-1, -1, -1)) if row)
    complete = None if state is None else state.complete_since
    loaded_at = complete.lsn if complete is not None and complete.kind is Since.SNAPSHOT else -1
    removals = {entry.position: entry.at[0] for entry in history.definitions.removals(changes.oid)}
    attached = (entry.relation for entry in history.attached(changes.oid, since))
    # Rows that left with a partition are not sent again when it returns.
    left_at = {e.relation.oid: removals.get(e.position, -1) for e in history.detached(changes.oid, (-1, -1))}
    gained = tuple(
        r.full_name for r in attached if max(rows.get(r.oid, _NO_ROWS).last, left_at.get(r.oid, -1)) > loaded_at
    )
    entry = history.definitions.committed(changes.oid)
    unseen = RowLsns(-1 if entry is None else entry.commit_lsn or -1, -1)  # the catalog shows it, but it has no rows
    detached = (e.relation for e in history.detached(changes.oid, since) if e.position not in removals)
    lost = tuple(r.full_name for r in detached if rows.get(r.oid, unseen).first > loaded_at)
    is_loaded = rows.get(changes.oid, _NO_ROWS).first <= loaded_at
    roots = [*history.former_roots(changes.oid, since)]
    for root, entry in history.definitions.left_at(changes.oid):
        relation = history.newest(root) if entry.position > since else None
        roots += [relation] if relation is not None else []
    left = () if is_loaded else tuple(dict.fromkeys(relation.full_name for relation in roots))
    return replace(changes, gained=gained, lost=lost, left=left)


def partition_change_remarks(changes: TableChanges) -> tuple[str, ...]:
    """One line per table that became or ceased to be a partition, and per former root."""
    gained = (
        f"{name} became a partition: the rows that it had before belong to this table now, and were not sent again. "
        "Load a snapshot"
        for name in changes.gained
    )
    lost = (
        f"{name} is no longer a partition: the rows that it had before are left in this table. Load a snapshot"
        for name in changes.lost
    )
    left = (
        f"It was a partition of {name}, under which the rows that it had before were sent. Load a snapshot"
        for name in changes.left
    )
    return (*gained, *lost, *left)


def removal_remarks(removals: Iterable[Removal], mode: Mode) -> tuple[str, ...]:
    """One line per partition whose rows have left."""
    names = tuple(dict.fromkeys(name for removal in removals for name in removal.names))
    if table_mode(mode).has_rows:
        effect = "the rows of partition {} have left, as it was detached, dropped, or truncated"
    else:
        effect = "partition {} was detached, dropped, or truncated, and mode append has no rows about it"
    return tuple(effect.format(name) for name in names)
