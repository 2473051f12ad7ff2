"""Reads a server in use with psycopg: all queries see the same snapshot, whose LSN is known.

Parameters that a URL omits come from libpq's environment (PGUSER, PGPASSWORD, PGPASSFILE, PGSSLMODE, …).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import conninfo
from psycopg.pq import ExecStatus
from psycopg.pq.abc import Buffer, PGconn, PGresult
from psycopg.rows import dict_row

from pgoutput_etl.console import Progress
from pgoutput_etl.error_codes import ErrorCode
from pgoutput_etl.errors import PgoutputEtlError, RunError, TableError, coded, text_of_own
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.postgres.queries import DATABASE_BYTES, POSITION, SESSION, literal
from pgoutput_etl.postgres.source_server import QUERY as SERVER_QUERY
from pgoutput_etl.postgres.source_server import SourceServer

Connection = psycopg.Connection[tuple[Any, ...]]

# Set from the first packet on, overriding the URL, the database, and the user. The connection that shares its snapshot
# is idle while others read.
GUARDS = "-c search_path= -c row_security=off -c idle_in_transaction_session_timeout=0"

_WAIT = "10min"  # for transactions that were running when the slot was created

_REPEATABLE = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"

_REPLAYED = "SELECT pg_catalog.pg_last_wal_replay_lsn()::text"

_REPLAYED_ATTEMPTS, _REPLAYED_PAUSE = 100, 0.2  # seconds

_RESOLVED = (b"service", b"servicefile")  # their parameters have been resolved by then

_PART = 1 << 22  # bytes of rows that are passed on together

_CANCELED = 10  # seconds

# Classes of error codes (SQLSTATE, appendix "PostgreSQL Error Codes") about connections, privileges, names, and
# resources. Others may quote values, or texts chosen by a function of a table's owner.
_NO_VALUES = re.compile(r"08|0A|25|28|3D|3F|42|53|54|55|57|58")

# Errors specific to a table: of values, names, privileges, locks, time limits, and damaged pages.
_OF_ONE_TABLE = re.compile(r"22|42|55P03|57014|XX00[12]")

MARK = "pgoutput_etl.verify"  # prefix of a Message whose only purpose is to end a transaction


def shown(url: str) -> str:
    """The URL without its parameters and user."""
    parameters = conninfo.conninfo_to_dict(url)
    host, port = parameters.get("host", ""), parameters.get("port", "")
    return f"postgresql://{host}{f':{port}' if port else ''}/{parameters.get('dbname', '')}"


@contextmanager
def server_errors(of_table: bool = False) -> Iterator[None]:
    """Turns psycopg's errors into this package's, without values. of_table: the context reads a single table, so an
    error that other tables would not have is a TableError."""
    with coded(ErrorCode.SERVER, RunError):
        try:
            yield
        except psycopg.Error as error:
            state, text = error.sqlstate, error.diag.message_primary
            if state is None:
                raise RunError(f"--server: the server can't be read ({str(error).splitlines()[0]})") from None
            if _NO_VALUES.match(state):
                refusal = RunError(f"--server: the server says: {text}")
            else:
                refusal = RunError(f"--server: the server can't be read (SQLSTATE {state})")
            if of_table and _OF_ONE_TABLE.match(state):
                raise TableError(str(refusal)) from None
            raise refusal from None
        except UnicodeDecodeError:
            raise (TableError if of_table else RunError)("--server: values are not UTF-8") from None
        except Exception as error:
            why = text_of_own(error, RunError)  # from a Python worker
            if isinstance(error, PgoutputEtlError) or why is None:
                raise
            raise RunError(why) from None


def ask_server(url: str, query: str) -> list[dict[str, Any]]:
    """A query's rows, by column, as of now. Raises RunError."""
    with server_errors(), _connection(url) as connection:
        connection.execute(SESSION.encode())
        return _rows(connection, query)


def source_server(url: str) -> SourceServer:
    """The server's settings, slots, publications, and tables. Raises RunError."""
    [row] = ask_server(url, SERVER_QUERY)
    return SourceServer.of(row["server"])


def database_bytes(url: str) -> int:
    """Size of the whole database on the server's storage. Raises RunError."""
    [row] = ask_server(url, DATABASE_BYTES)
    return int(row["bytes"])


def _rows(connection: Connection, query: str) -> list[dict[str, Any]]:
    with connection.cursor(row_factory=dict_row) as cursor:
        return cursor.execute(query.encode()).fetchall()


