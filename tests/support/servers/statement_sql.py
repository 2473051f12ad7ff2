"""Statements of the model server in SQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from psycopg import sql

from tests.support.model import ddl, dml
from tests.support.model import statements as do
from tests.support.model.catalog import INT4, INT4_ARRAY, INT8, MOOD, NUMERIC, TEXT, TIMESTAMPTZ, Definition, Row, Value
from tests.support.model.server import Server as ModelServer
from tests.support.model.workload import RunsOnServer

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
SETUP = f"create schema other; create type public.mood as enum ({_MOODS}); create publication p"
PADDING = "x" * 2200  # makes a value long enough for TOAST and short enough for an index
_OPERATIONS = {"I": "insert", "U": "update", "D": "delete", "T": "truncate"}


def _name(definition: Definition) -> str:
    return f'{definition.namespace}."{definition.name}"'


def _literal(value: Value) -> str:
    if value is None:
        return "null"
    text = value.decode() + (PADDING if value.startswith(b"~") else "")
    return sql.Literal(text).as_string()


def _one_row(definition: Definition, row: Row) -> str:
    """A condition for any one row with these values."""
    same = " and ".join(f'"{c.name}" is not distinct from {_literal(row[c.number - 1])}' for c in definition.columns)
    return f"ctid = (select ctid from {_name(definition)} where {same} limit 1 for update skip locked)"


def sql_of(statement: RunsOnServer, model: ModelServer, session: int, prefix: str) -> Iterator[str]:
    """The statement in SQL, in one or more SQL statements. prefix: makes gids and origins unique in the cluster."""
    match statement:
        case dml.InsertRow(oid, values):
            definition = model.tables[oid].definition
            known = [(name, value) for name, value in values if name in definition.places]
            names = ", ".join(f'"{name}"' for name, _ in known)
            yield f"insert into {_name(definition)} ({names}) values ({', '.join(_literal(v) for _, v in known)})"
        case dml.UpdateRow(oid, row, values):
            definition = model.tables[oid].definition
            known = [(name, value) for name, value in values if name in definition.places]
            settings = [f'"{name}" = {_literal(value)}' for name, value in known]
            if not settings:
                settings = ['"{0}" = "{0}"'.format(definition.columns[0].name)]
            condition = _one_row(definition, model.tables[oid].rows[row])
            yield f"update {_name(definition)} set {', '.join(settings)} where {condition}"
        case dml.DeleteRow(oid, row):
            definition = model.tables[oid].definition
            yield f"delete from {_name(definition)} where {_one_row(definition, model.tables[oid].rows[row])}"
        case dml.LockRow(oid, row):
            definition = model.tables[oid].definition
            condition = _one_row(definition, model.tables[oid].rows[row])
            yield f"select from {_name(definition)} where {condition} for update"
        case dml.Truncate(oids, options):
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
        case do.Begin(origin, origin_lsn):
            yield from () if origin is None else [_with_origin(prefix, origin)]
            yield "begin"
            lsn = f"{origin_lsn >> 32:X}/{origin_lsn & 0xFFFFFFFF:X}"
            yield from () if origin is None else [f"select pg_replication_origin_xact_setup('{lsn}', now())"]
        case do.Savepoint():
            yield f"savepoint s{depth}"
        case do.ReleaseSavepoint(at):
            yield f"release savepoint s{at}"
        case do.RollBackToSavepoint(at):
            yield f"rollback to savepoint s{at}"
        case do.Commit() | do.RollBack() | do.PrepareTransaction():
            gid = statement.gid if isinstance(statement, do.PrepareTransaction) else ""
            words = {do.Commit: "commit", do.RollBack: "rollback"}
            yield words.get(type(statement), f"prepare transaction '{prefix} {gid}'")
            yield from () if transaction is None or transaction.origin is None else [_WITHOUT_ORIGIN]
        case do.CommitPrepared(gid, origin) | do.RollBackPrepared(gid, origin):
            yield from () if origin is None else [_with_origin(prefix, origin)]
            yield f"{'commit' if isinstance(statement, do.CommitPrepared) else 'rollback'} prepared '{prefix} {gid}'"
            yield from () if origin is None else [_WITHOUT_ORIGIN]
        case _:
            yield from _sql_of_ddl(statement, model, session)


_WITHOUT_ORIGIN = "select pg_replication_origin_session_reset()"


def _with_origin(prefix: str, origin: str) -> str:
    return f"select pg_replication_origin_session_setup('{prefix} {origin}')"


def _column(name: str, type_oid: int) -> str:
    return f'"{name}" {TYPES[type_oid]}{" storage external" if type_oid == TEXT else ""}'


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _sql_of_ddl(statement: RunsOnServer, model: ModelServer, session: int) -> Iterator[str]:
    match statement:
        case ddl.CreateTable(oid, namespace, name, columns, key):
            described = ", ".join(_column(*column) for column in columns)
            constraint = "" if not key else f", constraint key{oid} primary key ({_listed(key)})"
            yield f'create table {namespace}."{name}" ({described}{constraint})'
        case ddl.DropTable(oid):
            yield f"drop table {_name(model.tables[oid].definition)}"
        case ddl.RenameTable(oid, namespace, name):
            yield from _renamed(model.tables[oid].definition, namespace, name)
        case ddl.PublishTable() | ddl.UnpublishTable() | ddl.SetOperations():
            yield from _sql_of_publication(statement, model, session)
        case ddl.SetKey() | ddl.SetIdentity():
            yield from _sql_of_keys(statement, model.tables[statement.oid].definition)
        case ddl.TableStatement(oid):
            yield from _sql_of_columns(statement, f"alter table {_name(model.tables[oid].definition)}")
        case _:
            raise TypeError(type(statement).__name__)


def _renamed(before: Definition, namespace: str, name: str) -> Iterator[str]:
    table = f"alter table {_name(before)}"
    if namespace != before.namespace and name != before.name:  # both names may be another table's
        yield f'{table} rename to "on its way"'
        table = f'alter table {before.namespace}."on its way"'
    if namespace != before.namespace:
        yield f"{table} set schema {namespace}"
        table = table.replace(f"{before.namespace}.", f"{namespace}.")
    if name != before.name:
        yield f'{table} rename to "{name}"'


def _sql_of_columns(statement: ddl.TableStatement, table: str) -> Iterator[str]:
    match statement:
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
        case _:
            raise TypeError(type(statement).__name__)


def _sql_of_keys(statement: ddl.SetKey | ddl.SetIdentity, before: Definition) -> Iterator[str]:
    table, oid = f"alter table {_name(before)}", before.oid
    match statement:
        case ddl.SetKey(_, columns):
            if before.key:
                yield f"{table} drop constraint key{oid}"
                yield from _nullable(before, table, before.key, before.index)
            if columns:
                yield f"{table} add constraint key{oid} primary key ({_listed(columns)})"
        case ddl.SetIdentity(_, identity, index):
            if before.index:
                yield f"drop index {before.namespace}.index{oid}"
                yield from _nullable(before, table, before.index, before.key)
            for column in index:
                yield f'{table} alter "{column}" set not null'
            if index:
                yield f"create unique index index{oid} on {_name(before)} ({_listed(index)})"
            yield f"{table} replica identity {f'using index index{oid}' if index else identity.name.lower()}"


def _nullable(before: Definition, table: str, numbers: Sequence[int], others: Sequence[int]) -> Iterator[str]:
    """Drop NOT NULL of columns that no key needs any more."""
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
