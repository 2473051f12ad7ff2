"""Statements that change the catalog. They lock their table against all other transactions until theirs ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pgoutput_etl.protocol.messages import ReplicaIdentity
from tests.support.model.catalog import (
    INT4,
    INT8,
    MOOD,
    NUMERIC,
    TEXT,
    Column,
    Definition,
    Publication,
    Value,
    is_toasted,
)
from tests.support.model.server import Server, Table
from tests.support.model.statements import Statement
from tests.support.model.transaction import NotPublished, Transaction
from tests.support.model.wal import EVERY_TABLE, THE_PUBLICATION

# Not timestamptz to text, which depends on the session's TimeZone.
RETYPES = {
    INT4: (INT8, NUMERIC, TEXT),
    INT8: (NUMERIC, TEXT),
    NUMERIC: (TEXT,),
    MOOD: (TEXT,),
}


def numbers_of(definition: Definition, names: tuple[str, ...]) -> tuple[int, ...] | None:
    if not set(names) <= definition.places.keys():
        return None
    return tuple(definition.places[name] + 1 for name in names)


def is_unique(table: Table, numbers: tuple[int, ...]) -> bool:
    """Without NULL, too, and not too long for an index."""
    keys = [tuple(row[number - 1] for number in numbers) for row in table.rows.values()]
    fits = all(None not in key and sum(map(is_toasted, key)) <= 1 for key in keys)
    return fits and len(set(keys)) == len(keys)


@dataclass(frozen=True, slots=True)
class TableStatement(Statement):
    """A statement that changes the definition of one table. Subclasses implement `changed`."""

    oid: int

    def change(self, server: Server, transaction: Transaction) -> bool:
        table = server.tables.get(self.oid)
        after = None if table is None else self.changed(server, transaction, table)
        if table is None or after is None or not server.lock(transaction, self.oid):
            return False
        server.define(transaction, table.definition, after)
        server.invalidate(transaction, [self.oid])
        return True

    def changed(self, server: Server, transaction: Transaction, table: Table) -> Definition | None:
        """The definition after the statement; None if the statement is refused."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class CreateTable(Statement):
    """columns: (name, type's OID). key: names of columns."""

    oid: int
    namespace: str
    name: str
    columns: tuple[tuple[str, int], ...]
    key: tuple[str, ...] = ()

    def change(self, server: Server, transaction: Transaction) -> bool:
        name = (self.namespace, self.name)
        if self.oid in server.tables or name in server.names or not server.lock(transaction, ("name", *name)):
            return False
        columns = tuple(Column(number, *column) for number, column in enumerate(self.columns, 1))
        definition = Definition(self.oid, *name, columns)
        key = numbers_of(definition, self.key)
        assert key is not None
        server.lock(transaction, self.oid)
        server.define(transaction, None, definition.with_key(key, ReplicaIdentity.DEFAULT))
        transaction.new_storage[self.oid] = transaction.stack[-1]
        server.invalidate(transaction, [self.oid])
        return True


@dataclass(frozen=True, slots=True)
class DropTable(Statement):
    oid: int

    def change(self, server: Server, transaction: Transaction) -> bool:
        table = server.tables.get(self.oid)
        if table is None or not server.lock(transaction, self.oid):
            return False
        before = table.definition
        if not server.lock(transaction, ("name", before.namespace, before.name)):
            return False
        server.define(transaction, before, None)
        publication = transaction.publication or server.publication
        is_member = self.oid in (publication.tables or ())
        server.invalidate(transaction, invalidated(server, publication, self.oid) if is_member else [self.oid])
        return True


@dataclass(frozen=True, slots=True)
class RenameTable(Statement):
    """To another schema, too."""

    oid: int
    namespace: str
    name: str

    def change(self, server: Server, transaction: Transaction) -> bool:
        table = server.tables.get(self.oid)
        name = (self.namespace, self.name)
        if table is None or name in server.names or not server.lock(transaction, self.oid):
            return False
        before = table.definition
        names = (("name", *name), ("name", before.namespace, before.name))
        if not all(server.lock(transaction, thing) for thing in names):
            return False
        server.define(transaction, before, before.with_name(*name))
        server.invalidate(transaction, [self.oid])
        return True


@dataclass(frozen=True, slots=True)
class AddColumn(TableStatement):
    name: str
    type_oid: int
    default: Value = None

    def change(self, server: Server, transaction: Transaction) -> bool:
        if not TableStatement.change(self, server, transaction):
            return False
        rows = server.tables[self.oid].rows
        if rows and self.default is not None and server.triggers is None:
            transaction.log.append(NotPublished(self.oid, "ADD COLUMN gave its DEFAULT to rows"))
        for row, values in list(rows.items()):
            server.put_row(transaction, self.oid, row, values, (*values, self.default))
        return True

    def changed(self, server: Server, transaction: Transaction, table: Table) -> Definition | None:  # noqa: ARG002
        before = table.definition
        if self.name in before.places:
            return None
        column = Column(before.next_number, self.name, self.type_oid)
        return before.with_columns((*before.columns, column), before.next_number + 1)


def _is_used(publication: Publication, definition: Definition, number: int) -> bool:
    tables = publication.tables or {}
    listed = tables.get(definition.oid) or ()
    return number in (*definition.key, *definition.index, *listed) or len(definition.columns) == 1


