"""The statements of the model server on a real one, and what a real walsender sends meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from types import TracebackType
from typing import Any

import psycopg
from psycopg import sql

from pgoutput_etl.decode import decode
from pgoutput_etl.messages import (
    BeginPrepare,
    Prepare,
    StreamAbort,
    StreamPrepare,
    Insert,
    Message,
    PgoutputMessage,
    Relation,
    ReplicaIdentity,
    StreamCommit,
    StreamStart,
    StreamStop,
    Truncate,
    TupleData,
    Type,
    Update,
    Delete,
)
from tests.e2e.walsender_client import WalsenderClient
from tests.model import ddl
from tests.model import statements as do
from tests.model.catalog import INT4, INT4_ARRAY, INT8, MOOD, NUMERIC, TEXT, TIMESTAMPTZ, Definition, Row, Value
from tests.model.server import Server as ModelServer
from tests.model.workload import RunsOnServer
from tests.postgres import Server

TYPES = {
    INT4: "int4",
    INT8: "int8",
    TEXT: "text",
    NUMERIC: "numeric",
    TIMESTAMPTZ: "timestamptz",
    INT4_ARRAY: "int4[]",
    MOOD: "public.mood",
}
_MOODS = ", ".join(f"'{mood}'" for mood in ("happy", "sad", *(f"mood {n}" for n in range(1, 15))))
_SETUP = f"create schema other; create type public.mood as enum ({_MOODS}); create publication p"
_PADDING = "x" * 2200  # what makes a value long enough for TOAST, and not too long for an index
_OPERATIONS = {"I": "insert", "U": "update", "D": "delete", "T": "truncate"}
_numbers = count()


class RealTwin:
    """A database in which the statements of a history run as they do on the model server.

    A walsender sends what there is to send after each, before the next one runs.
    """

    def __init__(self, server: Server, options: Mapping[str, str], *, for_tables: bool, two_phase: bool) -> None:
        self.server, self.options = server, {"publication_names": '"p"', **options}
        self.name = f"twin{next(_numbers)}"
        self._run_on_postgres(f"create database {self.name}")
        self._connections = [self._connect() for _ in range(4)]
        self._other = self._connections.pop()
        self._other.execute((_SETUP + ("" if for_tables else " for all tables")).encode())
        self._other.execute(
            "select pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)", (self.name, two_phase)
        )
        self.lsns = ["0/0"]  # where the WAL ended before each statement
        self._in_stream = False
        self.messages: list[PgoutputMessage] = []
        self.client = self._client()

    def __enter__(self) -> RealTwin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.__exit__(None, None, None)
        for connection in self._connections:
            connection.close()
        for (gid,) in self._other.execute("select gid from pg_prepared_xacts").fetchall():
            self._other.execute(sql.SQL("rollback prepared {}").format(sql.Literal(gid)))
        self._other.close()
        with self.server.connect() as connection:
            for _ in range(200):
                try:
                    connection.execute("select pg_drop_replication_slot(%s)", (self.name,))
                    break
                except psycopg.errors.ObjectInUse:
                    time.sleep(0.02)
        self._run_on_postgres(f"drop database {self.name} with (force)")

    def _run_on_postgres(self, statement: str) -> None:
        with self.server.connect() as connection:
            connection.execute(statement.encode())

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        conninfo = psycopg.conninfo.make_conninfo(self.server.conninfo, dbname=self.name)
        connection = psycopg.connect(conninfo, autocommit=True)
        connection.execute("set lock_timeout = '2s'")
        return connection

    def _client(self, lsn: str = "0/0") -> WalsenderClient:
        return WalsenderClient(self.server, self.name, self.options, lsn, self.name)

    def run(self, statement: RunsOnServer, session: int, model: ModelServer) -> None:
        """`model`: as it is before the statement."""
        for text in sql_of(statement, model, session, self.name):
            try:
                self._connections[session].execute(text.encode())
            except psycopg.Error as error:
                raise AssertionError(f"session {session}: {text}: {error}") from error
        self.receive()

    def receive(self) -> None:
        """All that there is to receive by now."""
        # A commit with an xid and a record: it writes all WAL before it to disk, where the walsender reads it.
        self._other.execute("select txid_current(), pg_create_restore_point('here')")
        row = self._other.execute(
            "select pg_current_wal_flush_lsn()::text, pg_current_wal_flush_lsn() - '0/0'"
        ).fetchone()
        assert row is not None
        self.lsns.append(row[0])
        until = time.monotonic() + 30
        while self.client.received_lsn < int(row[1]):
            assert time.monotonic() < until, "the walsender doesn't catch up"
            for frame in self.client.frames(0.001):
                self._take(frame)

    def _take(self, frame: bytes) -> None:
        if frame[5:6] != b"w":
            return
        message = decode(frame[30:], self._in_stream)
        self._in_stream = isinstance(message, StreamStart) or (self._in_stream and not isinstance(message, StreamStop))
        self.messages.append(message)

    def reconnect(self, lsn: str, options: Mapping[str, str] | None = None) -> None:
        self.client.__exit__(None, None, None)
        self.options.update(options or {})
        self._in_stream = False
        for _ in range(200):
            try:
                self.client = self._client(lsn)
            except Exception as error:  # noqa: BLE001 the walsender before is still there
                if "is active" not in str(error):
                    raise
                time.sleep(0.02)
            else:
                break
        self.receive()


def _name(definition: Definition) -> str:
    return f'{definition.namespace}."{definition.name}"'


def _literal(value: Value) -> str:
    if value is None:
        return "null"
    text = value.decode() + (_PADDING if value.startswith(b"~") else "")
    return sql.Literal(text).as_string()


def _row_is(definition: Definition, row: Row) -> str:
    """One row that is equal: of several, any."""
    same = " and ".join(f'"{c.name}" is not distinct from {_literal(row[c.number - 1])}' for c in definition.columns)
    return f"ctid = (select ctid from {_name(definition)} where {same} limit 1 for update skip locked)"


def sql_of(statement: RunsOnServer, model: ModelServer, session: int, prefix: str) -> Iterator[str]:
    """The statement in SQL; several where the model has one. prefix: of gids, which are the whole cluster's."""
    match statement:
        case do.InsertRow(oid, values):
            definition = model.tables[oid].definition
            known = [(name, value) for name, value in values if name in definition.places]
            names = ", ".join(f'"{name}"' for name, _ in known)
            yield f"insert into {_name(definition)} ({names}) values ({', '.join(_literal(v) for _, v in known)})"
        case do.UpdateRow(oid, row, values):
            definition = model.tables[oid].definition
            known = [(name, value) for name, value in values if name in definition.places]
            settings = [f'"{name}" = {_literal(value)}' for name, value in known]
            if not settings:
                settings = ['"{0}" = "{0}"'.format(definition.columns[0].name)]  # noqa: UP032
            which = _row_is(definition, model.tables[oid].rows[row])
            yield f"update {_name(definition)} set {', '.join(settings)} where {which}"
        case do.DeleteRow(oid, row):
            definition = model.tables[oid].definition
            yield f"delete from {_name(definition)} where {_row_is(definition, model.tables[oid].rows[row])}"
        case do.LockRow(oid, row):
            definition = model.tables[oid].definition
            which = _row_is(definition, model.tables[oid].rows[row])
            yield f"select from {_name(definition)} where {which} for update"
        case do.Truncate(oids, options):
            names = ", ".join(_name(model.tables[oid].definition) for oid in oids)
            identity = " restart identity" if options & 2 else ""
            yield f"truncate {names}{identity}{' cascade' if options & 1 else ''}"
        case do.EmitMessage(transactional, name, content):
            yield f"select pg_logical_emit_message({transactional}, '{name}', '{content.decode()}')"
        case _:
            yield from _sql_of_transaction(statement, model, session, prefix)


