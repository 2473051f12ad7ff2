"""A random workload on a server, in several concurrent sessions, with everything that a receiver must handle."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

from tests.support.servers.postgres import Server

TABLES = ("account", "doc", "event", "scratch", "shape")
_SETUP = """
create table account (id int primary key, owner text, balance numeric(12,2), note text);
create table doc (a int, b text, body text, primary key (a, b));
alter table doc alter body set storage external;
create table event (at timestamp, kind text, amount float8);
alter table event replica identity full;
create table scratch (id int primary key, v text);
create table shape (id int primary key, c0 int);
create publication p for all tables;
"""
_SESSIONS = 3
_BIG = (300, 900)  # rows: several times the number at which decoding begins to stream
_WIDER = {"int": "bigint", "bigint": "numeric", "numeric": "text"}


@dataclass(slots=True)
class _Session:
    number: int
    connection: psycopg.Connection[tuple[Any, ...]]
    in_transaction: bool = False
    savepoints: int = 0


@dataclass(slots=True)
class Workload:
    """Runs statements one after another, each in a random session. A row always belongs to the same session.

    A statement that would wait for a lock fails, and its transaction rolls back. A restart of the server ends all
    sessions.
    """

    server: Server
    chance: random.Random
    prepares: bool = True
    alters: bool = True
    statements: int = 0
    crashes: int = 0
    _sessions: list[_Session] = field(default_factory=list)
    _next_id: int = 0
    _next_name: int = 0
    _columns: dict[str, str] = field(default_factory=lambda: {"c0": "int"})

    def create(self) -> None:
        self.server.psql(_SETUP)
        self._sessions = [self._session(number) for number in range(_SESSIONS)]

    def _session(self, number: int) -> _Session:
        connection = self.server.connect()
        connection.execute("set lock_timeout = '30ms'")
        return _Session(number, connection)

    def close(self) -> None:
        """Commits half of the open transactions; the others roll back with their sessions, or stay prepared."""
        for session in self._sessions:
            if session.in_transaction and self.chance.random() < 0.5:
                self._commit_unless_it_crashed(session)
            session.connection.close()
        self.server.wait_until_ready()
        with self.server.connect() as connection:
            rows = connection.execute(
                "select gid, transaction in (select substr(virtualtransaction, 4)::xid from pg_locks"
                " where virtualtransaction like '-1/%' and mode = 'AccessExclusiveLock')"
                " from pg_prepared_xacts order by gid"
            )
            for gid, locks_tables in rows.fetchall():
                if locks_tables or self.chance.random() < 0.5:  # a locked table could not be compared
                    connection.execute(sql.SQL("commit prepared {}").format(sql.Literal(gid)))

    def _commit_unless_it_crashed(self, session: _Session) -> None:
        """Ignores the error if the server has restarted, and so rolled back the transaction."""
        try:
            self._execute(session, "commit")
        except psycopg.OperationalError:
            if not session.connection.broken:
                raise

    def step(self) -> None:
        """Runs one statement in one session, or starts new sessions after a crash."""
        session = self.chance.choice(self._sessions)
        try:
            self._step(session)
        except psycopg.errors.Error as error:
            if session.connection.broken or (isinstance(error, psycopg.OperationalError) and not error.sqlstate):
                self._after_a_crash()
            else:
                session.connection.execute("rollback")
                session.in_transaction = False
        self.statements += 1

    def _after_a_crash(self) -> None:
        self.crashes += 1
        for session in self._sessions:
            session.connection.close()
        self.server.wait_until_ready()
        self._sessions = [self._session(number) for number in range(_SESSIONS)]
        with self.server.connect() as connection:
            rows = connection.execute(
                "select attname, format_type(atttypid, null) from pg_attribute where attrelid = 'shape'::regclass"
                " and attnum > 1 and not attisdropped"
            )
            names = {"integer": "int"}
            self._columns = {name: names.get(kind, kind) for name, kind in rows}

    def _step(self, session: _Session) -> None:
        if not session.in_transaction:
            if self.prepares and self.chance.random() < 0.2 and self._end_prepared(session):
                return
            if self.chance.random() < 0.6:
                self._execute(session, "begin")
                session.in_transaction, session.savepoints = True, 0
        elif self.chance.random() < 0.15:
            self._end(session)
            return
        changes: list[Callable[[_Session], None]] = [
            *([self._insert] * 4),
            *([self._insert_many] * 2),
            *([self._update] * 3),
            *([self._move] * 2),
            *([self._delete] * 2),
            *([self._savepoint] * 2),
            self._emit,
            self._scratch,
        ]
        if self.alters:
            changes.append(self._alter)
        self.chance.choice(changes)(session)

    def _execute(self, session: _Session, statement: str, *values: object) -> None:
        session.connection.execute(statement.encode(), values or None)

    def _end(self, session: _Session) -> None:
        session.in_transaction = False
        ways = ["commit"] * 5 + ["rollback"] * 2
        if self.prepares:
            self._next_name += 1
            ways += [f"prepare transaction 'work-{self._next_name}'"] * 2
        self._execute(session, self.chance.choice(ways))

    def _end_prepared(self, session: _Session) -> bool:
        rows = session.connection.execute("select gid from pg_prepared_xacts order by gid").fetchall()
        if not rows:
            return False
        end = self.chance.choice(["commit", "commit", "rollback"])
        gid = sql.Literal(self.chance.choice(rows)[0]).as_string()
        self._execute(session, f"{end} prepared {gid}")
        return True

    def _id(self, session: _Session) -> int:
        self._next_id += 1
        return self._next_id * _SESSIONS + session.number

    def _mine(self, session: _Session, column: str = "id") -> str:
        """Some of the session's own rows."""
        return (
            f"{column} % {_SESSIONS} = {session.number} and ({column} / {_SESSIONS}) % 5 = {self.chance.randrange(5)}"
        )

    def _insert(self, session: _Session) -> None:
        number = self._id(session)
        self._execute(session, "insert into account values (%s, %s, %s, null)", number, f"owner {number}", number / 4)
        if self.chance.random() < 0.5:
            body = "x" * self.chance.choice([10, 3000, 9000]) + str(number)
            self._execute(session, "insert into doc values (%s, 'b', %s)", number, body)
        if self.chance.random() < 0.5:
            self._execute(session, "insert into event values ('2024-01-01', %s, %s)", f"k{number % 4}", number % 3)
        if self.chance.random() < 0.5:
            self._execute(session, "insert into shape (id) values (%s)", number)

    def _insert_many(self, session: _Session) -> None:
        first, count = self._id(session), self.chance.randint(*_BIG)
        self._next_id += count
        rows = f"from generate_series({first}, {first + (count - 1) * _SESSIONS}, {_SESSIONS}) i"
        if self.chance.random() < 0.5:
            self._execute(session, f"insert into account select i, 'many', i, repeat('y', 80) {rows}")
        else:
            self._execute(session, f"insert into event select timestamp '2024-02-01', 'many', i % 7 {rows}")

    def _update(self, session: _Session) -> None:
        statements = [
            f"update account set balance = balance + 1, note = 'updated' where {self._mine(session)}",
            f"update doc set b = b || 'c' where {self._mine(session, 'a')}",  # its body is not sent
            f"update doc set body = body || 'd' where {self._mine(session, 'a')}",
            f"update event set amount = amount + 1 where kind = 'k{self.chance.randrange(4)}' and amount < 3",
            f"update shape set id = id where {self._mine(session)}",
        ]
        self._execute(session, self.chance.choice(statements))

    def _move(self, session: _Session) -> None:
        """Changes keys of the session's rows to new ones, also the session's."""
        self._next_id += 1
        by = self._next_id * 10_000 * _SESSIONS
        table, column = self.chance.choice([("account", "id"), ("doc", "a"), ("shape", "id")])
        under = f"{column} < 10000000"
        self._execute(
            session, f"update {table} set {column} = {column} + {by} where {under} and {self._mine(session, column)}"
        )

    def _delete(self, session: _Session) -> None:
        table, column = self.chance.choice([("account", "id"), ("doc", "a"), ("shape", "id")])
        self._execute(session, f"delete from {table} where {self._mine(session, column)}")
        self._execute(session, "delete from event where ctid in (select ctid from event where kind = 'many' limit 9)")

    def _savepoint(self, session: _Session) -> None:
        if not session.in_transaction:
            return
        ways = ["savepoint s"]
        if session.savepoints:
            ways += ["rollback to savepoint s", "rollback to savepoint s", "release savepoint s"]
        way = self.chance.choice(ways)
        session.savepoints += {"s": 1, "ro": 0, "re": -1}[way[:1] if way[0] == "s" else way[:2]]
        self._execute(session, way)

    def _emit(self, session: _Session) -> None:
        transactional = self.chance.random() < 0.5
        self._execute(session, "select pg_logical_emit_message(%s, 'm', 'content')", transactional)

    def _scratch(self, session: _Session) -> None:
        self._execute(session, "insert into scratch values (%s, 'v')", self._id(session))
        if self.chance.random() < 0.3:
            self._execute(session, "truncate scratch" + self.chance.choice(["", ", event"]))

    def _alter(self, session: _Session) -> None:
        """Alters a table and commits or rolls back at once, so that all sessions know the table's columns."""
        self._next_name += 1
        name = self.chance.choice(list(self._columns)) if self._columns else ""
        match self.chance.randrange(3):
            case 1 if name:
                action, columns = f"drop {name}", {n: t for n, t in self._columns.items() if n != name}
            case 2 if self._columns.get(name) in _WIDER:
                wider = _WIDER[self._columns[name]]
                action, columns = f"alter {name} type {wider}", {**self._columns, name: wider}
            case _:
                name = f"c{self._next_name}"
                action, columns = f"add {name} int", {**self._columns, name: "int"}
        if session.in_transaction:
            return
        self._execute(session, "begin")
        session.in_transaction = True
        self._execute(session, f"alter table shape {action}")
        number = self._id(session)
        self._execute(
            session,
            f"insert into shape (id{''.join(', ' + c for c in columns)}) values ({number}{', 1' * len(columns)})",
        )
        commits = self.chance.random() < 0.7
        self._execute(session, "commit" if commits else "rollback")
        session.in_transaction = False
        self._columns = columns if commits else self._columns
