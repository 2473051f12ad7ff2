"""Differences between two versions of a relation: columns added, dropped, renamed, and retyped.

schema/column_matching.py matches the columns of the two versions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity, TypeForm
from pgoutput_etl.schema.column_matching import Doubt
from pgoutput_etl.schema.declarations import Declarations


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
    TABLE_ARCHIVED = "table archived, as it was dropped on the server"
    TABLE_MOVED = "table moved to the path that the configuration gives it"
    # Changes of a definition (definition_changes.py), not of a target
    TABLE_CREATED = "table created"
    TABLE_DESCRIBED = "table described"
    TABLE_DROPPED = "table dropped"
    UNKNOWN = "definition unknown"
    REWRITTEN = "values computed anew"
    CAST = "values cast"
    DEFAULT = "existing rows got a default"
    TYPE_CHANGED = "type changed"
    PARTITIONS = "partitions changed"
    COMMENT = "comment changed"


@dataclass(frozen=True, slots=True)
class SchemaChange:
    """detail: the difference, in names and types; "" if the column's name is enough. is_fact: catalog Messages show it;
    otherwise, it is inferred from the descriptions of rows."""

    kind: ChangeKind
    column: str
    detail: str = ""
    is_fact: bool = False

    def __str__(self) -> str:
        named = f"{self.kind.value}: {self.column}" if self.column else self.kind.value
        return f"{named} ({self.detail})" if self.detail else named


@dataclass(frozen=True, slots=True)
class Lineage:
    """The origins of a relation's columns in an older version.

    origins: each column's position in the old version; None for a new column. retired: positions of old columns that
    PostgreSQL's table no longer has by name, but whose values stay in the target. unsent: positions of new columns
    whose values in existing rows were never sent. doubts: about the origins. initial: texts of new columns' values in
    existing rows; missing for NULL. is_rewritten: existing rows have other values on the server, which didn't send
    them. reformed: columns whose user type has changed, with its forms before and after. same_type: columns that the
    server has not retyped.
    """

    origins: tuple[int | None, ...]
    retired: tuple[int, ...]
    unsent: tuple[int, ...]
    changes: tuple[SchemaChange, ...]
    doubts: tuple[Doubt, ...]
    initial: Mapping[int, bytes] = field(default_factory=dict)
    is_rewritten: bool = False
    reformed: Mapping[int, tuple[TypeForm, TypeForm]] = field(default_factory=dict)
    same_type: frozenset[int] = frozenset()


def lineage(old: Relation, new: Relation, declarations: Declarations, keeps_dropped: bool = False) -> Lineage:
    """keeps_dropped: retires every column that the new version lacks. Raises TableError if columns can't be
    identified."""
    found = declarations.identify(old.columns, new.columns)
    origins = [found.origins.get(place) for place in range(len(new.columns))]
    retired = [place for place in range(len(old.columns)) if place not in origins] if keeps_dropped else found.retired
    older = _older_columns(old, new)
    is_new = [place for place, origin in enumerate(origins) if origin is None and place not in older]
    initial = {place: text for place in is_new if (text := new.columns[place].initial) is not None}
    is_rewritten = has_unsent_values(old, new)
    unsent = [*found.unsent, *older, *(place for place in is_new if is_rewritten and place not in initial)]
    forms = {place: (old.columns[o].form, new.columns[place].form) for place, o in found.origins.items()}
    reformed = {
        place: (before, after)
        for place, (before, after) in forms.items()
        if before is not None and after is not None and _is_reformed(before, after)
    }
    changes = _changes(old, new, origins, retired, unsent)
    columns = (tuple(origins), tuple(retired), tuple(unsent), tuple(changes), tuple(found.doubts))
    pairs = found.origins.items()
    same = frozenset(place for place, o in pairs if old.columns[o].full_type == new.columns[place].full_type)
    return Lineage(*columns, initial, is_rewritten, reformed, same)


def _is_reformed(old: TypeForm, new: TypeForm) -> bool:
    """True if existing values have another text now. New labels change none."""
    labels = dict(new.labels)
    return old.attributes != new.attributes or any(labels.get(oid, label) != label for oid, label in old.labels)


def has_unsent_values(old: Relation, new: Relation) -> bool:
    """True if, according to catalog Messages, existing rows have values on the server that it never sent: it recomputed
    them, or the publication had omitted a column."""
    if old.catalog is None or new.catalog is None:
        return False
    if old.catalog.rewrites != new.catalog.rewrites or _older_columns(old, new):
        return True
    before, is_cast = {column.number: column for column in old.columns}, has_cast(old, new)
    if any(column.number in new.catalog.computed and column.number not in before for column in new.columns):
        return True
    pairs = ((before[column.number], column) for column in new.columns if column.number in before)
    return any(_is_unsent(older, column, is_cast) for older, column in pairs)


def _is_unsent(old: RelationColumn, new: RelationColumn, is_cast: bool) -> bool:
    """True if values have changed on the server in an unknown way: inside a composite or range, or by a domain's
    modifier."""
    before, after = old.form or TypeForm(), new.form or TypeForm()
    if old.full_type != new.full_type:
        return is_cast and after.modifier is not None and not new.types
    return before.nested != after.nested


def has_cast(old: Relation | None, new: Relation) -> bool:
    """True if, according to catalog Messages, the server has cast existing rows' values to other types."""
    known = None if old is None else old.catalog
    return known is not None and new.catalog is not None and known.casts != new.catalog.casts


def _older_columns(old: Relation, new: Relation) -> list[int]:
    """The positions of columns that the table had before but that are missing in its older description."""
    if old.catalog is None or new.catalog is None:
        return []
    known, last = {column.number for column in old.columns}, old.catalog.last_number
    return [i for i, c in enumerate(new.columns) if c.number is not None and c.number <= last and c.number not in known]


def _changes(
    old: Relation, new: Relation, origins: Sequence[int | None], retired: Sequence[int], unsent: Sequence[int]
) -> list[SchemaChange]:
    before, after = old.columns, new.columns
    is_fact = old.catalog is not None and new.catalog is not None
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
        if old_column.full_type != column.full_type:
            changes.append(SchemaChange(ChangeKind.RETYPED, column.name))
    old_key = {place for place, column in enumerate(before) if column.is_key}
    new_key = {origin for origin, column in zip(origins, after, strict=True) if column.is_key}
    full = ReplicaIdentity.FULL
    if (old.replica_identity is full) != (new.replica_identity is full) or (
        new.replica_identity is not full and old_key != new_key
    ):
        changes.append(SchemaChange(ChangeKind.KEY, "", f"{_key(old)} to {_key(new)}"))
    return [replace(change, is_fact=is_fact) for change in changes]


def _key(relation: Relation) -> str:
    if relation.replica_identity is ReplicaIdentity.FULL:
        return "the whole row"
    return ", ".join(column.name for column in relation.columns if column.is_key) or "none"
