"""The model server: catalog and rows, sessions, locks. It writes the WAL and a log of committed changes.

Statements change the single working state at once, and their transaction keeps an undo log. Locks keep transactions
apart as PostgreSQL's do: nobody alters a table that another open transaction has used, and nobody uses a table, row,
key or name that another open transaction has changed. A statement that would wait for a lock is refused.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING

from tests.support.model.catalog import Definition, Layout, Name, Publication, Row
from tests.support.model.transaction import (
    DefinitionChange,
    Entry,
    NotPublished,
    PublicationChange,
    RowChange,
    Subtransaction,
    Transaction,
)
from tests.support.model.wal import (
    FIRST_LSN,
    LSN_PER_RECORD,
    LSN_PER_STATEMENT,
    Abort,
    Commit,
    Invalidation,
    Record,
    RunningTransactions,
)

if TYPE_CHECKING:
    from tests.support.model.catalog_triggers import CatalogTriggers

XIDS = 1 << 32
FIRST_NORMAL_XID = 3
OVERTAKEN = "the publication changed while another transaction used the table"


class Table:
    """The working state. rows: by a number that stays a row's own."""

    __slots__ = ("definition", "rows")

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.rows: dict[int, Row] = {}


class Server:
    """version: PostgreSQL's major version. sessions: the open transaction of each, or None."""

    def __init__(
        self,
        version: int,
        publication: Publication,
        first_xid: int,
        publishes_origins: bool = True,
        sessions: int = 3,
    ) -> None:
        self.version = version
        self.publishes_origins = publishes_origins
        self.publication = publication
        self.tables: dict[int, Table] = {}
        self._dropped: dict[int, Table] = {}
        self.names: dict[Name, int] = {}
        self.sessions: list[Transaction | None] = [None] * sessions
        self.prepared: dict[str, Transaction] = {}
        self.wal: list[Record] = []
        self.commits: list[tuple[int, list[Entry]]] = []
        self.first_xid = self.next_xid = first_xid
        self.statement = 0
        self.triggers: CatalogTriggers | None = None
        self._next_lsn = FIRST_LSN
        self._layouts: dict[tuple[Definition, Publication], Layout] = {}
        self._exclusive: dict[Hashable, Transaction] = {}
        self._shared: dict[int, list[Transaction]] = {}

    def begin_statement(self, number: int) -> None:
        """LSNs and row numbers come from the statement's number: leaving out others doesn't change them."""
        self.statement = number
        self._next_lsn = FIRST_LSN + number * LSN_PER_STATEMENT

    def next_lsn(self) -> int:
        lsn = self._next_lsn
        self._next_lsn = lsn + LSN_PER_RECORD
        return lsn

    # The view of a statement

    def layout(self, transaction: Transaction, definition: Definition) -> Layout:
        publication = transaction.publication or self.publication
        layout = self._layouts.get((definition, publication))
        if layout is None:
            layout = self._layouts[definition, publication] = Layout(definition, publication)
        return layout

    # Locks

    def share(self, transaction: Transaction, oid: int) -> bool:
        """Lock a table against being altered."""
        if self._exclusive.get(oid, transaction) is not transaction:
            return False
        holders = self._shared.setdefault(oid, [])
        if transaction not in holders:
            holders.append(transaction)
            transaction.locks.append(("share", oid))
        return True

    def lock(self, transaction: Transaction, thing: Hashable) -> bool:
        """Lock a row, a key, a name; or, by its OID, a table against all others."""
        owner = self._exclusive.get(thing)
        if owner is not None:
            return owner is transaction
        if isinstance(thing, int) and any(holder is not transaction for holder in self._shared.get(thing, ())):
            return False
        self._exclusive[thing] = transaction
        transaction.locks.append(("lock", thing))
        return True

    def note_use(self, transaction: Transaction, oid: int) -> None:
        """A walsender may send rows of this table under the wrong state of a publication that is being altered."""
        alters = self._exclusive.get("publication", transaction)
        if alters is not transaction:
            alters.overtaken.add(oid)

    def can_lock(self, transaction: Transaction, thing: Hashable) -> bool:
        return self._exclusive.get(thing, transaction) is transaction

    def unlock(self, transaction: Transaction, begin: int) -> None:
        for mode, thing in transaction.locks[begin:]:
            if mode == "lock":
                del self._exclusive[thing]
            elif isinstance(thing, int):
                self._shared[thing].remove(transaction)
        del transaction.locks[begin:]

    # Xids

    def assign_xid(self, transaction: Transaction) -> tuple[int, int]:
        """The xid of the innermost subtransaction, and that of the transaction. Parents get theirs first."""
        for level in transaction.stack:
            if level.xid is None:
                level.xid = self.next_xid
                self.next_xid = (self.next_xid + 1) % XIDS or FIRST_NORMAL_XID
        xid, top = transaction.stack[-1].xid, transaction.stack[0].xid
        assert xid is not None
        assert top is not None
        return xid, top

    def age(self, xid: int) -> int:
        """The number of xids that were assigned before."""
        return (xid - self.first_xid) % XIDS

    # Changes

    def put_row(self, transaction: Transaction, oid: int, row: int, before: Row | None, after: Row | None) -> None:
        self._set_row(oid, row, after)
        transaction.log.append(RowChange(oid, row, before, after))

    def _set_row(self, oid: int, row: int, values: Row | None) -> None:
        if values is None:
            del self.tables[oid].rows[row]
        else:
            self.tables[oid].rows[row] = values

    def define(self, transaction: Transaction, before: Definition | None, after: Definition | None) -> None:
        named = before or after
        assert named is not None
        oid = named.oid
        transaction.log.append(DefinitionChange(oid, before, after))
        self._set_definition(oid, before, after)

    def _set_definition(self, oid: int, before: Definition | None, after: Definition | None) -> None:
        if before is not None:
            del self.names[before.namespace, before.name]
        if after is None:
            self._dropped[oid] = self.tables.pop(oid)
            return
        self.names[after.namespace, after.name] = oid
        if before is None:
            self.tables[oid] = self._dropped.pop(oid) if oid in self._dropped else Table(after)
        self.tables[oid].definition = after

    def publish(self, transaction: Transaction, publication: Publication) -> None:
        transaction.log.append(PublicationChange(transaction.publication, publication))
        transaction.publication = publication

    def invalidate(self, transaction: Transaction, oids: Iterable[int]) -> None:
        xid, top = self.assign_xid(transaction)
        self.wal.append(Invalidation(self.next_lsn(), xid, top, transaction.origin, frozenset(oids)))

    # Ends

    def roll_back_to(self, transaction: Transaction, depth: int) -> None:
        """End the open subtransactions from `depth` on; each writes its own record, the innermost first."""
        top = transaction.stack[0].xid
        while len(transaction.stack) > depth:
            level = transaction.stack.pop()
            self._undo(transaction, level)
            if level.xid is not None and top is not None:
                subxids = self._in_order(level.children)
                self.wal.append(Abort(self.next_lsn(), level.xid, top, subxids, transaction.origin))

    def _undo(self, transaction: Transaction, level: Subtransaction) -> None:
        for entry in reversed(transaction.log[level.entries :]):
            match entry:
                case RowChange(oid, row, before, _):
                    self._set_row(oid, row, before)
                case DefinitionChange(oid, before, after):
                    self._set_definition(oid, after, before)
                case PublicationChange(publication, _):
                    transaction.publication = publication
                case _:
                    pass
        del transaction.log[level.entries :]
        self.unlock(transaction, level.locks)

    def release_to(self, transaction: Transaction, depth: int) -> None:
        while len(transaction.stack) > depth:
            level, parent = transaction.stack.pop(), transaction.stack[-1]
            if level.xid is not None:
                parent.children += [level.xid, *level.children]
            for oid, owner in transaction.new_storage.items():
                if owner is level:
                    transaction.new_storage[oid] = parent

    def _in_order(self, xids: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(xids, key=self.age))

    def subxids(self, transaction: Transaction) -> tuple[int, ...]:
        return self._in_order(transaction.stack[0].children)

    def commit(self, transaction: Transaction, gid: str | None = None) -> None:
        self.release_to(transaction, 1)
        if transaction.publication is not None:
            self._note_overtaken(transaction)
        transaction.log += [NotPublished(oid, OVERTAKEN) for oid in transaction.overtaken]
        if transaction.xid is not None:
            lsn = self.next_lsn()
            origin, origin_lsn = transaction.origin, transaction.origin_lsn
            self.wal.append(Commit(lsn, transaction.xid, self.subxids(transaction), origin, origin_lsn, gid))
            self.commits.append((lsn, transaction.log))
        self.publication = transaction.publication or self.publication
        self.unlock(transaction, 0)

    def _note_overtaken(self, transaction: Transaction) -> None:
        """Rows of open transactions may be sent under the new publication."""
        used = [(oid, holder) for oid, holders in self._shared.items() for holder in holders]
        used += [(thing, holder) for thing, holder in self._exclusive.items() if isinstance(thing, int)]
        for oid, holder in used:
            if holder is not transaction:
                holder.overtaken.add(oid)
                transaction.overtaken.add(oid)

    def abort(self, transaction: Transaction, gid: str | None = None) -> None:
        self.roll_back_to(transaction, 1)
        self._undo(transaction, transaction.stack[0])
        if (xid := transaction.xid) is not None:
            self.wal.append(Abort(self.next_lsn(), xid, xid, self.subxids(transaction), transaction.origin, gid))

    def commit_prepared(self, gid: str, origin: str | None) -> None:
        transaction = self.prepared.pop(gid)
        transaction.origin, transaction.origin_lsn = origin, 0
        self.commit(transaction, gid)

    def abort_prepared(self, gid: str, origin: str | None) -> None:
        transaction = self.prepared.pop(gid)
        transaction.origin = origin
        self.abort(transaction, gid)

    def crash(self) -> None:
        """Open transactions end without a record; prepared ones stay."""
        for number, transaction in enumerate(self.sessions):
            if transaction is not None:
                self._undo(transaction, transaction.stack[0])
                self.sessions[number] = None
        running = [t.xid for t in self.prepared.values() if t.xid is not None]
        oldest = min(running, key=self.age, default=self.next_xid)
        self.wal.append(RunningTransactions(self.next_lsn(), oldest))

    def open_transactions(self) -> Iterator[Transaction]:
        yield from (transaction for transaction in self.sessions if transaction is not None)
