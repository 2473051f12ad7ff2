"""WAL records, as logical decoding sees them: one class per kind.

xid is the (sub)transaction's, top its top-level transaction's. origin is the name of the replication origin.
"""

from __future__ import annotations

from typing import NamedTuple

from pgoutput_etl.protocol.messages import Delete, Insert, Message, Update
from tests.support.model.catalog import Layout, RowOperation

FIRST_LSN = 0x1000000
LSN_PER_STATEMENT = 1 << 12
LSN_PER_RECORD = 8


class Change(NamedTuple):
    """message: the operation under the layout, without an xid; None if it is not published."""

    lsn: int
    xid: int
    top: int
    origin: str | None
    layout: Layout
    operation: RowOperation
    message: Insert | Update | Delete | None


class TruncateTables(NamedTuple):
    lsn: int
    xid: int
    top: int
    origin: str | None
    layouts: tuple[Layout, ...]
    options: int


class LogicalMessage(NamedTuple):
    """xid, top: 0 if the message is not transactional and its session had no xid."""

    lsn: int
    xid: int
    top: int
    origin: str | None
    message: Message


# In an Invalidation, in place of a table's OID.
THE_PUBLICATION = 0
EVERY_TABLE = -1


class Invalidation(NamedTuple):
    """The catalog rows of these tables changed."""

    lsn: int
    xid: int
    top: int
    origin: str | None
    oids: frozenset[int]


class LockRows(NamedTuple):
    """A record with an xid and nothing to decode."""

    lsn: int
    xid: int
    top: int


class Commit(NamedTuple):
    """gid: set for COMMIT PREPARED. subxids: subtransactions that are committed with it, oldest first."""

    lsn: int
    xid: int
    subxids: tuple[int, ...]
    origin: str | None
    origin_lsn: int
    gid: str | None = None


class Abort(NamedTuple):
    """The abort of a transaction (xid equals top; gid if it was prepared) or of a subtransaction. subxids: released
    subtransactions inside it, oldest first."""

    lsn: int
    xid: int
    top: int
    subxids: tuple[int, ...]
    origin: str | None
    gid: str | None = None


class Prepare(NamedTuple):
    lsn: int
    xid: int
    subxids: tuple[int, ...]
    origin: str | None
    origin_lsn: int
    gid: str


class RunningTransactions(NamedTuple):
    """The first record after a crash: transactions before oldest_xid ended without a record."""

    lsn: int
    oldest_xid: int


Record = (
    Change | TruncateTables | LogicalMessage | Invalidation | LockRows | Commit | Abort | Prepare | RunningTransactions
)


def end_of(lsn: int) -> int:
    """The LSN after the record that begins at `lsn`."""
    return lsn + LSN_PER_RECORD


def time_at(lsn: int) -> int:
    """Microseconds since 2000-01-01 UTC."""
    return 800_000_000_000_000 + lsn * 1000