def _sql_of_transaction(statement: RunsOnServer, model: ModelServer, session: int, prefix: str) -> Iterator[str]:
    transaction = model.sessions[session]
    depth = 0 if transaction is None else len(transaction.stack)
    match statement:
        case do.Begin(None):
            yield "begin"
        case do.Savepoint():
            yield f"savepoint s{depth}"
        case do.ReleaseSavepoint(at):
            yield f"release savepoint s{at}"
        case do.RollBackToSavepoint(at):
            yield f"rollback to savepoint s{at}"
        case do.Commit():
            yield "commit"
        case do.RollBack():
            yield "rollback"
        case do.PrepareTransaction(gid):
            yield f"prepare transaction '{prefix} {gid}'"
        case do.CommitPrepared(gid):
            yield f"commit prepared '{prefix} {gid}'"
        case do.RollBackPrepared(gid):
            yield f"rollback prepared '{prefix} {gid}'"
        case ddl.CreateTable(oid, namespace, name, columns, key):
            described = ", ".join(_column(*column) for column in columns)
            constraint = "" if not key else f", constraint key{oid} primary key ({_listed(key)})"
            yield f'create table {namespace}."{name}" ({described}{constraint})'
        case ddl.PublishTable() | ddl.UnpublishTable() | ddl.SetOperations():
            yield from _sql_of_publication(statement, model, session)
        case _:
            yield from _sql_of_ddl(statement, model)


