"""Finds the changes of chosen rows, whatever the status of their transactions.

A change is chosen if one of its row images, the old or the new tuple, has all values of a condition, as PostgreSQL
prints them. A key is a condition on the key's columns. Rows are not followed across changes of their keys: the keys of
a chosen image that no condition covers are returned, so that the next search can include them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pgoutput_etl.errors import ArchiveError, TableError
from pgoutput_etl.protocol.decoder import read_tuple
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity
from pgoutput_etl.schema.column_matching import Declared
from pgoutput_etl.schema.declarations import Declarations
from pgoutput_etl.schema.diff import lineage
from pgoutput_etl.schema.relation_history import Position, RelationVersions
from pgoutput_etl.types import NO_USER_TYPES, ColumnType, UserTypes, type_of
from pgoutput_etl.types.canonical_text import canonical_texts, compares_by_value, printed_text

Text = str | None

Condition = Mapping[str, Text]  # texts by column; all must be equal, and NULL equals NULL

# Identifies a column under all of its names: the version that first had it, and its place there
ColumnId = tuple[int, int]

RowImage = Mapping[ColumnId, Text]  # the values in a tuple or a stored row

# A condition: for each of its names, the columns that ever had this name, with the text to find in one of them
Wanted = Sequence[frozenset[tuple[ColumnId, Text]]]

RowKey = tuple[tuple[str, str], ...]  # a row's key: column names, each with its text

_N, _U, _B = b"nub"


@dataclass(frozen=True, slots=True)
class FoundChange:
    """version: of its relation. is_chosen: a tuple meets a condition. other_keys: those in the tuples."""

    version: int
    file: int
    ordinal: int
    offset: int
    in_stream: bool
    is_chosen: bool
    other_keys: frozenset[RowKey]


@dataclass(frozen=True)
class RowSearch:
    """conditions: a row is chosen if it meets any of them; a column may have any name that it ever had. key: the
    configured key, if any. declared: as in schema/column_matching.py."""

    versions: RelationVersions
    conditions: tuple[Condition, ...]
    key: tuple[str, ...] | None = None
    declared: Declared = field(default_factory=dict)
    user_types: UserTypes = field(default=NO_USER_TYPES)

    @cached_property
    def columns(self) -> tuple[tuple[ColumnId, ...], ...]:
        """The columns of each version. Raises TableError if columns can't be identified, or if a column in a condition
        may have been renamed."""
        before = _predecessors(self.versions)
        declarations = Declarations(self.declared)
        if before == [None, *range(len(before) - 1)]:
            declarations.foresee([relation.columns for relation in self.versions.relations])
        columns: list[tuple[ColumnId, ...]] = []
        for number, relation in enumerate(self.versions.relations):
            origins: Sequence[int | None] = [None] * len(relation.columns)
            old: tuple[ColumnId, ...] = ()
            if (earlier := before[number]) is not None:
                origins = self._origins(self.versions.relations[earlier], relation, declarations)
                old = columns[earlier]
            columns.append(tuple((number, i) if o is None else old[o] for i, o in enumerate(origins)))
        return tuple(columns)

    def _origins(self, earlier: Relation, relation: Relation, declarations: Declarations) -> Sequence[int | None]:
        found = lineage(earlier, relation, declarations)
        named = {name for condition in self.conditions for name in condition}
        doubtful = [name for i in found.retired if (name := earlier.columns[i].name) in named]
        if doubtful:
            raise TableError(
                f"the archive does not show whether {doubtful[0]!r}, a column of the request, was renamed. Declare it "
                "in the configuration, as columns: {name: {renamed_from: old_name}} or columns: {name: added}"
            )
        return found.origins

    @cached_property
    def _keys(self) -> tuple[tuple[ColumnId, ...], ...]:
        """The keys that the table ever had."""
        configured = {column for name in self.key or () for column, _ in self._named.get(name, ())}
        keys = []
        for relation, columns in zip(self.versions.relations, self.columns, strict=True):
            flagged = [column for flag, column in zip(relation.columns, columns, strict=True) if flag.is_key]
            keys.append(tuple(flagged if _flags_key(relation) else [c for c in columns if c in configured]))
        return tuple(dict.fromkeys(filter(None, keys)))

    @cached_property
    def spelled_in_several_ways(self) -> frozenset[ColumnId]:
        """Columns whose values can have several texts."""
        columns = (column for number in range(len(self.columns)) for column in self.columns_of(number))
        return frozenset(column_id for _, column_id, own_type in columns if compares_by_value(own_type))

    def columns_of(self, number: int) -> list[tuple[str, ColumnId, ColumnType]]:
        """The names of a version's columns, with their types."""
        pairs = zip(self.versions.relations[number].columns, self.columns[number], strict=True)
        return [(column.name, column_id, type_of(column, self.user_types)) for column, column_id in pairs]

    @cached_property
    def _compared(self) -> frozenset[ColumnId]:
        if not self._keys:
            return frozenset(column for columns in self.columns for column in columns)
        chosen = (column_id for condition in self.wanted for pairs in condition for column_id, _ in pairs)
        return frozenset([*(column for key in self._keys for column in key), *chosen])

    @cached_property
    def wanted(self) -> list[Wanted]:
        return [
            [_pairs(self._named.get(name, ()), text) for name, text in condition.items()]
            for condition in self.conditions
        ]

    def can_use(self, columns: Iterable[ColumnId]) -> bool:
        """True if every condition can be checked with these columns alone."""
        known = frozenset(columns)
        return all(any(column in known for column, _ in pairs) for wanted in self.wanted for pairs in wanted)

    @cached_property
    def _named(self) -> Mapping[str, list[tuple[ColumnId, ColumnType]]]:
        """By name, the columns that ever had it, and their types."""
        named: dict[str, list[tuple[ColumnId, ColumnType]]] = {}
        for number in range(len(self.columns)):
            for name, column_id, own_type in self.columns_of(number):
                named.setdefault(name, []).append((column_id, own_type))
        return named

    @cached_property
    def _latest_names(self) -> Mapping[ColumnId, str]:
        versions = range(len(self.columns))
        return {column_id: name for number in versions for name, column_id, _ in self.columns_of(number)}

    def spellings(self) -> Iterator[tuple[str, str]]:
        """The texts of the conditions, each as PostgreSQL prints it."""
        for condition in self.conditions:
            for name, text in condition.items():
                for _, own_type in self._named.get(name, ()):
                    if text is not None and (printed := printed_text(own_type, text)) is not None:
                        yield text, printed

    def find(self, row: Mapping[str, Any]) -> FoundChange:
        """row: a change of a row, with the columns of MESSAGE_SCHEMA and the scope of its transaction. Raises
        ArchiveError if no Relation message describes it."""
        number = self.versions.at((row["file"], row["ordinal"]), row["scope"])
        if number is None:
            where = f"file {row['file']}, offset {row['offset']}"
            raise ArchiveError(f"{where}: expected a Relation message of {self.versions.oid}, found none")
        old = self._image(row["old"], number, is_key=row["old_kind"] == "K")
        new = self._image(row["new"], number, is_key=False)
        if old is not None and new is not None:  # an unsent value equals the old one, which is never NULL
            new = {**{column: text for column, text in old.items() if text is not None}, **new}
        images = [image for image in (old, new) if image is not None]
        is_chosen = any(meets_any(image, self.wanted) for image in images)
        others = {key for image in images for key in self.other_keys(image)} if is_chosen else ()
        place = row["file"], row["ordinal"], row["offset"]
        return FoundChange(number, *place, row["xid"] is not None, is_chosen, frozenset(others))

    def other_keys(self, image: RowImage) -> Iterator[RowKey]:
        """The keys in an image that no condition covers, if it has all their values. Without a key, a row's values are
        its key."""
        for columns in self._keys or (tuple(image),):
            values = {column: text for column in columns if (text := image.get(column)) is not None}
            is_whole = bool(values) and (len(values) == len(columns) or not self._keys)
            if is_whole and not meets_any(values, self.wanted):
                yield tuple((self._latest_names[column], text) for column, text in sorted(values.items()))

    def _image(self, data: bytes | None, number: int, is_key: bool) -> dict[ColumnId, Text] | None:
        """The sent values of the columns that matter. is_key: a NULL in the tuple is only a column that was not sent. A
        tuple with too many values belongs to a held table; its first values still identify the row."""
        if data is None:
            return None
        sent, relation = read_tuple(data), self.versions.relations[number]
        return {
            column_id: self._text(kind, value, column)
            for column_id, column, kind, value in zip(
                self.columns[number], relation.columns, sent.kinds, sent.values, strict=False
            )
            if column_id in self._compared and kind != _U and not (is_key and kind == _N)
        }

    def _text(self, kind: int, value: bytes | None, column: RelationColumn) -> Text:
        if value is None or kind == _N:
            return None
        own_type = type_of(column, self.user_types)
        if kind == _B:
            value = own_type.binary_text(value)
        return _spelled(own_type, value.decode("utf-8", "surrogateescape"))


