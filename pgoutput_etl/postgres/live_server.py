"""Reads a server that is in use, with psycopg: all queries as of one moment whose LSN is known.

Parameters that a URL leaves out come from libpq's environment (PGUSER, PGPASSWORD, PGPASSFILE, PGSSLMODE …).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import conninfo

from pgoutput_etl.console import Progress
from pgoutput_etl.errors import ConfigError, RunError, TableError
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.postgres.queries import SESSION, literal
from pgoutput_etl.postgres.sql_states import has_no_values, is_of_one_table

Connection = psycopg.Connection[tuple[Any, ...]]

# From the first packet on, and whatever the URL, the database, or the user sets.
_GUARDS = "-c search_path= -c row_security=off"

_WAIT = "10min"  # for transactions that were running when the slot was created

_REPEATABLE = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"

MARK = "pgoutput_etl.verify"  # the prefix of a Message that only ends a transaction


def check_server(url: str) -> None:
    """Raises ConfigError for a URL that is not PostgreSQL's or that contains a password."""
    try:
        parameters = conninfo.conninfo_to_dict(url)
    except psycopg.Error:
        parameters = {}
    if not url.startswith(("postgresql://", "postgres://")) or not parameters:
        raise ConfigError("--server: expected postgresql://HOST:PORT/DATABASE")
    if "password" in parameters or "sslpassword" in parameters:
        raise ConfigError(
            "--server: everybody on the machine can read a password on a command line: set the environment variable "
            "PGPASSWORD instead"
        )


def shown(url: str) -> str:
    """The URL without its parameters and user."""
    parameters = conninfo.conninfo_to_dict(url)
    host, port = parameters.get("host", ""), parameters.get("port", "")
    return f"postgresql://{host}{f':{port}' if port else ''}/{parameters.get('dbname', '')}"


@contextmanager
def server_errors(of_table: bool = False) -> Iterator[None]:
    """Turns psycopg's errors into this package's, without values. of_table: within the context one table is read, so
    that an error that the others don't meet is a TableError."""
    try:
        yield
    except psycopg.Error as error:
        state, text = error.sqlstate, error.diag.message_primary
        if state is None:
            raise RunError(f"--server: the server can't be read ({str(error).splitlines()[0]})") from None
        if has_no_values(state):
            refusal = RunError(f"--server: the server says: {text}")
        else:
            refusal = RunError(f"--server: the server can't be read (SQLSTATE {state})")
        if of_table and is_of_one_table(state):
            raise TableError(str(refusal)) from None
        raise refusal from None
    except UnicodeDecodeError:
        raise (TableError if of_table else RunError)("--server: values are not UTF-8") from None


def ask_server(url: str, query: str) -> list[dict[str, Any]]:
    """A query's rows, by column, as of now. Raises RunError."""
    with server_errors(), _connection(url) as connection:
        connection.execute(SESSION.encode())
        return _rows(connection, query)


def _rows(connection: Connection, query: str) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(query.encode())
        names = [column.name for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor]


@dataclass(frozen=True, slots=True)
class ServerMoment:
    """A server as of `lsn`: it has all transactions that committed before, and no others. Several threads may ask."""

    lsn: int
    _idle: SimpleQueue[Connection] = field(repr=False)

    def ask(self, query: str) -> list[dict[str, Any]]:
        """A query's rows, by column. An error leaves the moment as it is."""
        connection = self._idle.get()
        try:
            with connection.transaction():  # a savepoint
                return _rows(connection, query)
        finally:
            self._idle.put(connection)


@contextmanager
def server_moment(url: str, connections: int, progress: Progress) -> Iterator[ServerMoment]:
    """The present moment, until the end of the context. Raises RunError.

    A temporary slot exports the snapshot: see postgres/snapshot.py. It is dropped as soon as all connections have it,
    so the server keeps no WAL for it.
    """
    with ExitStack() as stack, server_errors():
        opened = [stack.enter_context(_connection(url)) for _ in range(connections)]
        progress("creating a temporary replication slot, which waits for running transactions")
        with _connection(url, f" -c lock_timeout={_WAIT}", replication="database") as walsender:
            name, lsn = _exported(walsender)
            for connection in opened:
                _join(connection, name)
        idle: SimpleQueue[Connection] = SimpleQueue()
        for connection in opened:
            idle.put(connection)
        yield ServerMoment(lsn, idle)
        for connection in opened:
            connection.rollback()


def mark(url: str) -> None:
    """Ends a transaction after the moment, so that the archive reaches it also if nobody else writes. Does nothing
    where the user may not."""
    with suppress(psycopg.Error), _connection(url) as connection:
        connection.execute(f"SELECT pg_catalog.pg_logical_emit_message(true, {literal(MARK)}, '')".encode())


def _connection(url: str, options: str = "", replication: str = "false") -> Connection:
    own = conninfo.conninfo_to_dict(url).get("options") or ""
    guarded = f"{own} {_GUARDS}{options}".strip()
    text = conninfo.make_conninfo(url, options=guarded, client_encoding="UTF8", replication=replication)
    return psycopg.connect(text, autocommit=True)


def _exported(walsender: Connection) -> tuple[str, int]:
    slot = f"pgoutput_etl_verify_{uuid4().hex[:16]}"
    try:
        row = walsender.execute(f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT".encode())
    except psycopg.errors.LockNotAvailable:
        raise RunError(
            f"--server: a transaction on the server has been open for more than {_WAIT}, and a snapshot has to wait "
            "for it: end it, or run this again later"
        ) from None
    [(_, lsn, name, *_)] = row.fetchall()
    return str(name), parse_lsn(str(lsn))


def _join(connection: Connection, snapshot: str) -> None:
    for statement in (_REPEATABLE, f"SET TRANSACTION SNAPSHOT {literal(snapshot)}", SESSION):
        connection.execute(statement.encode())
