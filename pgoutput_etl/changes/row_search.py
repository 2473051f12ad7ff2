"""Finds the changes of chosen rows, whatever became of their transactions.

A row is chosen by the values of some columns, as PostgreSQL prints them. All keys that a chosen row ever had belong to
it, for as long as it had them, so changes that have none of the chosen values are found by their keys: an UPDATE that
did not send a large value, or a DELETE. Another row may have had the key before, or get it later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pgoutput_etl.errors import ArchiveError, TableError
from pgoutput_etl.protocol.decoder import read_tuple
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity
from pgoutput_etl.schema.diff import lineage
from pgoutput_etl.schema.identification import Declarations, Declared
from pgoutput_etl.schema.relation_history import Position, RelationVersions
from pgoutput_etl.types import NO_USER_TYPES, ColumnType, UserTypes, column_type
from pgoutput_etl.types.canonical_text import canonical_texts, compares_by_value, printed_text

Text = str | None

Condition = Mapping[str, Text]  # texts by column; all must be equal, and NULL is equal to NULL

# A column through all its names: the version that first had it, and its place there
ColumnId = tuple[int, int]

# A condition: for each of its names the columns that ever had it, each with the text to find. One of them must have it
Wanted = Sequence[frozenset[tuple[ColumnId, Text]]]

Key = tuple[ColumnId, ...]

# A key of a row: its columns and their texts, by column
Identity = tuple[tuple[ColumnId, Text], ...]

_N, _U, _B = b"nub"


@dataclass(frozen=True, slots=True)
class KeyUse:
    """A key in a change. number: which of `RowSearch.keys` it is of. begins: a row takes it; ends: its row leaves it.
    In a table without a key, several rows may have it at once, so it neither begins nor ends. is_later: the table gets
    this key only later; it identifies the row then, if this is its last change before."""

    identity: Identity
    number: int = 0
    begins: bool = False
    ends: bool = False
    is_later: bool = False


@dataclass(frozen=True, slots=True)
class FoundChange:
    """version: of its relation. keys: that its tuples have. is_chosen: a tuple meets a condition."""

    version: int
    file: int
    ordinal: int
    offset: int
    in_stream: bool
    keys: tuple[KeyUse, ...]
    is_chosen: bool


@dataclass(frozen=True)
class RowSearch:
    """conditions: a row is chosen if it meets any of them; a column has any name that it ever had. key: of a table with
    a configured key. declared: as in schema/identification.py."""

    versions: RelationVersions
    conditions: tuple[Condition, ...]
    key: tuple[str, ...] | None = None
    declared: Declared = field(default_factory=dict)
    user_types: UserTypes = field(default=NO_USER_TYPES)

    @cached_property
    def columns(self) -> tuple[tuple[ColumnId, ...], ...]:
        """The columns of each version. Raises TableError if columns can't be identified."""
        before = _predecessors(self.versions)
        declarations = Declarations(self.declared)
        columns: list[tuple[ColumnId, ...]] = []
        for number, relation in enumerate(self.versions.relations):
            origins: Sequence[int | None] = [None] * len(relation.columns)
            old: tuple[ColumnId, ...] = ()
            if (earlier := before[number]) is not None:
                origins, old = (
                    self._origins(self.versions.relations[earlier], relation, declarations),
                    columns[earlier],
                )
            columns.append(tuple((number, i) if o is None else old[o] for i, o in enumerate(origins)))
        return tuple(columns)

    def _origins(self, earlier: Relation, relation: Relation, declarations: Declarations) -> Sequence[int | None]:
        found = lineage(earlier, relation, declarations)
        key = [c.name for c in earlier.columns if c.is_key] if _flags_key(earlier) else self.key or ()
        doubtful = [name for i in found.retired if (name := earlier.columns[i].name) in key]
        if doubtful:
            raise TableError(
                f"the archive does not show whether {doubtful[0]!r}, a column of its key, was renamed. Declare it in "
                "the configuration, as columns: {name: {renamed_from: old_name}} or columns: {name: added}"
            )
        return found.origins

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """The keys that rows are followed by, in the order in which the table had them. A table without any has all
        columns that are in each version. Raises TableError if rows can't be followed."""
        in_order = (self._own_keys[number] for _, number, _ in _entries(self.versions))
        keys = tuple(dict.fromkeys(key for key in in_order if key is not None))
        if not keys:
            common = tuple(sorted(frozenset.intersection(*map(frozenset, self.columns)))) if self.columns else ()
            if self.columns and not common:
                raise TableError(
                    "no column is in all of its versions, so its rows can't be followed through all changes"
                )
            return (common,)
        if len(keys) > 1 and not self.has_key:
            raise TableError(
                "its key has changed, and it had none for a while, so its rows can't be followed through all changes"
            )
        for own, columns in zip(self._own_keys, self.columns, strict=True):
            needed = keys[0 if own is None else keys.index(own) :]
            if missing := [column for key in needed for column in key if column not in columns]:
                name = self.versions.relations[missing[0][0]].columns[missing[0][1]].name
                raise TableError(
                    f"its key has {name!r}, a column that it has only in a part of the archive, so its rows can't be "
                    "followed through all changes"
                )
        return keys

    @cached_property
    def _numbers(self) -> list[int]:
        """Of each version's key."""
        return [0 if own is None else self.keys.index(own) for own in self._own_keys]

    def number_of(self, identity: Identity) -> int:
        """The number of its key among `keys`."""
        return self.keys.index(tuple(column for column, _ in identity))

    @cached_property
    def _own_keys(self) -> list[Key | None]:
        """Of each version: what its changes name rows by, or the configured key."""
        versions = list(zip(self.versions.relations, self.columns, strict=True))
        flagged = [_flagged_columns(*version) if _flags_key(version[0]) else None for version in versions]
        if self.key is None or None not in flagged:
            return list(flagged)
        for relation, columns in reversed(versions):
            ids = {column.name: column_id for column, column_id in zip(relation.columns, columns, strict=True)}
            if ids.keys() >= set(self.key):
                configured = tuple(sorted(ids[name] for name in self.key))
                return [key or configured for key in flagged]
        raise TableError(f"it never had all columns of key: {', '.join(self.key)}")

    @cached_property
    def has_key(self) -> bool:
        """False if several rows may be equal, or may have been."""
        return self.key is not None or all(map(_flags_key, self.versions.relations))

    @cached_property
    def _is_whole_row(self) -> bool:
        """True if equal rows are one."""
        return not any(self._own_keys)

    @cached_property
    def spelled_in_several_ways(self) -> frozenset[ColumnId]:
        """Columns whose values may have several texts."""
        columns = (column for number in range(len(self.columns)) for column in self.columns_of(number))
        return frozenset(column_id for _, column_id, own_type in columns if compares_by_value(own_type))

    def columns_of(self, number: int) -> list[tuple[str, ColumnId, ColumnType]]:
        """The names of a version's columns, with their types."""
        pairs = zip(self.versions.relations[number].columns, self.columns[number], strict=True)
        return [(column.name, column_id, self._type(column)) for column, column_id in pairs]

    @cached_property
    def _compared(self) -> frozenset[ColumnId]:
        chosen = (column_id for condition in self.wanted for pairs in condition for column_id, _ in pairs)
        return frozenset([*(column for key in self.keys for column in key), *chosen])

    @cached_property
    def wanted(self) -> list[Wanted]:
        return [
            [_pairs(self._named.get(name, ()), text) for name, text in condition.items()]
            for condition in self.conditions
        ]

    @cached_property
    def _named(self) -> Mapping[str, list[tuple[ColumnId, ColumnType]]]:
        """The columns that ever had a name."""
        named: dict[str, list[tuple[ColumnId, ColumnType]]] = {}
        for number in range(len(self.columns)):
            for name, column_id, own_type in self.columns_of(number):
                named.setdefault(name, []).append((column_id, own_type))
        return named

    def spellings(self) -> Iterator[tuple[str, str]]:
        """The texts of the conditions, each as PostgreSQL prints it."""
        for condition in self.conditions:
            for name, text in condition.items():
                for _, own_type in self._named.get(name, ()):
                    if text is not None and (printed := printed_text(own_type, text)) is not None:
                        yield text, printed

    def find(self, row: Mapping[str, Any]) -> FoundChange:
        """row: a change of a row, with the columns of MESSAGE_SCHEMA and the scope of its transaction. Raises
        ArchiveError for one that no Relation message describes."""
        number = self.versions.at((row["file"], row["ordinal"]), row["scope"])
        if number is None:
            where = f"file {row['file']}, offset {row['offset']}"
            raise ArchiveError(f"{where}: expected a Relation message of {self.versions.oid}, found none")
        old, new = (self._texts(row[name], number, is_key) for name, is_key in _TUPLES[row["old_kind"]])
        if old is not None and new is not None:  # an unsent value is the old one, which is never NULL
            new = {**{column: text for column, text in old.items() if text is not None}, **new}
        tuples = [texts for texts in (old, new) if texts is not None]
        return FoundChange(
            number,
            row["file"],
            row["ordinal"],
            row["offset"],
            row["xid"] is not None,
            tuple(self._uses(number, row["tag"] == "I", old, new)),
            any(meets(texts, wanted) for texts in tuples for wanted in self.wanted),
        )

    def _uses(
        self, version: int, is_insert: bool, old: Mapping[ColumnId, Text] | None, new: Mapping[ColumnId, Text] | None
    ) -> Iterator[KeyUse]:
        """Without an old tuple, an UPDATE leaves the key as it is."""
        number = self._numbers[version]
        left, taken = self._identity(number, old), self._identity(number, new)
        moves = old is not None and left != taken
        if left is not None and moves:
            yield KeyUse(left, number, ends=self.has_key)
        if taken is not None:
            yield KeyUse(taken, number, begins=self.has_key and (is_insert or moves))
        for later in range(number + 1, len(self.keys)):
            if (has_then := self._identity(later, new)) is not None:
                yield KeyUse(has_then, later, is_later=True)

    def _identity(self, number: int, texts: Mapping[ColumnId, Text] | None) -> Identity | None:
        """None if a value is missing, or NULL, unless equal rows are one."""
        key = self.keys[number]
        if texts is None or not all(column in texts for column in key):
            return None
        has_all = self._is_whole_row or all(texts[column] is not None for column in key)
        return tuple((column, texts[column]) for column in key) if has_all else None

    def identities(self, texts: Mapping[ColumnId, Text]) -> list[Identity]:
        """The keys of a stored row, as far as it has all their values."""
        identities = (self._identity(number, texts) for number in range(len(self.keys)))
        return [identity for identity in identities if identity is not None]

    def _texts(self, data: bytes | None, number: int, is_key: bool) -> dict[ColumnId, Text] | None:
        """The sent values of the columns that matter. is_key: the tuple has no NULL, only columns that were not sent. A
        tuple with too many values is of a table that is held; its first ones still show whose row it is."""
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
        own_type = self._type(column)
        if kind == _B:
            value = own_type.binary_text(value)
        return _spelled(own_type, value.decode("utf-8", "surrogateescape"))

    def _type(self, column: RelationColumn) -> ColumnType:
        return column_type(column.type_oid, column.type_modifier, self.user_types)