def _predecessors(versions: RelationVersions) -> list[int | None]:
    """For each version, the version in force when it first appeared or, if that was in another transaction's stream,
    the last one before it."""
    first: dict[int, int | None] = {}
    last: int | None = None
    for (file, ordinal), number, scope in _entries(versions):
        in_force = versions.at((file, ordinal - 1), scope)
        first.setdefault(number, last if in_force is None else in_force)
        last = number
    return [first[number] for number in range(len(versions.relations))]


def _entries(versions: RelationVersions) -> list[tuple[Position, int, int | None]]:
    """The positions where versions start to apply, with their numbers and scopes, in archive order."""
    entries = [(position, number, scope) for scope, held in versions.holds_from.items() for position, number in held]
    return sorted(entries, key=lambda entry: entry[0])


def _flags_key(relation: Relation) -> bool:
    """False under FULL, where all columns are flagged."""
    is_full = relation.replica_identity is ReplicaIdentity.FULL
    return not is_full and any(column.is_key for column in relation.columns)


def meets_any(image: RowImage, conditions: Iterable[Wanted]) -> bool:
    """True if all columns of a condition have their texts."""
    return any(
        all(any(column in image and image[column] == text for column, text in pairs) for pairs in wanted)
        for wanted in conditions
    )


def _pairs(columns: Iterable[tuple[ColumnId, ColumnType]], text: Text) -> frozenset[tuple[ColumnId, Text]]:
    """The columns with the text wanted for one name of a condition, as it is written and as PostgreSQL prints it."""
    return frozenset(
        (column_id, _spelled(own_type, spelling))
        for column_id, own_type in columns
        for spelling in (text, printed_text(own_type, text))
    )


def _spelled(own_type: ColumnType, text: Text) -> Text:
    """A text that is the same for equal values, where PostgreSQL may print them in several ways."""
    return canonical_texts(own_type, [text])[0]
