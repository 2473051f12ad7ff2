"""Statements that change rows, and those that begin and end transactions.

`run` does to the model server what PostgreSQL would do, and returns False where PostgreSQL would refuse the statement or
wait for a lock; then no row and no definition has changed. Columns and rows are named, so that a statement means the same where others
before it are left out; a column that is not there is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgoutput_etl.messages import Message
from tests.model.catalog import DELETE, INSERT, TRUNCATE, UPDATE, Definition, Layout, Row, RowOperation, Value
from tests.model.server import NotPublished, RowSent, Server, Subtransaction, Transaction
from tests.model.wal import Change, LockRows, LogicalMessage, Prepare, TruncateTables, end_of


@dataclass(frozen=True, slots=True)
class Statement:
    """In an open transaction. Subclasses implement `change`."""

    def run(self, server: Server, session: int) -> bool:
        transaction = server.sessions[session]
        return transaction is not None and self.change(server, transaction)

    def change(self, server: Server, transaction: Transaction) -> bool:
        raise NotImplementedError


def log_sent(server: Server, transaction: Transaction, layout: Layout, operation: str) -> None:
    oid = layout.definition.oid
    is_decoded = operation != TRUNCATE or server.version >= 11
    if transaction.origin is not None and not server.publishes_origins:
        transaction.log.append(NotPublished(oid, "rows changed by another server, which were not published"))
    elif is_decoded and operation in layout.operations:
        transaction.log.append(RowSent(oid, layout, operation == TRUNCATE))
        altered = transaction.publication
        if altered is not None and altered.operations is not server.publication.operations:
            # A walsender that streams may still go by the operations that it knows from another transaction.
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
    """Locks the unique keys of a row if no other row has them and no other transaction has touched them."""
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


@dataclass(frozen=True, slots=True)
class UpdateRow(Statement):
    oid: int
    row: int
    values: tuple[tuple[str, Value], ...]

    def change(self, server: Server, transaction: Transaction) -> bool:
        table = server.tables.get(self.oid)
        before = None if table is None else table.rows.get(self.row)
        if table is None or before is None or not server.can_lock(transaction, ("row", self.oid, self.row)):
            return False
        definition = table.definition
        layout = server.layout(transaction, definition)
        if not layout.allows(UPDATE) or not server.share(transaction, self.oid):
            return False
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
        table = server.tables.get(self.oid)
        before = None if table is None else table.rows.get(self.row)
        if table is None or before is None or not server.can_lock(transaction, ("row", self.oid, self.row)):
            return False
        layout = server.layout(transaction, table.definition)
        if not layout.allows(DELETE) or not server.share(transaction, self.oid):
            return False
        lock_keys(server, transaction, table.definition, before)
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
        # A table without indexes, whose files this subtransaction made, is emptied in place: its catalog row stays.
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


@dataclass(frozen=True, slots=True)
class EmitMessage:
    """pg_logical_emit_message. In no transaction it is one of its own if it is transactional."""

    transactional: bool
    prefix: str
    content: bytes

    def run(self, server: Server, session: int) -> bool:
        transaction = server.sessions[session]
        if transaction is None and self.transactional:
            return False
        xid = top = 0
        if transaction is not None and self.transactional:
            xid, top = server.assign_xid(transaction)
        elif transaction is not None:
            xid, top = transaction.stack[-1].xid or 0, transaction.xid or 0
        lsn = server.next_lsn()
        message = Message(None, self.transactional, end_of(lsn), self.prefix, self.content)
        origin = None if transaction is None else transaction.origin
        server.wal.append(LogicalMessage(lsn, xid if top else 0, top, origin, message))
        return True


# Transactions


@dataclass(frozen=True, slots=True)
class Begin:
    """origin, origin_lsn: of a transaction that a replication worker applies."""

    origin: str | None = None
    origin_lsn: int = 0

    def run(self, server: Server, session: int) -> bool:
        if server.sessions[session] is not None:
            return False
        server.sessions[session] = Transaction(self.origin, self.origin_lsn)
        return True


@dataclass(frozen=True, slots=True)
class Savepoint(Statement):
    def change(self, server: Server, transaction: Transaction) -> bool:  # noqa: ARG002
        transaction.stack.append(Subtransaction(len(transaction.log), len(transaction.locks)))
        return True


@dataclass(frozen=True, slots=True)
class ReleaseSavepoint(Statement):
    """depth: 1 is the outermost savepoint."""

    depth: int = 1

    def change(self, server: Server, transaction: Transaction) -> bool:
        if not 0 < self.depth < len(transaction.stack):
            return False
        server.release_to(transaction, self.depth)
        return True


@dataclass(frozen=True, slots=True)
class RollBackToSavepoint(Statement):
    """The savepoint stays, and begins anew."""

    depth: int = 1

    def change(self, server: Server, transaction: Transaction) -> bool:
        if not 0 < self.depth < len(transaction.stack):
            return False
        server.roll_back_to(transaction, self.depth)
        transaction.stack.append(Subtransaction(len(transaction.log), len(transaction.locks)))
        return True


@dataclass(frozen=True, slots=True)
class Commit(Statement):
    def run(self, server: Server, session: int) -> bool:
        transaction, server.sessions[session] = server.sessions[session], None
        if transaction is not None:
            server.commit(transaction)
        return transaction is not None


@dataclass(frozen=True, slots=True)
class RollBack(Statement):
    def run(self, server: Server, session: int) -> bool:
        transaction, server.sessions[session] = server.sessions[session], None
        if transaction is not None:
            server.abort(transaction)
        return transaction is not None


@dataclass(frozen=True, slots=True)
class PrepareTransaction(Statement):
    gid: str

    def run(self, server: Server, session: int) -> bool:
        transaction = server.sessions[session]
        if transaction is None or self.gid in server.prepared:
            return False
        server.sessions[session] = None
        server.release_to(transaction, 1)
        xid, _ = server.assign_xid(transaction)
        server.prepared[self.gid] = transaction
        origin, origin_lsn = transaction.origin, transaction.origin_lsn
        subxids = server.subxids(transaction)
        server.wal.append(Prepare(server.next_lsn(), xid, subxids, origin, origin_lsn, self.gid))
        return True


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """origin: of the session that runs it."""

    gid: str
    origin: str | None = None

    def run(self, server: Server, session: int) -> bool:
        if server.sessions[session] is not None or self.gid not in server.prepared:
            return False
        server.commit_prepared(self.gid, self.origin)
        return True


@dataclass(frozen=True, slots=True)
class RollBackPrepared:
    """origin: of the session that runs it."""

    gid: str
    origin: str | None = None

    def run(self, server: Server, session: int) -> bool:
        if server.sessions[session] is not None or self.gid not in server.prepared:
            return False
        server.abort_prepared(self.gid, self.origin)
        return True


@dataclass(frozen=True, slots=True)
class Crash:
    """Of the server, which starts again."""

    def run(self, server: Server, session: int) -> bool:  # noqa: ARG002
        server.crash()
        return True
