"""Definitions of tables, the publication, and the messages that a walsender builds from both.

Values are PostgreSQL's text as bytes, None for NULL. A value that begins with `~` is stored out of line (TOAST).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pgoutput_etl.protocol.messages import (
    Delete,
    Insert,
    OldTupleKind,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    TupleData,
    Type,
    Update,
)

Value = bytes | None
Row = tuple[Value, ...]
Name = tuple[str, str]  # namespace, name

INT4, INT8, TEXT, NUMERIC, TIMESTAMPTZ, INT4_ARRAY, MOOD = 23, 20, 25, 1700, 1184, 1007, 99001
USER_TYPES: Mapping[int, Name] = {MOOD: ("public", "mood")}
INSERT, UPDATE, DELETE, TRUNCATE = "IUDT"
ALL_OPERATIONS = frozenset((INSERT, UPDATE, DELETE, TRUNCATE))
_TOASTED = 0x7E  # ~


def is_toasted(value: Value) -> bool:
    return value is not None and value[:1] == b"~"


class Column(NamedTuple):
    """number: the attribute number, never used again in the same table."""

    number: int
    name: str
    type_oid: int


class Definition:
    """A table's catalog rows at one moment. key, index: attribute numbers of the primary key, and of the index that
    REPLICA IDENTITY USING INDEX names. Immutable; compared by identity."""

    __slots__ = ("columns", "identity", "index", "key", "name", "namespace", "next_number", "oid", "places")

    def __init__(
        self,
        oid: int,
        namespace: str,
        name: str,
        columns: tuple[Column, ...],
        key: tuple[int, ...] = (),
        identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
        index: tuple[int, ...] = (),
        next_number: int = 0,
    ) -> None:
        self.oid, self.namespace, self.name = oid, namespace, name
        self.columns, self.key, self.identity, self.index = columns, key, identity, index
        self.next_number = next_number or len(columns) + 1
        self.places = {column.name: column.number - 1 for column in columns}  # in a row, by name

    def with_name(self, namespace: str, name: str) -> Definition:
        return Definition(
            self.oid, namespace, name, self.columns, self.key, self.identity, self.index, self.next_number
        )

    def with_columns(self, columns: Iterable[Column], next_number: int = 0) -> Definition:
        number = next_number or self.next_number
        return Definition(
            self.oid, self.namespace, self.name, tuple(columns), self.key, self.identity, self.index, number
        )

    def with_key(self, key: tuple[int, ...], identity: ReplicaIdentity, index: tuple[int, ...] = ()) -> Definition:
        return Definition(self.oid, self.namespace, self.name, self.columns, key, identity, index, self.next_number)

    @property
    def identity_numbers(self) -> frozenset[int]:
        """The columns that old tuples carry."""
        match self.identity:
            case ReplicaIdentity.FULL:
                return frozenset(column.number for column in self.columns)
            case ReplicaIdentity.DEFAULT:
                return frozenset(self.key)
            case ReplicaIdentity.INDEX:
                return frozenset(self.index)
            case ReplicaIdentity.NOTHING:
                return frozenset()

    def unique_keys(self) -> tuple[tuple[int, ...], ...]:
        return tuple(numbers for numbers in (self.key, self.index) if numbers)


class Publication:
    """tables: OID -> the listed attribute numbers, None for all columns; None for FOR ALL TABLES. Immutable."""

    __slots__ = ("operations", "tables")

    def __init__(
        self,
        operations: frozenset[str] = ALL_OPERATIONS,
        tables: Mapping[int, tuple[int, ...] | None] | None = None,
    ) -> None:
        self.operations, self.tables = operations, tables


class RowOperation(NamedTuple):
    """before, after: the row; one of them is None for an INSERT or DELETE. assigned: places of the columns that an
    UPDATE sets."""

    before: Row | None
    after: Row | None
    assigned: frozenset[int] = frozenset()


class Layout:
    """A table as one publication publishes it. places: positions of the published columns in a row."""

    __slots__ = (
        "columns",
        "definition",
        "identity_places",
        "is_full",
        "operations",
        "places",
        "publication",
        "relation",
        "types",
        "updatable",
    )

    def __init__(self, definition: Definition, publication: Publication) -> None:
        tables = publication.tables
        is_member = tables is None or definition.oid in tables
        listed = None if tables is None else tables.get(definition.oid)
        columns = [column for column in definition.columns if listed is None or column.number in listed]
        identity = definition.identity_numbers
        self.definition, self.publication, self.columns = definition, publication, columns
        self.operations = publication.operations if is_member else frozenset[str]()
        self.places = tuple(column.number - 1 for column in columns)
        self.identity_places = frozenset(number - 1 for number in identity)
        self.is_full = definition.identity is ReplicaIdentity.FULL
        # PostgreSQL refuses a published UPDATE or DELETE if the old row could not be identified.
        covers = listed is None if self.is_full else self.identity_places <= set(self.places)
        self.updatable = bool(identity) and covers
        described = tuple(RelationColumn(c.number in identity, c.name, c.type_oid, -1) for c in columns)
        self.relation = Relation(
            None, definition.oid, definition.namespace, definition.name, definition.identity, described
        )
        self.types = tuple(Type(None, c.type_oid, *USER_TYPES[c.type_oid]) for c in columns if c.type_oid in USER_TYPES)

    def allows(self, operation: str) -> bool:
        return operation not in self.operations or self.updatable

    def message(self, operation: RowOperation) -> Insert | Update | Delete | None:
        """The message without an xid; None if the operation is not published."""
        before, after, assigned = operation
        if before is None:
            assert after is not None
            return Insert(None, self.definition.oid, self.tuple_of(after)) if INSERT in self.operations else None
        if after is None:
            is_sent = DELETE in self.operations and self.identity_places  # pgoutput skips a DELETE without old tuple
            return self._delete(before) if is_sent else None
        return self._update(before, after, assigned) if UPDATE in self.operations else None

    def _update(self, before: Row, after: Row, assigned: frozenset[int]) -> Update:
        """A TOASTed value is not sent unless the statement sets its column."""
        new = self.tuple_of(after, assigned)
        oid = self.definition.oid
        if self.is_full:
            return Update(None, oid, OldTupleKind.OLD, self.tuple_of(before), new)
        # The old key is logged if it changed, or if a part of it is TOASTed: the new tuple lacks that part then.
        if all(before[place] == after[place] and not is_toasted(before[place]) for place in self.identity_places):
            return Update(None, oid, None, None, new)
        return Update(None, oid, OldTupleKind.KEY, self._key_tuple(before), new)

    def _delete(self, row: Row) -> Delete:
        kind, old = (OldTupleKind.OLD, self.tuple_of(row)) if self.is_full else (OldTupleKind.KEY, self._key_tuple(row))
        return Delete(None, self.definition.oid, kind, old)

    def tuple_of(self, row: Row, assigned: frozenset[int] | None = None) -> TupleData:
        values = []
        kinds = bytearray()
        for place in self.places:
            value = row[place]
            if value is None:
                kinds.append(0x6E)  # n
            elif assigned is not None and value[:1] == b"~" and place not in assigned:
                kinds.append(0x75)  # u
                value = None
            else:
                kinds.append(0x74)  # t
            values.append(value)
        return TupleData(bytes(kinds), tuple(values))

    def _key_tuple(self, row: Row) -> TupleData:
        key = self.identity_places
        values = tuple(row[place] if place in key else None for place in self.places)
        return TupleData(bytes(0x6E if value is None else 0x74 for value in values), values)