@dataclass(frozen=True, slots=True)
class SharedSnapshot:
    """A snapshot for other processes, also on other machines. conninfo: libpq's result from URL and environment,
    including the password; it is never shown."""

    name: str
    conninfo: str = field(repr=False)

    @classmethod
    def of(cls, connection: Connection) -> SharedSnapshot:
        """The snapshot of a connection's transaction; valid until the transaction ends."""
        [[name]] = connection.execute("SELECT pg_catalog.pg_export_snapshot()").fetchall()
        info, options = connection.info, (o for o in connection.pgconn.info if o.val and o.keyword not in _RESOLVED)
        used = {option.keyword.decode(): option.val.decode() for option in options if option.val}
        used |= {"host": info.host, "port": str(info.port)}  # of the connected host, if there are several
        used |= {"password": info.password} if info.password else {}  # even if it came from a file
        return cls(str(name), conninfo.make_conninfo("", **used))

    def copied(self, statements: Sequence[str]) -> Iterator[tuple[int, bytes]]:
        """The data that each COPY sends, in parts of whole rows, with the statement's position. Raises TableError and
        RunError."""
        with server_errors(of_table=True), _ending(psycopg.connect(self.conninfo, autocommit=True)) as connection:
            _join(connection, self.name)
            for number, statement in enumerate(statements):
                rows, size = list[Buffer](), 0
                for length, row in _copied_rows(connection.pgconn, statement):
                    rows.append(row)
                    size += length
                    if size >= _PART:
                        yield number, b"".join(rows)
                        rows, size = [], 0
                if rows:
                    yield number, b"".join(rows)


@contextmanager
def _ending(connection: Connection) -> Iterator[Connection]:
    """Closes the connection at the end. If that is early, the server stops what it still does for it."""
    try:
        yield connection
    except BaseException:
        with suppress(psycopg.Error):
            connection.cancel_safe(timeout=_CANCELED)
        raise
    finally:
        connection.close()


def _copied_rows(connection: PGconn, statement: str) -> Iterator[tuple[int, Buffer]]:
    """The rows that COPY sends, with their lengths. Calls libpq itself, as psycopg's Copy needs several times as long
    for each row."""
    _check(connection.exec_(statement.encode()), ExecStatus.COPY_OUT)
    while (sent := connection.get_copy_data(0))[0] > 0:
        yield sent
    for ended in list(iter(connection.get_result, None)):
        _check(ended, ExecStatus.COMMAND_OK)


def _check(result: PGresult, expected: ExecStatus) -> None:
    if result.status != expected:
        raise psycopg.errors.error_from_result(result)


@dataclass(frozen=True, slots=True)
class ServerMoment:
    """A snapshot of a server at `lsn`. If that is exact, it has all transactions that committed before, and no others.
    Several threads may query it."""

    lsn: int
    shared: SharedSnapshot
    _idle: SimpleQueue[Connection] = field(repr=False)

    def ask(self, query: str) -> list[dict[str, Any]]:
        """A query's rows, by column. An error doesn't affect the snapshot."""
        connection = self._idle.get()
        try:
            with connection.transaction():  # a savepoint
                return _rows(connection, query)
        finally:
            self._idle.put(connection)


@contextmanager
def server_moment(
    url: str, connections: int, progress: Progress, exported: tuple[str, int] | None = None, is_exact: bool = True
) -> Iterator[ServerMoment]:
    """A current snapshot, or one that was exported elsewhere. Valid within the context. exported: its name and LSN.
    is_exact: False if transactions around the LSN don't matter, so a user without REPLICATION suffices. Raises
    RunError."""
    with ExitStack() as stack, server_errors():
        opened = [stack.enter_context(_connection(url)) for _ in range(connections)]
        exact = _replayed if is_exact and _is_standby(url) else _exported
        snapshot = exact(url, progress) if is_exact else _begun(url)
        with snapshot if exported is None else nullcontext(exported) as (name, lsn):
            for connection in opened:
                _join(connection, name)
        idle: SimpleQueue[Connection] = SimpleQueue()
        for connection in opened:
            idle.put(connection)
        yield ServerMoment(lsn, SharedSnapshot.of(opened[0]), idle)
        for connection in opened:
            connection.rollback()


def mark(url: str) -> None:
    """Commits a transaction after the snapshot, so that the archive passes its LSN even if nobody else writes. Does
    nothing if the user lacks the privilege."""
    with suppress(psycopg.Error), _connection(url) as connection:
        connection.execute(f"SELECT pg_catalog.pg_logical_emit_message(true, {literal(MARK)}, '')".encode())


