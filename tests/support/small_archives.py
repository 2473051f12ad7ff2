"""Small archives for tests: messages, files of messages, and the tables that result from them.

An xid identifies a transaction, an OID a table. Columns are text by default.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pgoutput_etl.protocol.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    Message,
    OldTupleKind,
    PgoutputMessage,
    Prepare,
    Relation,
    RelationColumn,
    ReplicaIdentity,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TupleData,
    Type,
    Update,
)
from pgoutput_etl.replay.mirror import Replay
from tests.support import encoder

TEXT = 25
T = 16384  # the OID of the table that most tests use
Change = Relation | Type | Insert | Update | Delete | Truncate | Message
Messages = list[PgoutputMessage]
Rows = list[tuple[Any, ...]]


class Toast:
    """The class of TOAST: an unchanged value, which is not sent."""


TOAST = Toast()
Value = str | None | Toast


def tuple_data(*values: Value) -> TupleData:
    kinds = b"".join(b"n" if v is None else b"u" if isinstance(v, Toast) else b"t" for v in values)
    return TupleData(kinds, tuple(v.encode() if isinstance(v, str) else None for v in values))


def table(
    *columns: str | tuple[str, int],
    oid: int = T,
    name: str = "t",
    key: Iterable[str] = ("id",),
    identity: ReplicaIdentity = ReplicaIdentity.DEFAULT,
    xid: int | None = None,
) -> Relation:
    """A column is a name, or a name and its type's OID."""
    typed = [(c, TEXT) if isinstance(c, str) else c for c in columns or ("id", "v")]
    full = identity is ReplicaIdentity.FULL
    described = tuple(RelationColumn(full or name in key, name, type_oid, -1) for name, type_oid in typed)
    return Relation(xid, oid, "public", name, identity, described)


def insert(*values: Value, oid: int = T, xid: int | None = None) -> Insert:
    return Insert(xid, oid, tuple_data(*values))


def update(*values: Value, old_key: Sequence[Value] = (), old: Sequence[Value] = (), oid: int = T) -> Update:
    """old_key: a key-only old tuple, with NULL in columns that are not sent; old: a full one."""
    if old_key:
        return Update(None, oid, OldTupleKind.KEY, tuple_data(*old_key), tuple_data(*values))
    if old:
        return Update(None, oid, OldTupleKind.OLD, tuple_data(*old), tuple_data(*values))
    return Update(None, oid, None, None, tuple_data(*values))


def delete(*key: Value, oid: int = T) -> Delete:
    """key: as wide as the table, with NULL in columns that are not sent."""
    return Delete(None, oid, OldTupleKind.KEY, tuple_data(*key))


def delete_full(*values: Value, oid: int = T) -> Delete:
    return Delete(None, oid, OldTupleKind.OLD, tuple_data(*values))


def truncate(*oids: int, options: int = 0) -> Truncate:
    return Truncate(None, options, oids or (T,))


def transaction(xid: int, lsn: int, *changes: Change) -> Messages:
    return [Begin(lsn, 0, xid), *changes, Commit(lsn, lsn + 8, 0)]


def segment(xid: int, *changes: Change, first: bool = False) -> Messages:
    """Changes get the transaction's xid unless they have a subtransaction's."""
    inside = [change if change.xid is not None else replace(change, xid=xid) for change in changes]
    return [StreamStart(xid, first), *inside, StreamStop()]


def in_subtransaction(subxid: int, change: Change) -> Change:
    return replace(change, xid=subxid)


def stream_commit(xid: int, lsn: int) -> Messages:
    return [StreamCommit(xid, lsn, lsn + 8, 0)]


def stream_abort(xid: int, subxid: int | None = None) -> Messages:
    return [StreamAbort(xid, xid if subxid is None else subxid, None, None)]


def stream_prepare(xid: int, lsn: int = 1) -> Messages:
    return [StreamPrepare(lsn, lsn + 8, 0, xid, f"gid-{xid}")]


def prepared(xid: int, *changes: Change, lsn: int = 1) -> Messages:
    gid = f"gid-{xid}"
    return [BeginPrepare(lsn, lsn + 8, 0, xid, gid), *changes, Prepare(lsn, lsn + 8, 0, xid, gid)]


def commit_prepared(xid: int, lsn: int) -> Messages:
    return [CommitPrepared(lsn, lsn + 8, 0, xid, f"gid-{xid}")]


def rollback_prepared(xid: int) -> Messages:
    return [RollbackPrepared(1, 9, 0, 0, xid, f"gid-{xid}")]


def copydata(messages: Iterable[PgoutputMessage], first_lsn: int = 0x1000000) -> bytes:
    """A landed file, with an LSN per message."""
    return encoder.copydata(encoder.Row(first_lsn + i, 0, encoder.encode(m)) for i, m in enumerate(messages))


def replayed(*files: Iterable[PgoutputMessage]) -> Replay:
    replay = Replay()
    for number, messages in enumerate(files):
        replay.add_file(f"{number:03}.copydata", copydata(messages))
    return replay


def tables(replay: Replay, **keys: tuple[str, ...]) -> dict[str, Rows]:
    """Sorted rows by the table's last name."""
    rows: dict[str, Rows] = {}
    replayed_tables = replay.tables({f"public.{name}": key for name, key in keys.items()})
    for (_, name), oid in replay.name_holders().items():
        columns = [column.name for column in replayed_tables[oid].shape.columns]
        rows[name] = sorted((tuple(row[c] for c in columns) for row in replayed_tables[oid].rows), key=repr)
    return rows


def rows_of(*files: Iterable[PgoutputMessage]) -> Rows:
    """The rows of table `t` after these files."""
    return tables(replayed(*files)).get("t", [])
