"""The base class of statements, and the statements that begin and end transactions.

`run` changes the model server as PostgreSQL would. It returns False, and changes no row and no definition, where
PostgreSQL would refuse the statement or wait for a lock. Statements name columns and rows, so that a statement keeps
its meaning if others before it are left out; unknown columns are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from pgoutput_etl.protocol.messages import Message
from tests.support.model.server import Server
from tests.support.model.transaction import Subtransaction, Transaction
from tests.support.model.wal import LogicalMessage, Prepare, end_of


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement in an open transaction. Subclasses implement `change`."""

    def run(self, server: Server, session: int) -> bool:
        transaction = server.sessions[session]
        begin = 0 if transaction is None else len(transaction.log)
        if transaction is None or not self.change(server, transaction):
            return False
        if server.triggers is not None and len(transaction.log) > begin:
            server.triggers.run(server, transaction, self, begin)
        return True

    def change(self, server: Server, transaction: Transaction) -> bool:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class EmitMessage:
    """pg_logical_emit_message. A transactional one needs an open transaction."""

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


@dataclass(frozen=True, slots=True)
class Begin:
    """origin, origin_lsn: the replication origin of a transaction that came from another server, and its LSN there."""

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
    """The savepoint stays and starts over. depth: 1 is the outermost savepoint."""

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
    """origin: the replication origin of the session that runs the statement."""

    gid: str
    origin: str | None = None

    def run(self, server: Server, session: int) -> bool:
        if server.sessions[session] is not None or self.gid not in server.prepared:
            return False
        server.commit_prepared(self.gid, self.origin)
        return True


@dataclass(frozen=True, slots=True)
class RollBackPrepared:
    """origin: the replication origin of the session that runs the statement."""

    gid: str
    origin: str | None = None

    def run(self, server: Server, session: int) -> bool:
        if server.sessions[session] is not None or self.gid not in server.prepared:
            return False
        server.abort_prepared(self.gid, self.origin)
        return True


@dataclass(frozen=True, slots=True)
class Crash:
    """The server crashes and starts again."""

    def run(self, server: Server, session: int) -> bool:  # noqa: ARG002
        server.crash()
        return True
