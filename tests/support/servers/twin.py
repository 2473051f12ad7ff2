"""Runs the statements of a model server in a database on a real server, and collects its walsender's messages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import psycopg
from psycopg import sql

from pgoutput_etl.protocol.decoder import decode
from pgoutput_etl.protocol.messages import PgoutputMessage, StreamStart, StreamStop
from tests.support.model.history import Options, new_server
from tests.support.model.receiver import TwoPhase
from tests.support.model.slot import IMMEDIATE, Connection, Eviction, Streaming
from tests.support.model.wal import FIRST_LSN, LSN_PER_STATEMENT
from tests.support.model.walsender import Walsender
from tests.support.model.workload import ORIGIN, Action
from tests.support.servers.postgres import Server
from tests.support.servers.statement_sql import SETUP, sql_of
from tests.support.servers.walsender_client import WalsenderClient

# Streams each change at once, so that segments do not depend on the size of changes.
SETTINGS = {"debug_logical_replication_streaming": "immediate", "max_prepared_transactions": "50"}
SESSIONS = 3
_numbers = count()


class Twin:
    """A walsender sends everything after each statement, before the next one runs.

    sent: the real messages of each connection. expected: the model's messages.
    """

    def __init__(self, server: Server, options: Options) -> None:
        self.server, self.options = server, options
        self.name = f"twin{next(_numbers)}"
        self.model = new_server(options, first_xid=700)
        self.sent: list[list[PgoutputMessage]] = []
        self._connections: list[Connection] = []
        self._lsns = ["0/0"]  # the end of the WAL after each statement
        self._in_stream = False
        self._run_on_postgres(f"create database {self.name}")
        self._sessions = [self._session() for _ in range(SESSIONS + 1)]
        self._sessions[-1].execute((SETUP + ("" if options.for_tables else " for all tables")).encode())
        self._origins = [f"{self.name} {ORIGIN} {number}" for number in range(SESSIONS)]
        for origin in self._origins:
            self._sessions[-1].execute("select pg_replication_origin_create(%s)", (origin,))
        self._sessions[-1].execute(
            "select pg_create_logical_replication_slot(%s, 'pgoutput', false, %s)",
            (self.name, options.two_phase is TwoPhase.ON),
        )
        self._begin_connection(0, 0 if options.two_phase is TwoPhase.ON else None)

    def close(self) -> None:
        """Remove the database and all that belongs to it."""
        self._client.__exit__(None, None, None)
        *sessions, other = self._sessions
        for session in sessions:
            session.close()
        for (gid,) in other.execute("select gid from pg_prepared_xacts where database = current_database()").fetchall():
            other.execute(sql.SQL("rollback prepared {}").format(sql.Literal(gid)))
        other.close()
        with self.server.connect() as connection:
            self._wait_for_slot(connection)
            _wait_until(connection, "select count(*) = 0 from pg_stat_activity where datname = %s", self.name)
            connection.execute("select pg_drop_replication_slot(%s)", (self.name,))
            for origin in self._origins:
                connection.execute("select pg_replication_origin_drop(%s)", (origin,))
        self._run_on_postgres(f"drop database {self.name} with (force)")

    def _run_on_postgres(self, statement: str) -> None:
        with self.server.connect() as connection:
            connection.execute(statement.encode())

    def _session(self) -> psycopg.Connection[tuple[Any, ...]]:
        conninfo = psycopg.conninfo.make_conninfo(self.server.conninfo, dbname=self.name)
        session = psycopg.connect(conninfo, autocommit=True)
        session.execute("set lock_timeout = '2s'")
        return session

    # Statements

    def run(self, action: Action) -> None:
        number, (session, statement) = len(self._lsns), action
        self.model.begin_statement(number)
        for text in sql_of(statement, self.model, session, self.name):
            try:
                self._sessions[session].execute(text.encode())
            except psycopg.Error as error:
                raise AssertionError(f"session {session}: {text}: {error}") from error
        assert statement.run(self.model, session), f"the model server refuses {statement}"
        self._receive()

    def _receive(self) -> None:
        """Receive everything that the server has written so far."""
        # A commit with an xid and a record flushes all WAL before it, so that the walsender reads it.
        self._sessions[-1].execute("select txid_current(), pg_create_restore_point('here')")
        ends = "select pg_current_wal_flush_lsn()::text, (pg_current_wal_flush_lsn() - '0/0')::bigint"
        row = self._sessions[-1].execute(ends).fetchone()
        assert row is not None
        self._lsns.append(row[0])
        until = time.monotonic() + 30
        while self._client.received_lsn < row[1]:
            assert time.monotonic() < until, "the walsender doesn't catch up"
            for frame in self._client.frames(0.001):
                self._take(frame)

    def _take(self, frame: bytes) -> None:
        if frame[5:6] != b"w":
            return
        message = decode(frame[30:], self._in_stream)
        ends = isinstance(message, StreamStop)
        self._in_stream = isinstance(message, StreamStart) or (self._in_stream and not ends)
        self.sent[-1].append(message)

    @property
    def statements(self) -> int:
        return len(self._lsns) - 1

    # Connections

    def reconnect(self, since: int, *, two_phase: bool = False) -> None:
        """Connect again; the server sends everything after the statement with this number. The first one is 1."""
        self._client.__exit__(None, None, None)
        begins_at = _lsn_after(since)
        last = self._connections[-1]
        two_phase_at = begins_at if two_phase and last.two_phase_at is None else last.two_phase_at
        self._connections[-1] = replace(last, ends_at=_lsn_after(len(self._lsns) - 1))
        self._begin_connection(begins_at, two_phase_at, self._lsns[since])
        self._lsns.pop()  # `_receive` adds an LSN again
        self._receive()

    def _begin_connection(self, begins_at: int, two_phase_at: int | None, lsn: str = "0/0") -> None:
        options = {"publication_names": '"p"', "proto_version": str(self.options.protocol), "messages": "true"}
        if self.options.streaming is not Streaming.OFF:
            options["streaming"] = self.options.streaming.value
        if not self.options.publishes_origins:
            options["origin"] = "none"
        if two_phase_at is not None:
            options["two_phase"] = "true"
        self._connections.append(Connection(begins_at, two_phase_at))
        self.sent.append([])
        self._in_stream = False
        self._wait_for_slot(self._sessions[-1])
        self._client = WalsenderClient(self.server, self.name, options, lsn, self.name)

    def _wait_for_slot(self, session: psycopg.Connection[tuple[Any, ...]]) -> None:
        """Waits for the slot's previous walsender, which takes a moment to end."""
        _wait_until(session, "select not active from pg_replication_slots where slot_name = %s", self.name)

    @property
    def expected(self) -> list[list[PgoutputMessage]]:
        wal = self.model.wal
        evictions = {record.lsn: Eviction(IMMEDIATE) for record in wal}
        messages = []
        for connection in self._connections:
            ends_at = connection.ends_at
            received = wal if ends_at is None else [record for record in wal if record.lsn < ends_at]
            streaming = Connection(connection.begins_at, connection.two_phase_at, evictions=evictions)
            messages.append(Walsender(self.options.slot, streaming).run(received))
        return messages


def statement_at(lsn: int) -> int:
    """The number of the statement that wrote a record of the model."""
    return (lsn - FIRST_LSN) // LSN_PER_STATEMENT


def _lsn_after(statement: int) -> int:
    return FIRST_LSN + (statement + 1) * LSN_PER_STATEMENT if statement else 0


def _wait_until(session: psycopg.Connection[tuple[Any, ...]], query: str, name: str) -> None:
    until = time.monotonic() + 30
    while session.execute(query.encode(), (name,)).fetchone() != (True,):
        assert time.monotonic() < until, query
        time.sleep(0.005)


@contextmanager
def twin_of(server: Server, options: Options) -> Iterator[Twin]:
    twin = Twin(server, options)
    try:
        yield twin
    finally:
        twin.close()
