"""Statements that change or lock rows."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.model.catalog import DELETE, INSERT, TRUNCATE, UPDATE, Definition, Layout, Row, RowOperation, Value
from tests.support.model.server import Server
from tests.support.model.statements import Statement
from tests.support.model.transaction import NotPublished, RowSent, Transaction
from tests.support.model.wal import Change, LockRows, TruncateTables


def log_sent(server: Server, transaction: Transaction, layout: Layout, operation: str) -> None:
    oid = layout.definition.oid
    server.note_use(transaction, oid)
    is_decoded = operation != TRUNCATE or server.version >= 11
    if transaction.origin is not None and not server.publishes_origins:
        transaction.log.append(NotPublished(oid, "rows changed by another server, which were not published"))
    elif is_decoded and operation in layout.operations:
        transaction.log.append(RowSent(oid, layout, operation == TRUNCATE))
        altered = transaction.publication
        if altered is not None and altered.operations is not server.publication.operations:
            # A streaming walsender may still use the operations that it knows from another transaction.
            transaction.log.append(NotPublished(oid, "its transaction altered the published operations"))
        if layout.identity_places and not layout.updatable:
            transaction.log.append(NotPublished(oid, "a part of the replica identity is not published"))
    else:
        transaction.log.append(NotPublished(oid, f"rows changed by operation {operation}, which was not published"))


def write_change(server: Server, transaction: Transaction, layout: Layout, row: int, operation: RowOperation) -> None:
    xid, top = server.assign_xid(transaction)
    server.put_row(transaction, layout.definition.oid, row, operation.before, operation.after)
    message = layout.message(operation)
    server.wal.append(Change(server.next_lsn(), xid, top, transaction.origin, layout, operation, message))


def key_is_free(
    server: Server, transaction: Transaction, definition: Definition, row: Row, but_row: int | None = None
) -> bool:
    """Lock the unique keys of a row if no other row has them and no other transaction has changed them."""
    rows = server.tables[definition.oid].rows
    for numbers in definition.unique_keys():
        values = tuple(row[number - 1] for number in numbers)
        if None in values:
            return False
        if not server.can_lock(transaction, ("key", definition.oid, numbers, values)):
            return False
        for other, theirs in rows.items():
            if other != but_row and all(theirs[n - 1] == value for n, value in zip(numbers, values, strict=True)):
                return False
    lock_keys(server, transaction, definition, row)
    return True


def lock_keys(server: Server, transaction: Transaction, definition: Definition, row: Row) -> None:
    for numbers in definition.unique_keys():
        server.lock(transaction, ("key", definition.oid, numbers, tuple(row[number - 1] for number in numbers)))


@dataclass(frozen=True, slots=True)
class InsertRow(Statement):
    """values: (column, value); NULL in the others. The row's number is the statement's."""

    oid: int
    values: tuple[tuple[str, Value], ...]

    def change(self, server: Server, transaction: Transaction) -> bool:
        table = server.tables.get(self.oid)
        if table is None or not server.share(transaction, self.oid):
            return False
        definition = table.definition
        values: list[Value] = [None] * (definition.next_number - 1)
        for name, value in self.values:
            if name in definition.places:
                values[definition.places[name]] = value
        row = tuple(values)
        if not key_is_free(server, transaction, definition, row):
            return False
        layout = server.layout(transaction, definition)
        server.lock(transaction, ("row", self.oid, server.statement))
        write_change(server, transaction, layout, server.statement, RowOperation(None, row))
        log_sent(server, transaction, layout, INSERT)
        return True


def row_to_change(
    server: Server, transaction: Transaction, oid: int, row: int, operation: str
) -> tuple[Row, Layout] | None:
    """The row and its table's layout; None if the row doesn't exist, is locked, or may not be changed."""
    table = server.tables.get(oid)
    before = None if table is None else table.rows.get(row)
    if table is None or before is None or not server.can_lock(transaction, ("row", oid, row)):
        return None
    layout = server.layout(transaction, table.definition)
    if not layout.allows(operation) or not server.share(transaction, oid):
        return None
    return before, layout


@dataclass(frozen=True, slots=True)
class UpdateRow(Statement):
    oid: int
    row: int
    values: tuple[tuple[str, Value], ...]

    def change(self, server: Server, transaction: Transaction) -> bool:
        row_and_layout = row_to_change(server, transaction, self.oid, self.row, UPDATE)
        if row_and_layout is None:
            return False
        before, layout = row_and_layout
        definition = layout.definition
        values = list(before)
        assigned = set()
        for name, value in self.values:
            if name in definition.places:
                assigned.add(definition.places[name])
                values[definition.places[name]] = value
        after = tuple(values)
        if not key_is_free(server, transaction, definition, after, self.row):
            return False
        lock_keys(server, transaction, definition, before)
        server.lock(transaction, ("row", self.oid, self.row))
        write_change(server, transaction, layout, self.row, RowOperation(before, after, frozenset(assigned)))
        log_sent(server, transaction, layout, UPDATE)
        return True


@dataclass(frozen=True, slots=True)
class DeleteRow(Statement):
    oid: int
    row: int

    def change(self, server: Server, transaction: Transaction) -> bool:
        row_and_layout = row_to_change(server, transaction, self.oid, self.row, DELETE)
        if row_and_layout is None:
            return False
        before, layout = row_and_layout
        lock_keys(server, transaction, layout.definition, before)
        server.lock(transaction, ("row", self.oid, self.row))
        write_change(server, transaction, layout, self.row, RowOperation(before, None))
        log_sent(server, transaction, layout, DELETE)
        return True


@dataclass(frozen=True, slots=True)
class Truncate(Statement):
    """options: 1 CASCADE, 2 RESTART IDENTITY."""

    oids: tuple[int, ...]
    options: int = 0

    def change(self, server: Server, transaction: Transaction) -> bool:
        if not all(oid in server.tables and server.lock(transaction, oid) for oid in self.oids):
            return False
        # A table without indexes whose files this subtransaction created is emptied in place: its catalog row stays.
        level, new = transaction.stack[-1], transaction.new_storage
        changed = [oid for oid in self.oids if new.get(oid) is not level or server.tables[oid].definition.unique_keys()]
        if changed:
            server.invalidate(transaction, changed)
        new.update(dict.fromkeys(self.oids, level))
        layouts = []
        for oid in self.oids:
            table = server.tables[oid]
            had_rows = bool(table.rows)
            for row, values in list(table.rows.items()):
                server.put_row(transaction, oid, row, values, None)
            layout = server.layout(transaction, table.definition)
            layouts.append(layout)
            if had_rows or (TRUNCATE in layout.operations and server.version >= 11):
                log_sent(server, transaction, layout, TRUNCATE)
        if server.version >= 11:
            xid, top = server.assign_xid(transaction)
            record = TruncateTables(server.next_lsn(), xid, top, transaction.origin, tuple(layouts), self.options)
            server.wal.append(record)
        return True


@dataclass(frozen=True, slots=True)
class LockRow(Statement):
    """SELECT FOR UPDATE."""

    oid: int
    row: int

    def change(self, server: Server, transaction: Transaction) -> bool:
        table = server.tables.get(self.oid)
        if table is None or self.row not in table.rows or not server.share(transaction, self.oid):
            return False
        if not server.lock(transaction, ("row", self.oid, self.row)):
            return False
        server.wal.append(LockRows(server.next_lsn(), *server.assign_xid(transaction)))
        return True