def _column(name: str, type_oid: int) -> str:
    return f'"{name}" {TYPES[type_oid]}{" storage external" if type_oid == TEXT else ""}'


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _sql_of_ddl(statement: RunsOnServer, model: ModelServer) -> Iterator[str]:
    assert isinstance(statement, ddl.TableStatement | ddl.DropTable | ddl.RenameTable)
    before = model.tables[statement.oid].definition
    table = f"alter table {_name(before)}"
    match statement:
        case ddl.DropTable():
            yield f"drop table {_name(before)}"
        case ddl.RenameTable(_, namespace, name):
            if namespace != before.namespace and name != before.name:  # both names may be another table's
                yield f'{table} rename to "on its way"'
                table = f'alter table {before.namespace}."on its way"'
            if namespace != before.namespace:
                yield f"{table} set schema {namespace}"
                table = table.replace(f"{before.namespace}.", f"{namespace}.")
            if name != before.name:
                yield f'{table} rename to "{name}"'
        case ddl.AddColumn(_, name, type_oid, default):
            yield f"{table} add {_column(name, type_oid)}{'' if default is None else f' default {_literal(default)}'}"
            if default is not None:
                yield f'{table} alter "{name}" drop default'
        case ddl.DropColumn(_, name):
            yield f'{table} drop "{name}"'
        case ddl.RenameColumn(_, name, new_name):
            yield f'{table} rename "{name}" to "{new_name}"'
        case ddl.RetypeColumn(_, name, type_oid):
            storage = f', alter "{name}" set storage external' if type_oid == TEXT else ""
            yield f'{table} alter "{name}" type {TYPES[type_oid]} using "{name}"::{TYPES[type_oid]}{storage}'
        case ddl.SetKey(oid, columns):
            if before.key:
                yield f"{table} drop constraint key{oid}"
                yield from _nullable(before, table, before.key, before.index)
            if columns:
                yield f"{table} add constraint key{oid} primary key ({_listed(columns)})"
        case ddl.SetIdentity(oid, identity, index):
            name = f"{before.namespace}.index{oid}"
            if before.index:
                yield f"drop index {name}"
                yield from _nullable(before, table, before.index, before.key)
            for column in index:
                yield f'{table} alter "{column}" set not null'
            if index:
                yield f"create unique index index{oid} on {_name(before)} ({_listed(index)})"
            yield f"{table} replica identity {f'using index index{oid}' if index else identity.name.lower()}"
        case _:
            raise TypeError(type(statement).__name__)


def _nullable(before: Definition, table: str, numbers: Sequence[int], others: Sequence[int]) -> Iterator[str]:
    """Columns that no key needs any more."""
    for column in before.columns:
        if column.number in numbers and column.number not in others:
            yield f'{table} alter "{column.name}" drop not null'


def _sql_of_publication(
    statement: ddl.PublishTable | ddl.UnpublishTable | ddl.SetOperations, model: ModelServer, session: int
) -> Iterator[str]:
    transaction = model.sessions[session]
    publication = (None if transaction is None else transaction.publication) or model.publication
    match statement:
        case ddl.PublishTable(oid, columns):
            name = _name(model.tables[oid].definition)
            if publication.tables is not None and oid in publication.tables:
                yield f"alter publication p drop table {name}"
            yield f"alter publication p add table {name}{'' if columns is None else f' ({_listed(columns)})'}"
        case ddl.UnpublishTable(oid):
            yield f"alter publication p drop table {_name(model.tables[oid].definition)}"
        case ddl.SetOperations(operations):
            words = ", ".join(_OPERATIONS[operation] for operation in sorted(operations))
            yield f"alter publication p set (publish = '{words}')"


