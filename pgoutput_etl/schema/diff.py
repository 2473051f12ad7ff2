"""What became of a table's columns from one version of its relation to the next.

A Relation message names the columns that there are and never says which of them was which before. PostgreSQL keeps the
rest of the truth: columns never change places, a new one comes last, a renamed or retyped one stays where it is. So

- a name that is in both versions, in the same order, is the same column;
- a new name in front of a kept one is a renamed column for certain, as a new column would come last; where there are
  more new names than old ones, columns came to be published that were not before (a column list, a generated column):
  what they have in the rows there are was never sent;
- a name that went to the end was dropped and added again: another column;
- a new name behind all kept ones, where a column of the same type went, may be that column renamed or another one.
  That isn't guessed: the old column stays in the target with what it had (it is *retired*), the new one begins.

Columns that exchanged their places could be explained in two ways that differ in which value is whose: a TableError.
The configuration's `columns: {new: {renamed_from: old}}` and `columns: {new: added}` decide what the archive leaves
open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pgoutput_etl.errors import TableError
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity

# Per new column's name what the configuration says of it: the name it had before, or None if it is another column.
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
    """detail: what it was and is, in names and types; "" where the column's name says it all."""

    kind: ChangeKind
    column: str
    detail: str = ""

    def __str__(self) -> str:
        named = f"{self.kind.value}: {self.column}" if self.column else self.kind.value
        return f"{named} ({self.detail})" if self.detail else named


@dataclass(frozen=True, slots=True)
class Lineage:
    """From an old version of a relation to a new one.

    origins: for each new column its place in the old version, None for one that is new. retired: places of old columns
    whose values stay in the target though PostgreSQL's table no longer has them under that name. unsent: places of new
    columns that the rows there are have values in which were never sent.
    """

    origins: tuple[int | None, ...]
    retired: tuple[int, ...]
    unsent: tuple[int, ...]
    changes: tuple[SchemaChange, ...]


def lineage(old: Relation, new: Relation, declared: Declared) -> Lineage:
    """Raises TableError where the two versions don't say which column is which."""
    before, after = old.columns, new.columns
    kept = _kept_by_name(before, after, declared)
    origins: list[int | None] = [kept.get(column.name) for column in after]
    retired: list[int] = []
    unsent: list[int] = []
    for old_gap, new_gap, is_last in _gaps(before, origins):
        found = _explain(old_gap, new_gap, is_last, before, after, declared)
        for place, origin in found.items():
            origins[place] = origin
        if any(found.get(place) is None for place in new_gap):
            retired += _maybe_renamed(old_gap, new_gap, found, before, after, declared)
        if not is_last:
            unsent += _never_sent(old_gap, new_gap, found, after, declared)
    changes = _changes(old, new, origins, retired, unsent)
    return Lineage(tuple(origins), tuple(retired), tuple(unsent), tuple(changes))


def _kept_by_name(
    before: Sequence[RelationColumn], after: Sequence[RelationColumn], declared: Declared
) -> dict[str, int]:
    """Columns that are in both versions and didn't change places, by name: their old place."""
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
    """As many of the first as stand in the order that they had: a new column comes last."""
    kept: dict[str, int] = {}
    for name in names:
        if kept and places[name] < max(kept.values()):
            break
        kept[name] = places[name]
    return kept


Gap = tuple[list[int], list[int], bool]


def _gaps(before: Sequence[RelationColumn], origins: Sequence[int | None]) -> list[Gap]:
    """Between columns that stayed: the old places and the new ones; True for what is behind all of them."""
    gaps: list[Gap] = []
    old_from, new_from = 0, 0
    for place, origin in enumerate(origins):
        if origin is not None:
            gaps.append((list(range(old_from, origin)), list(range(new_from, place)), False))
            old_from, new_from = origin + 1, place + 1
    gaps.append((list(range(old_from, len(before))), list(range(new_from, len(origins))), True))
    return gaps


def _explain(
    old_gap: list[int],
    new_gap: list[int],
    is_last: bool,
    before: Sequence[RelationColumn],
    after: Sequence[RelationColumn],
    declared: Declared,
) -> dict[int, int]:
    """New place -> old place, of the columns in a gap that were renamed for certain or by declaration."""
    names = {before[place].name: place for place in old_gap}
    origins = {place: declared.get(after[place].name) for place in new_gap}
    found = {place: names[origin] for place, origin in origins.items() if origin in names}
    left_old = [place for place in old_gap if place not in found.values()]
    left_new = [place for place in new_gap if place not in found and after[place].name not in declared]
    if is_last or not left_new or len(left_new) > len(left_old):
        return found
    if len(left_new) == len(left_old):
        return found | dict(zip(left_new, left_old, strict=True))
    return found | _only_way(left_old, left_new, before, after)


def _never_sent(
    old_gap: list[int],
    new_gap: list[int],
    found: Mapping[int, int],
    after: Sequence[RelationColumn],
    declared: Declared,
) -> list[int]:
    """New places in front of kept columns: those declared to be other columns, and all where there are too many."""
    new = [place for place in new_gap if place not in found]
    too_many = len(new_gap) > len(old_gap)
    return [place for place in new if too_many or after[place].name in declared]


def _only_way(
    old_gap: list[int], new_gap: list[int], before: Sequence[RelationColumn], after: Sequence[RelationColumn]
) -> dict[int, int]:
    """Some were renamed, others dropped: which, if the types leave but one way. Nothing otherwise."""
    ways: list[dict[int, int]] = [{}]
    for place in new_gap:
        ways = [
            {**way, place: origin}
            for way in ways
            for origin in old_gap
            if origin > max(way.values(), default=-1) and before[origin].type_oid == after[place].type_oid
        ][:3]
    return ways[0] if len(ways) == 1 else {}


def _maybe_renamed(
    old_gap: list[int],
    new_gap: list[int],
    found: Mapping[int, int],
    before: Sequence[RelationColumn],
    after: Sequence[RelationColumn],
    declared: Declared,
) -> list[int]:
    """Old columns of the gap that may go on under one of its new names."""
    new = [after[p] for p in new_gap if p not in found and after[p].name not in declared]
    types = {column.type_oid for column in new}
    return [p for p in old_gap if p not in found.values() and before[p].type_oid in types]


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
        was = before[origin]
        if was.name != column.name:
            changes.append(SchemaChange(ChangeKind.RENAMED, column.name, f"was {was.name}"))
        if (was.type_oid, was.type_modifier) != (column.type_oid, column.type_modifier):
            changes.append(SchemaChange(ChangeKind.RETYPED, column.name))
    was_key = {place for place, column in enumerate(before) if column.is_key}
    is_key = {origin for origin, column in zip(origins, after, strict=True) if column.is_key}
    full = ReplicaIdentity.FULL
    if (old.replica_identity is full) != (new.replica_identity is full) or (
        new.replica_identity is not full and was_key != is_key
    ):
        changes.append(SchemaChange(ChangeKind.KEY, "", f"{_key(old)} to {_key(new)}"))
    return changes


def _key(relation: Relation) -> str:
    if relation.replica_identity is ReplicaIdentity.FULL:
        return "the whole row"
    return ", ".join(column.name for column in relation.columns if column.is_key) or "none"
