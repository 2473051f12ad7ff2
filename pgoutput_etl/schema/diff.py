"""The differences between two versions of a relation: columns added, dropped, renamed and retyped.

A Relation message lists a table's columns, but does not identify them with those of the version before. PostgreSQL
never reorders columns: a new one comes last, a renamed or retyped one keeps its place. Therefore:

- A name in both versions, in the same order, is the same column.
- A new name in front of a remaining column is a renamed column, as a new column would come last. If there are more new
  names than old ones, the publication now has more columns than before (a column list, a generated column), and their
  values in existing rows were never sent.
- A name that moved to the end was dropped and added again. It is another column.
- A new name behind all remaining columns may be a renamed column if one of the same type disappeared. The archive does
  not tell, so the old column stays in the target with its values (it is *retired*), and a new one begins.

Columns that changed places have two explanations, which assign values differently: a TableError. The configuration
decides such cases by `columns: {new: {renamed_from: old}}` and `columns: {new: added}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pgoutput_etl.errors import TableError
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity

# Declarations of the configuration, by a new column's name: its former name, or None for another column.
Declared = Mapping[str, str | None]


class ChangeKind(Enum):
    ADDED = "column added"
    PUBLISHED = "column published that was not before"
    DROPPED = "column dropped"
    RENAMED = "column renamed"
    RETYPED = "column retyped"
    RETIRED = "column gone, or renamed to a new one"
    KEY = "key changed"
    TABLE_RENAMED = "table renamed"
    TABLE_REPLACED = "takes the place of another table"
    TABLE_DISPLACED = "its name belongs to another table now"
    TABLE_MOVED = "moved, as its place is another one by the configuration"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """detail: the difference, in names and types; "" if the column's name is enough."""

    kind: ChangeKind
    column: str
    detail: str = ""

    def __str__(self) -> str:
        named = f"{self.kind.value}: {self.column}" if self.column else self.kind.value
        return f"{named} ({self.detail})" if self.detail else named


@dataclass(frozen=True, slots=True)
class Lineage:
    """The origins of a relation's columns in an older version.

    origins: for each column its position in the old version, None for a new one. retired: positions of old columns that
    PostgreSQL's table no longer has by name, but whose values stay in the target. unsent: positions of new columns
    whose values in existing rows were never sent.
    """

    origins: tuple[int | None, ...]
    retired: tuple[int, ...]
    unsent: tuple[int, ...]
    changes: tuple[SchemaChange, ...]


def lineage(old: Relation, new: Relation, declared: Declared) -> Lineage:
    """Raises TableError if columns can't be identified."""
    before, after = old.columns, new.columns
    kept = _kept_by_name(before, after, declared)
    origins: list[int | None] = [kept.get(column.name) for column in after]
    retired: list[int] = []
    unsent: list[int] = []
    for old_gap, new_gap, is_last in _gaps(before, origins):
        renamed = _renamed(old_gap, new_gap, is_last, before, after, declared)
        for place, origin in renamed.items():
            origins[place] = origin
        if any(place not in renamed for place in new_gap):
            retired += _maybe_renamed(old_gap, new_gap, renamed, before, after, declared)
        if not is_last:
            unsent += _never_sent(old_gap, new_gap, renamed, after, declared)
    changes = _changes(old, new, origins, retired, unsent)
    return Lineage(tuple(origins), tuple(retired), tuple(unsent), tuple(changes))


def _kept_by_name(
    before: Sequence[RelationColumn], after: Sequence[RelationColumn], declared: Declared
) -> dict[str, int]:
    """The old position of each column, by name, that is in both versions and kept its order."""
    places = {column.name: place for place, column in enumerate(before)}
    common = [column.name for column in after if column.name in places]
    kept = _in_order(common, places)
    if len(kept) == len(common):
        return kept
    undeclared = [name for name in common if name not in declared]
    kept = _in_order(undeclared, places)
    moved = [name for name in undeclared if name not in kept]
    if moved and [column.type_oid for column in before] == [column.type_oid for column in after]:
        raise TableError(
            f"its columns changed places ({', '.join(moved)}): either names were exchanged, or columns were dropped "
            "and added again, and nothing in the archive tells which. Say so in the configuration, as "
            "columns: {name: {renamed_from: old_name}} or columns: {name: added}"
        )
    return kept


def _in_order(names: Sequence[str], places: Mapping[str, int]) -> dict[str, int]:
    """The names up to the first one that is out of its old order. Names behind that one are new columns."""
    kept: dict[str, int] = {}
    for name in names:
        if kept and places[name] < max(kept.values()):
            break
        kept[name] = places[name]
    return kept


Gap = tuple[list[int], list[int], bool]


