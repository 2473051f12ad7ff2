"""The differences between two versions of a relation: columns added, dropped, renamed and retyped.

A Relation message lists a table's columns, but does not say which columns of the previous version they were. PostgreSQL
never reorders columns: a new column comes last, and a renamed or retyped column keeps its place. Therefore:

- A name in both versions, in the same order, is the same column.
- A new name in front of a remaining column is a renamed column, as a new column would come last. If there are more new
  names than old ones, the publication now has more columns than before (a column list, a generated column), and their
  values in existing rows were never sent.
- A name that moved to the end was dropped and added again. It is another column.
- A new name after all remaining columns may be a renamed column if one of the same type disappeared. The archive does
  not show which, so the old column stays in the target with its values (it is *retired*), and a new column begins.

If columns changed places, two explanations are possible that assign values differently, so a TableError is raised. The
configuration decides such cases with `columns: {new: {renamed_from: old}}` and `columns: {new: added}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pgoutput_etl.errors import TableError
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity

# The configuration's declarations: each column's former name, or None for a new column.
Declared = Mapping[str, str | None]


class ChangeKind(Enum):
    ADDED = "column added"
    PUBLISHED = "column newly published"
    DROPPED = "column dropped"
    RENAMED = "column renamed"
    RETYPED = "column retyped"
    RETIRED = "column dropped or renamed"
    KEY = "key changed"
    TABLE_RENAMED = "table renamed"
    TABLE_REPLACED = "table replaces another one"
    TABLE_DISPLACED = "table displaced by a new one of its name"
    TABLE_MOVED = "table moved to the path that the configuration gives it"


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

    origins: each column's position in the old version; None for a new column. retired: positions of old columns that
    PostgreSQL's table no longer has by name, but whose values stay in the target. unsent: positions of new columns
    whose values in existing rows were never sent.
    """

    origins: tuple[int | None, ...]
    retired: tuple[int, ...]
    unsent: tuple[int, ...]
    changes: tuple[SchemaChange, ...]


def lineage(old: Relation, new: Relation, declared: Declared, keeps_dropped: bool = False) -> Lineage:
    """keeps_dropped: retire every column that the new version lacks. Raises TableError if columns can't be
    identified."""
    versions = _Versions(old.columns, new.columns, declared)
    same = versions.same_names()
    origins: list[int | None] = [same.get(column.name) for column in new.columns]
    retired: list[int] = []
    unsent: list[int] = []
    for gap in _gaps(old.columns, origins):
        renamed = versions.renamed(gap)
        for place, origin in renamed.items():
            origins[place] = origin
        if any(place not in renamed for place in gap.new):
            retired += versions.maybe_renamed(gap, renamed)
        if not gap.is_last:
            unsent += versions.never_sent(gap, renamed)
    if keeps_dropped:
        retired = [place for place in range(len(old.columns)) if place not in origins]
    changes = _changes(old, new, origins, retired, unsent)
    return Lineage(tuple(origins), tuple(retired), tuple(unsent), tuple(changes))


@dataclass(frozen=True, slots=True)
class _Gap:
    """The old and the new positions between two remaining columns. is_last: the gap comes after all remaining
    columns."""

    old: list[int]
    new: list[int]
    is_last: bool


def _gaps(before: Sequence[RelationColumn], origins: Sequence[int | None]) -> list[_Gap]:
    gaps: list[_Gap] = []
    old_from, new_from = 0, 0
    for place, origin in enumerate(origins):
        if origin is not None:
            gaps.append(_Gap(list(range(old_from, origin)), list(range(new_from, place)), False))
            old_from, new_from = origin + 1, place + 1
    return [*gaps, _Gap(list(range(old_from, len(before))), list(range(new_from, len(origins))), True)]


@dataclass(frozen=True, slots=True)
class _Versions:
    """The columns of two versions."""

    before: Sequence[RelationColumn]
    after: Sequence[RelationColumn]
    declared: Declared

    def same_names(self) -> dict[str, int]:
        """Name -> old position, for each column that is in both versions and kept its order."""
        places = {column.name: place for place, column in enumerate(self.before)}
        common = [column.name for column in self.after if column.name in places]
        kept = _in_order(common, places)
        if len(kept) == len(common):
            return kept
        undeclared = [name for name in common if name not in self.declared]
        kept = _in_order(undeclared, places)
        moved = [name for name in undeclared if name not in kept]
        if moved and [column.type_oid for column in self.before] == [column.type_oid for column in self.after]:
            raise TableError(
                f"its columns changed places ({', '.join(moved)}): either names were exchanged, or columns were "
                "dropped and added again, and the archive does not tell which. Declare it in the configuration, as "
                "columns: {name: {renamed_from: old_name}} or columns: {name: added}"
            )
        return kept

    def renamed(self, gap: _Gap) -> dict[int, int]:
        """New position -> old position, of the columns in a gap whose rename is certain or declared."""
        names = {self.before[place].name: place for place in gap.old}
        origins = {place: self.declared.get(self.after[place].name) for place in gap.new}
        renamed = {place: names[origin] for place, origin in origins.items() if origin in names}
        left_old = [place for place in gap.old if place not in renamed.values()]
        left_new = [place for place in gap.new if place not in renamed and self.after[place].name not in self.declared]
        if gap.is_last or not left_new or len(left_new) > len(left_old):
            return renamed
        if len(left_new) == len(left_old):
            return renamed | dict(zip(left_new, left_old, strict=True))
        return renamed | self._only_assignment(left_old, left_new)

    def never_sent(self, gap: _Gap, renamed: Mapping[int, int]) -> list[int]:
        """New positions in front of remaining columns: those declared to be new, and all if there are too many."""
        new = [place for place in gap.new if place not in renamed]
        too_many = len(gap.new) > len(gap.old)
        return [place for place in new if too_many or self.after[place].name in self.declared]

    def maybe_renamed(self, gap: _Gap, renamed: Mapping[int, int]) -> list[int]:
        """Old columns of the gap that may continue under one of its new names."""
        new = [self.after[p] for p in gap.new if p not in renamed and self.after[p].name not in self.declared]
        types = {column.type_oid for column in new}
        return [p for p in gap.old if p not in renamed.values() and self.before[p].type_oid in types]

    def _only_assignment(self, old: list[int], new: list[int]) -> dict[int, int]:
        """The origins if some columns were renamed and others dropped, and the types allow only one explanation."""
        assignments: list[dict[int, int]] = [{}]
        for place in new:
            type_oid = self.after[place].type_oid
            assignments = [
                {**assignment, place: origin}
                for assignment in assignments
                for origin in old
                if origin > max(assignment.values(), default=-1) and self.before[origin].type_oid == type_oid
            ][:3]
        return assignments[0] if len(assignments) == 1 else {}


def _in_order(names: Sequence[str], places: Mapping[str, int]) -> dict[str, int]:
    """The names up to the first one that is out of its old order. Names after that one are new columns."""
    kept: dict[str, int] = {}
    for name in names:
        if kept and places[name] < max(kept.values()):
            break
        kept[name] = places[name]
    return kept


def _changes(
    old: Relation, new: Relation, origins: Sequence[int | None], retired: Sequence[int], unsent: Sequence[int]
) -> list[SchemaChange]:
    before, after = old.columns, new.columns
    changes = [
        SchemaChange(ChangeKind.RETIRED if place in retired else ChangeKind.DROPPED, column.name)
        for place, column in enumerate(before)
        if place not in origins
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
