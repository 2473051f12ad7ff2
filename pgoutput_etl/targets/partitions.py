"""Partitions that are published through their root: identities that will hold it, and rows that it gains unsent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pgoutput_etl.errors import TableError
from pgoutput_etl.schema.relation_history import CommitPosition, RelationHistory
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.targets.plan import BEFORE_FILES, Since, TableChanges, TableState


def partition_remarks(shapes: Iterable[TableShape]) -> tuple[str, ...]:
    """One line per table that its first UPDATE or DELETE will hold."""
    lines = []
    for shape in shapes:
        try:
            shape.check_partitions()
        except TableError as error:
            lines.append(f"The first UPDATE or DELETE holds {shape.relation.full_name}: {error}")
    return tuple(lines)


def gained_tables(
    history: RelationHistory, state: TableState | None, changes: TableChanges, last_rows: Mapping[int, CommitPosition]
) -> tuple[str, ...]:
    """The tables that became partitions of a root since its last row, if no truncate or snapshot came later.

    state: the root's. last_rows: of each table that has had any.
    """
    if not changes.runs or changes.runs[0].start[1] == BEFORE_FILES:
        return ()
    since = max(row[1:] for row in (changes.truncated_at, state and state.last_row, (-1, -1, -1)) if row)
    complete = None if state is None else state.complete_since
    loaded_at = complete.lsn if complete is not None and complete.kind is Since.SNAPSHOT else -1
    attached = (entry.relation for entry in history.attached(changes.oid, since))
    return tuple(r.full_name for r in attached if last_rows.get(r.oid, (-1, 0, 0))[0] > loaded_at)


def gain_remarks(changes: TableChanges) -> tuple[str, ...]:
    """One line per table that became a partition."""
    return tuple(
        f"{name} became a partition: the rows that it had before belong to this table now, and were not sent again. "
        "Load a snapshot"
        for name in changes.gained
    )