def _connection(url: str, options: str = "", replication: str = "false") -> Connection:
    own = conninfo.conninfo_to_dict(url)
    guarded = f"{own.get('options') or ''} {GUARDS}{options}".strip()
    alive = own.get("keepalives_idle") or "60"  # seconds: routers forget connections without traffic
    text = conninfo.make_conninfo(
        url, options=guarded, client_encoding="UTF8", replication=replication, keepalives_idle=alive
    )
    return psycopg.connect(text, autocommit=True)


@contextmanager
def _exported(url: str, progress: Progress) -> Iterator[tuple[str, int]]:
    """A snapshot's name and LSN, within the context. It is exported by a temporary slot, which is dropped with its
    session, so the server keeps no WAL for it.

    Decoding would begin at the slot's consistent point: the snapshot has the transactions that committed before it and
    none that commit later. Commit LSNs are therefore compared with this point. The end of the WAL wouldn't do, because
    a commit is in the WAL before it is visible to others.
    """
    progress("creating a temporary replication slot, which waits for running transactions")
    slot = f"pgoutput_etl_{uuid4().hex[:16]}"
    with _connection(url, f" -c lock_timeout={_WAIT}", replication="database") as walsender:
        try:
            row = walsender.execute(
                f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT".encode()
            )
        except psycopg.errors.LockNotAvailable:
            raise RunError(
                f"--server: a transaction on the server has been open for more than {_WAIT}, and a snapshot has to "
                "wait for it: end it, or run this again later"
            ) from None
        [(_, lsn, name, *_)] = row.fetchall()
        yield str(name), parse_lsn(str(lsn))


def _is_standby(url: str) -> bool:
    [row] = ask_server(url, "SELECT pg_catalog.pg_is_in_recovery() AS is_standby")
    return bool(row["is_standby"])


@contextmanager
def _replayed(url: str, progress: Progress) -> Iterator[tuple[str, int]]:
    """Like `_exported`, for a standby, whose replay is paused meanwhile. There, a commit becomes visible a moment
    before the replay LSN passes it, so the LSN is read before the snapshot, and again some time after it."""
    with _connection(url) as connection:
        for attempt in range(_REPLAYED_ATTEMPTS):
            [[before]] = connection.execute(_REPLAYED).fetchall()
            connection.execute(_REPEATABLE.encode())
            [[name]] = connection.execute("SELECT pg_catalog.pg_export_snapshot()").fetchall()
            time.sleep(_REPLAYED_PAUSE)
            [[after]] = connection.execute(_REPLAYED).fetchall()
            if before == after:
                yield str(name), parse_lsn(str(after))
                return
            connection.rollback()
            if not attempt:
                progress("waiting until the standby's replay stands still")
    raise RunError(
        "--server: the standby replays changes all the time: run SELECT pg_catalog.pg_wal_replay_pause() there, and "
        "pg_wal_replay_resume() afterwards, or name its primary"
    )


@dataclass(frozen=True, slots=True)
class StandbyReplay:
    """A standby's replay. is_still: it did not advance for a moment."""

    lsn: int
    is_paused: bool
    is_still: bool


def replay_of(url: str) -> StandbyReplay:
    """url: a standby's. Raises RunError."""
    query = f"SELECT r.lsn, pg_catalog.pg_is_wal_replay_paused() AS is_paused FROM ({_REPLAYED}) AS r(lsn)"
    [before] = ask_server(url, query)
    time.sleep(_REPLAYED_PAUSE)
    [after] = ask_server(url, query)
    return StandbyReplay(parse_lsn(after["lsn"]), after["is_paused"], before["lsn"] == after["lsn"])


@contextmanager
def _begun(url: str) -> Iterator[tuple[str, int]]:
    """The snapshot of a transaction, and the end of the WAL, which may include commits that the snapshot doesn't
    see."""
    with _connection(url) as connection:
        connection.execute(_REPEATABLE.encode())
        [row] = _rows(connection, f"SELECT pg_catalog.pg_export_snapshot() AS name, p.lsn FROM ({POSITION}) AS p")
        yield row["name"], parse_lsn(row["lsn"])
        connection.rollback()


def _join(connection: Connection, snapshot: str) -> None:
    for statement in (_REPEATABLE, f"SET TRANSACTION SNAPSHOT {literal(snapshot)}", SESSION):
        connection.execute(statement.encode())
