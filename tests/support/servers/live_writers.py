"""Concurrent connections that keep writing to a server, independently of each other."""

from __future__ import annotations

import itertools
import random
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from tests.support.servers.postgres import Server

_SESSIONS = itertools.count(1)
TABLES = ("orders", "lines", "bag", "untouched")
SETUP = """
create table orders (id int primary key, v text, n numeric(20,4), at timestamptz);
create table lines (code text primary key, doc text, tags text[]);
alter table lines alter doc set storage external;
create table bag (k int, v text);
alter table bag replica identity full;
create type mood as enum ('sad', 'happy');
create table untouched (id uuid primary key default gen_random_uuid(), m mood, d date[]);
create publication p for all tables;
insert into orders select i, 'before ' || i, i * 1.5, now() from generate_series(1, 3000) i;
insert into lines select 'line ' || i, repeat(md5(i::text), 100), array['a', null] from generate_series(1, 500) i;
insert into bag select i % 50, 'x' from generate_series(1, 2000) i;
insert into untouched (m, d) select 'happy', array[date '2024-01-01' + i] from generate_series(1, 500) i;
"""


def random_statement(chance: random.Random) -> str:
    key, other = chance.randint(1, 4000), chance.randint(1, 700)
    return chance.choice(
        [
            f"insert into orders values ({key}, 'new', 1, now()) on conflict (id) do update set v = orders.v || '.'",
            f"delete from orders where id = {key}",
            f"update orders set id = id + 10000 where id = {key}",
            f"update lines set tags = tags || array['more'] where code = 'line {other}'",
            f"update lines set doc = doc || 'x', code = code || '-' where code = 'line {other}'",
            f"insert into bag values ({key % 50}, 'x')",
            f"delete from bag where ctid = (select ctid from bag where k = {key % 50} limit 1)",
            f"update bag set v = 'y' where ctid = (select ctid from bag where k = {other % 50} limit 1)",
        ]
    )


@contextmanager
def writers(server: Server, count: int = 6) -> Iterator[None]:
    """Connections that write until the end of the context, some of them with long transactions."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def write(seed: int) -> None:
        chance = random.Random(seed)
        try:
            with server.connect() as connection:
                while not stop.is_set():
                    _write(connection, chance, stop, seed)
        except BaseException as error:  # noqa: BLE001 - the test's thread reports it
            errors.append(error)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not errors, errors


def _write(connection: psycopg.Connection[Any], chance: random.Random, stop: threading.Event, seed: int) -> None:
    try:
        with connection.transaction(force_rollback=chance.random() < 0.05):
            for _ in range(chance.choice([1, 1, 2, 30 if seed % 3 == 0 else 3])):
                connection.execute(random_statement(chance).encode())
            stop.wait(chance.random() * (0.5 if seed % 3 == 0 else 0.02))
    except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
        pass


@contextmanager
def psql_with_snapshot(server: Server) -> Iterator[tuple[str, str]]:
    """Exports a snapshot in a session of its own; yields its name and LSN.

    Each session's slot has its own name, as the slot of an ended session may exist for a moment longer than its psql.
    """
    command = [str(server.programs / "psql"), f"{server.conninfo} replication=database", "-XAt"]
    command += ["-v", "ON_ERROR_STOP=1"]  # otherwise it would wait forever
    slot = f"snapshot_{next(_SESSIONS)}"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as session:
        assert session.stdin is not None
        assert session.stdout is not None
        session.stdin.write(f"CREATE_REPLICATION_SLOT {slot} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT;\n")
        session.stdin.flush()
        _, lsn, name, _ = session.stdout.readline().strip().split("|")
        yield name, lsn