# The messages of both, so that they can be compared


def comparable(messages: Sequence[PgoutputMessage]) -> list[PgoutputMessage]:
    """Without segments that are empty, and with xids, OIDs and LSNs in the order in which they appear."""
    numbers = _Numbers()
    return [numbers.renumbered(message) for message in _without_empty_segments(messages)]


def _without_empty_segments(messages: Sequence[PgoutputMessage]) -> list[PgoutputMessage]:
    """Without transactions that have nothing in them, either.

    One change of the catalog is several WAL records, any of which may be a segment with nothing in it.
    """
    kept: list[PgoutputMessage] = []
    streamed: set[int] = set()  # transactions of which a segment was kept
    for message in messages:
        last = kept[-1] if kept else None
        match message:
            case StreamStart(xid):
                kept.append(StreamStart(xid, xid not in streamed))
                continue
            case StreamStop() if isinstance(last, StreamStart):
                kept.pop()
                continue
            case Prepare() if isinstance(last, BeginPrepare):
                kept.pop()
                continue
            case StreamCommit(xid=xid) | StreamPrepare(xid=xid) | StreamAbort(xid=xid) if xid not in streamed:
                continue
            case _:
                pass
        if isinstance(last, StreamStart):
            streamed.add(last.xid)
        kept.append(message)
    return kept


class _Numbers:
    def __init__(self) -> None:
        self._seen: dict[str, dict[int, int]] = {}

    def _number(self, kind: str, value: int) -> int:
        seen = self._seen.setdefault(kind, {})
        return seen.setdefault(value, len(seen) + 1)

    def renumbered(self, message: PgoutputMessage) -> PgoutputMessage:
        found: dict[str, Any] = {}
        for name in message.__slots__:
            value = getattr(message, name)
            if name in ("xid", "subxid") and value is not None:
                found[name] = self._number("xid", value)
            elif name in ("oid", "relation_oid") and not isinstance(message, Type):
                found[name] = self._number("oid", value)
            elif name in ("final_lsn", "commit_lsn", "prepare_lsn") and not isinstance(message, Message):
                found[name] = self._number("lsn", value)
            elif name == "gid":
                found[name] = value.split(" ", 1)[-1] if value.startswith("twin") else value
            elif name == "relation_oids":
                found[name] = tuple(self._number("oid", oid) for oid in value)
            elif name == "lsn" or name.endswith(("_lsn", "_timestamp")):
                found[name] = None if value is None else 0
            elif isinstance(value, TupleData):
                found[name] = _shortened(value)
            elif name == "columns":
                found[name] = tuple(
                    replace(column, type_oid=MOOD if column.type_oid > 16383 else column.type_oid) for column in value
                )
        if isinstance(message, Type):
            found["oid"] = MOOD
        return replace(message, **found)


def _shortened(data: TupleData) -> TupleData:
    return TupleData(data.kinds, tuple(v and v.removesuffix(_PADDING.encode()) for v in data.values))


_ = (Insert, Update, Delete, Relation, Truncate, ReplicaIdentity)


def without_repeated_relations(messages: Sequence[PgoutputMessage]) -> list[PgoutputMessage]:
    """Without Relation messages that tell what was told before, and the Type messages before these.

    A walsender also hears of changes of the catalog as they are committed, ahead of the WAL that it decodes, and sends
    some Relation messages more often for it.
    """
    known: dict[tuple[int | None, int], Relation] = {}
    kept: list[PgoutputMessage] = []
    types: list[PgoutputMessage] = []
    scope: int | None = None
    for message in messages:
        match message:
            case Type():
                types.append(message)
                continue
            case Relation():
                described = replace(message, xid=None)
                if known.get((scope, message.oid)) != described:
                    kept += [*types, message]
                    known[scope, message.oid] = described
                types = []
                continue
            case StreamStart(xid):
                scope = xid
            case StreamStop():
                scope = None
            case StreamCommit(xid):
                told = {oid: relation for (of, oid), relation in known.items() if of == xid}
                known.update({(None, oid): relation for oid, relation in told.items()})
            case _:
                pass
        kept.append(message)
    return kept