def _gaps(before: Sequence[RelationColumn], origins: Sequence[int | None]) -> list[Gap]:
    """The old and the new positions between remaining columns; True for the gap behind all of them."""
    gaps: list[Gap] = []
    old_from, new_from = 0, 0
    for place, origin in enumerate(origins):
        if origin is not None:
            gaps.append((list(range(old_from, origin)), list(range(new_from, place)), False))
            old_from, new_from = origin + 1, place + 1
    gaps.append((list(range(old_from, len(before))), list(range(new_from, len(origins))), True))
    return gaps


def _renamed(
    old_gap: list[int],
    new_gap: list[int],
    is_last: bool,
    before: Sequence[RelationColumn],
    after: Sequence[RelationColumn],
    declared: Declared,
) -> dict[int, int]:
    """New position -> old position, of the columns in a gap whose rename is certain or declared."""
    names = {before[place].name: place for place in old_gap}
    origins = {place: declared.get(after[place].name) for place in new_gap}
    renamed = {place: names[origin] for place, origin in origins.items() if origin in names}
    left_old = [place for place in old_gap if place not in renamed.values()]
    left_new = [place for place in new_gap if place not in renamed and after[place].name not in declared]
    if is_last or not left_new or len(left_new) > len(left_old):
        return renamed
    if len(left_new) == len(left_old):
        return renamed | dict(zip(left_new, left_old, strict=True))
    return renamed | _only_assignment(left_old, left_new, before, after)


def _never_sent(
    old_gap: list[int],
    new_gap: list[int],
    renamed: Mapping[int, int],
    after: Sequence[RelationColumn],
    declared: Declared,
) -> list[int]:
    """New positions in front of remaining columns: those declared to be new, and all if there are too many."""
    new = [place for place in new_gap if place not in renamed]
    too_many = len(new_gap) > len(old_gap)
    return [place for place in new if too_many or after[place].name in declared]


def _only_assignment(
    old_gap: list[int], new_gap: list[int], before: Sequence[RelationColumn], after: Sequence[RelationColumn]
) -> dict[int, int]:
    """The origins of a gap in which some columns were renamed and others dropped, if the types allow only one."""
    assignments: list[dict[int, int]] = [{}]
    for place in new_gap:
        assignments = [
            {**assignment, place: origin}
            for assignment in assignments
            for origin in old_gap
            if origin > max(assignment.values(), default=-1) and before[origin].type_oid == after[place].type_oid
        ][:3]
    return assignments[0] if len(assignments) == 1 else {}


def _maybe_renamed(
    old_gap: list[int],
    new_gap: list[int],
    renamed: Mapping[int, int],
    before: Sequence[RelationColumn],
    after: Sequence[RelationColumn],
    declared: Declared,
) -> list[int]:
    """Old columns of the gap that may continue under one of its new names."""
    new = [after[p] for p in new_gap if p not in renamed and after[p].name not in declared]
    types = {column.type_oid for column in new}
    return [p for p in old_gap if p not in renamed.values() and before[p].type_oid in types]


def _changes(
    old: Relation, new: Relation, origins: Sequence[int | None], retired: Sequence[int], unsent: Sequence[int]
) -> list[SchemaChange]:
    before, after = old.columns, new.columns
    gone = [place for place in range(len(before)) if place not in origins]
    changes = [
        SchemaChange(ChangeKind.RETIRED if place in retired else ChangeKind.DROPPED, before[place].name)
        for place in gone
    ]
    for place, (column, origin) in enumerate(zip(after, origins, strict=True)):
        if origin is None:
            kind = ChangeKind.PUBLISHED if place in unsent else ChangeKind.ADDED
            changes.append(SchemaChange(kind, column.name))
            continue
        old_column = before[origin]
        if old_column.name != column.name:
            changes.append(SchemaChange(ChangeKind.RENAMED, column.name, f"was {old_column.name}"))
        if (old_column.type_oid, old_column.type_modifier) != (column.type_oid, column.type_modifier):
            changes.append(SchemaChange(ChangeKind.RETYPED, column.name))
    old_key = {place for place, column in enumerate(before) if column.is_key}
    new_key = {origin for origin, column in zip(origins, after, strict=True) if column.is_key}
    full = ReplicaIdentity.FULL
    if (old.replica_identity is full) != (new.replica_identity is full) or (
        new.replica_identity is not full and old_key != new_key
    ):
        changes.append(SchemaChange(ChangeKind.KEY, "", f"{_key(old)} to {_key(new)}"))
    return changes


def _key(relation: Relation) -> str:
    if relation.replica_identity is ReplicaIdentity.FULL:
        return "the whole row"
    return ", ".join(column.name for column in relation.columns if column.is_key) or "none"
