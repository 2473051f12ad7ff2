"""A database named shop with unfavorable settings, its workload, and a comparison with what was landed of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.transactions.outcome import TransactionStatus
from tests.support.servers.postgres import Server, Version
from tests.support.truth import assert_equals_truth

ISO = "-c DateStyle=ISO -c IntervalStyle=postgres -c TimeZone=UTC -c client_encoding=UTF8 -c extra_float_digits=1"
TABLES = ("person", "doc", "log")
_TABLES = """
create table person (id int primary key, name text, born date, seen timestamptz, span interval, score float8);
create table doc (id int primary key, body text);
alter table doc alter body set storage external;
create table log (at timestamp, line text);
alter table log replica identity full;
create table marker (id int primary key, line text);
"""
# Unfavorable defaults, which the landing scripts must override.
_DATABASE = """
create database shop template template0 encoding 'LATIN1' locale 'C';
alter database shop set datestyle = 'German, DMY';
alter database shop set intervalstyle = 'sql_standard';
alter database shop set timezone = 'Asia/Kolkata';
alter database shop set extra_float_digits = 0;
alter database shop set bytea_output = 'escape';
"""


class Shop:
    """The database of a server, and its workload."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._rows = 0

    @property
    def conninfo(self) -> str:
        return self.server.conninfo.replace("dbname=postgres", f"dbname=shop options='{ISO}'")

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.conninfo, autocommit=True)

    def work(self) -> bytes:
        """Runs some transactions, large and small, some rolled back; returns the text that the last one writes."""
        self._rows += 10
        first = self._rows
        marker = f"marker-{first:04}"
        with self.connect() as connection:
            connection.execute(
                "insert into person values (%s, 'Zoë', '1955-04-03', now(), '1 day 02:03', 0.1 + 0.2)", (first,)
            )
            connection.execute("insert into log values (now(), 'müde'), (now(), null)")
            with connection.transaction():
                connection.execute(
                    "insert into doc select %s * 1000 + i, repeat('x', 300) from generate_series(1, 500) i", (first,)
                )
                connection.execute("savepoint s")
                connection.execute(
                    "insert into doc select -%s * 1000 - i, repeat('y', 300) from generate_series(1, 500) i", (first,)
                )
                connection.execute("rollback to s")
                connection.execute("update person set score = score * 3 where id <= %s", (first,))
            connection.execute("delete from doc where id % 3 = 0")
            connection.execute("delete from log where line is null")
            connection.execute("insert into marker values (%s, %s)", (first, marker))
        return marker.encode()

    def assert_is(self, replay: Replay, folder: Path) -> None:
        """Checks that every table of the replay has the server's rows."""
        tables, holders = replay.tables(), replay.name_holders()
        for name in (*TABLES, "marker"):
            path = folder / f"{name}.csv"
            copy = f"copy (select * from {name}) to stdout (format csv, header)".encode()
            with self.connect() as connection, connection.cursor() as cursor, cursor.copy(copy) as rows:
                path.write_bytes(b"".join(rows))
            assert_equals_truth(tables[holders[("public", name)]].rows, path)
        assert TransactionStatus.QUARANTINED not in {outcome.status for outcome in replay.assembly.outcomes}
        assert replay.assembly.unreadable_ranges == []

    def slot(self, column: str) -> Any:
        query = f"select {column} from pg_replication_slots where slot_name = 'etl'"
        with self.connect() as connection:
            row = connection.execute(query.encode()).fetchone()
        return None if row is None else row[0]


@contextmanager
def serving_shop(version: Version, settings: Mapping[str, str] | None = None) -> Iterator[Shop]:
    with Server(version, settings) as server:
        for statement in _DATABASE.strip().splitlines():
            server.psql(statement)
        shop = Shop(server)
        with shop.connect() as connection:
            connection.execute(_TABLES.encode())
        yield shop