@dataclass(frozen=True, slots=True)
class DropColumn(TableStatement):
    """Refused for a column of a key or of the publication's column list."""

    name: str

    def changed(self, server: Server, transaction: Transaction, table: Table) -> Definition | None:
        before = table.definition
        number = before.places.get(self.name, -1) + 1
        if number == 0 or _is_used(transaction.publication or server.publication, before, number):
            return None
        return before.with_columns(column for column in before.columns if column.number != number)


@dataclass(frozen=True, slots=True)
class RenameColumn(TableStatement):
    name: str
    new_name: str

    def changed(self, server: Server, transaction: Transaction, table: Table) -> Definition | None:  # noqa: ARG002
        before = table.definition
        if self.name not in before.places or self.new_name in before.places:
            return None
        return before.with_columns(c._replace(name=self.new_name) if c.name == self.name else c for c in before.columns)


@dataclass(frozen=True, slots=True)
class RetypeColumn(TableStatement):
    """Changes a column to one of RETYPES, which leave every value's text unchanged."""

    name: str
    type_oid: int
    is_rewrite: ClassVar[bool] = True

    def change(self, server: Server, transaction: Transaction) -> bool:
        """The statement rewrites the table."""
        if not TableStatement.change(self, server, transaction):
            return False
        transaction.new_storage[self.oid] = transaction.stack[-1]
        return True

    def changed(self, server: Server, transaction: Transaction, table: Table) -> Definition | None:  # noqa: ARG002
        before = table.definition
        old = [column for column in before.columns if column.name == self.name]
        if not old or self.type_oid not in RETYPES.get(old[0].type_oid, ()):
            return None
        new = old[0]._replace(type_oid=self.type_oid)
        return before.with_columns(new if column is old[0] else column for column in before.columns)


@dataclass(frozen=True, slots=True)
class SetKey(TableStatement):
    """Sets another primary key, or drops it."""

    columns: tuple[str, ...]

    def changed(self, server: Server, transaction: Transaction, table: Table) -> Definition | None:  # noqa: ARG002
        before = table.definition
        numbers = numbers_of(before, self.columns)
        if numbers is None or not (numbers or before.key) or not is_unique(table, numbers):
            return None
        return before.with_key(numbers, before.identity, before.index)


@dataclass(frozen=True, slots=True)
class SetIdentity(TableStatement):
    """index: columns of a unique index, for ReplicaIdentity.INDEX."""

    identity: ReplicaIdentity
    index: tuple[str, ...] = ()

    def changed(self, server: Server, transaction: Transaction, table: Table) -> Definition | None:  # noqa: ARG002
        before = table.definition
        numbers = numbers_of(before, self.index)
        if numbers is None or (self.identity is ReplicaIdentity.INDEX) != bool(numbers):
            return None
        if (self.identity, numbers) == (before.identity, before.index):  # PostgreSQL does nothing
            return None
        return before.with_key(before.key, self.identity, numbers) if is_unique(table, numbers) else None


# The publication


def invalidated(server: Server, publication: Publication, oid: int) -> list[int]:
    """The OIDs whose Relation messages are sent again when a table enters or leaves the publication."""
    return [oid] if server.version >= 18 or publication.tables is None else [EVERY_TABLE]


@dataclass(frozen=True, slots=True)
class PublishTable(Statement):
    """Add a table to a publication FOR TABLE, or set its column list (from PostgreSQL 15)."""

    oid: int
    columns: tuple[str, ...] | None = None

    def change(self, server: Server, transaction: Transaction) -> bool:
        table, publication = server.tables.get(self.oid), transaction.publication or server.publication
        if table is None or publication.tables is None or (self.columns is not None and server.version < 15):
            return False
        numbers = None if self.columns is None else numbers_of(table.definition, self.columns)
        if (self.columns is not None and not numbers) or not server.lock(transaction, "publication"):
            return False
        if not server.share(transaction, self.oid):
            return False
        tables = {**publication.tables, self.oid: numbers}
        server.publish(transaction, Publication(publication.operations, tables))
        server.invalidate(transaction, invalidated(server, publication, self.oid))
        return True


@dataclass(frozen=True, slots=True)
class UnpublishTable(Statement):
    """Remove a table from a publication FOR TABLE."""

    oid: int

    def change(self, server: Server, transaction: Transaction) -> bool:
        publication = transaction.publication or server.publication
        if publication.tables is None or self.oid not in publication.tables:
            return False
        if not server.lock(transaction, "publication") or not server.share(transaction, self.oid):
            return False
        tables = {oid: columns for oid, columns in publication.tables.items() if oid != self.oid}
        server.publish(transaction, Publication(publication.operations, tables))
        server.invalidate(transaction, invalidated(server, publication, self.oid))
        return True


@dataclass(frozen=True, slots=True)
class SetOperations(Statement):
    """ALTER PUBLICATION … SET (publish = …)."""

    operations: frozenset[str]

    def change(self, server: Server, transaction: Transaction) -> bool:
        publication = transaction.publication or server.publication
        if not server.lock(transaction, "publication"):
            return False
        server.publish(transaction, Publication(self.operations, publication.tables))
        members = [EVERY_TABLE] if server.version < 18 or publication.tables is None else publication.tables
        server.invalidate(transaction, (THE_PUBLICATION, *members))
        return True