def _predecessors(versions: RelationVersions) -> list[int | None]:
    """The version that was in force when each one first appeared, or the last one before it, if that was in another
    transaction's stream."""
    first: dict[int, int | None] = {}
    last: int | None = None
    for (file, ordinal), number, scope in _entries(versions):
        in_force = versions.at((file, ordinal - 1), scope)
        first.setdefault(number, last if in_force is None else in_force)
        last = number
    return [first[number] for number in range(len(versions.relations))]


def _entries(versions: RelationVersions) -> list[tuple[Position, int, int | None]]:
    """The positions from which versions hold, with their numbers and scopes, in the archive's order."""
    entries = [(position, number, scope) for scope, held in versions.holds_from.items() for position, number in held]
    return sorted(entries, key=lambda entry: entry[0])


# By the kind of the old tuple: whether it is a key only
_TUPLES = {kind: (("old", kind == "K"), ("new", False)) for kind in (None, "K", "O")}


def _flagged_columns(relation: Relation, columns: Sequence[ColumnId]) -> Key:
    pairs = zip(relation.columns, columns, strict=True)
    return tuple(sorted(column_id for column, column_id in pairs if column.is_key))


def _flags_key(relation: Relation) -> bool:
    """Under FULL, all columns are flagged."""
    is_full = relation.replica_identity is ReplicaIdentity.FULL
    return not is_full and any(column.is_key for column in relation.columns)


def meets(texts: Mapping[ColumnId, Text], wanted: Wanted) -> bool:
    """True if all wanted columns have their texts."""
    return all(any(column in texts and texts[column] == text for column, text in pairs) for pairs in wanted)


def _pairs(columns: Iterable[tuple[ColumnId, ColumnType]], text: Text) -> frozenset[tuple[ColumnId, Text]]:
    """What one name of a condition wants, as it is written, and as PostgreSQL prints it."""
    return frozenset(
        (column_id, _spelled(own_type, spelling))
        for column_id, own_type in columns
        for spelling in (text, printed_text(own_type, text))
    )


def _spelled(own_type: ColumnType, text: Text) -> Text:
    """The same text for the same value, as far as PostgreSQL prints it in several ways."""
    return canonical_texts(own_type, [text])[0]
