"""docs/landing.md and conf/landing on real servers: what is landed by them comes to what the server holds."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgoutput_etl.landing.sequence_gaps import missing_number
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.transactions.outcome import TransactionStatus
from tests.support.servers.landing_machine import ROOT, Machine, replayed
from tests.support.servers.postgres import Server, Version
from tests.support.servers.standby import Standby
from tests.support.truth import assert_equals_truth

pytestmark = pytest.mark.e2e

GUIDE = dict(
    re.findall(r"<!-- tested: ([\w ]+) -->\n```\w+\n(.*?)```\n", (ROOT / "docs/landing.md").read_text(), re.DOTALL)
)
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
# Nothing is as a receiver would wish it: landing has to say what it wants.
_DATABASE = """
create database shop template template0 encoding 'LATIN1' locale 'C';
alter database shop set datestyle = 'German, DMY';
alter database shop set intervalstyle = 'sql_standard';
alter database shop set timezone = 'Asia/Kolkata';
alter database shop set extra_float_digits = 0;
alter database shop set bytea_output = 'escape';
"""


class Shop:
    """The database of a server, and somebody who works on it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self._rows = 0

    @property
    def conninfo(self) -> str:
        return self.server.conninfo.replace("dbname=postgres", f"dbname=shop options='{ISO}'")

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.conninfo, autocommit=True)

    def work(self) -> bytes:
        """Some transactions, large and small, committed and not; the text that the last of them writes."""
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
        """Every table of the replay is the server's, row by row."""
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
            found = connection.execute(query.encode()).fetchone()
        return None if found is None else found[0]


@contextmanager
def shop_and_machine(
    version: Version, folder: Path, settings: dict[str, str] | None = None, **changed: str
) -> Iterator[tuple[Shop, Machine]]:
    with Server(version, settings) as server:
        for statement in _DATABASE.strip().splitlines():
            server.psql(statement)
        shop = Shop(server)
        with shop.connect() as connection:
            connection.execute(_TABLES.encode())
        machine = Machine(server, folder / "machine", **changed)
        try:
            yield shop, machine
        finally:
            machine.end(signal.SIGKILL)


@pytest.mark.parametrize("version", [pytest.param(16, marks=pytest.mark.soak), 18])
def test_what_the_guide_lands_is_what_the_server_holds(version: Version, tmp_path: Path) -> None:
    """Through rotations, a receiver that is killed, one that is stopped, and one that can't answer."""
    with shop_and_machine(version, tmp_path, ROTATE_SECONDS="0", ROTATE_PATIENCE="1") as (shop, machine):
        with shop.connect() as connection:
            connection.execute("create table keyless (a int)")
            connection.execute(b"create table unsaid (a int primary key); alter table unsaid replica identity nothing")
            said = machine.run_shell(GUIDE["server"])
            assert re.findall(r"^ (\w+)$", said, re.MULTILINE)[-2:] == ["keyless", "unsaid"], "they can't be updated"
            assert "person" not in said
            connection.execute(b"drop table keyless; drop table unsaid")
        machine.run_shell(GUIDE["start"])
        assert "enable --now pg-landing@shop.service" in (machine.root / "systemctl.log").read_text()
        machine.start()
        machine.received(shop.work())
        machine.run("pg-landing-rotate@.service")
        assert [path.name for path in machine.files] == ["shop-0000001.bin.gz"]
        machine.received(shop.work())
        machine.end(signal.SIGKILL)
        machine.wait(lambda: not shop.slot("active"), "the walsender stays")
        machine.start()
        machine.received(shop.work())
        machine.run("pg-landing-rotate@.service")

        machine.received(shop.work())
        machine.pause()
        marker = shop.work()
        told = machine.run("pg-landing-rotate@.service")
        assert "opens no new file" in told.stderr
        assert len(machine.files) == 2, "nobody knows whether the renamed file is complete"
        machine.go_on()
        machine.received(marker)
        machine.run("pg-landing-rotate@.service")
        assert len(machine.files) == 3

        machine.received(shop.work())
        machine.end(signal.SIGINT)
        machine.run("pg-landing-rotate@.service")
        assert [path.name for path in machine.state.iterdir() if path.name in ("current", "renamed")] == []
        assert missing_number([path.name for path in machine.files]) is None
        shop.assert_is(replayed(machine.files), tmp_path)


def test_without_a_replication_connection(tmp_path: Path) -> None:
    """By COPY, with an upload that fails after each file was landed: nothing is lost, and nothing piles up."""
    refusing = tmp_path / "refusing"
    refusing.write_text("#!/bin/sh\nexit 1\n")
    refusing.chmod(0o755)
    with shop_and_machine(16, tmp_path, LANDED_BY="copy") as (shop, machine):
        machine.run_shell(GUIDE["server"])
        machine.run_shell(GUIDE["copy"])
        machine.run("pg-landing-copy@.service")
        assert machine.files == [], "there was nothing"
        shop.work()
        before = shop.slot("confirmed_flush_lsn")
        machine.set(UPLOAD=str(refusing))
        for _ in range(3):
            machine.run("pg-landing-copy@.service", fails=True)
        assert [path.name for path in machine.files] == ["shop-0000001.pgcopy.gz"], "but one copy waits"
        assert shop.slot("confirmed_flush_lsn") == before, "and the slot does"
        machine.set(MAX_WAITING_SECONDS="-1")
        assert "has waited for" in machine.run("pg-landing-watch@.service", fails=True).stderr
        machine.set(UPLOAD="")
        shop.work()
        with shop.connect() as other, other.transaction():
            other.execute("insert into marker values (-1, 'not yet committed')")
            machine.run("pg-landing-copy@.service")
        shop.work()
        machine.run("pg-landing-copy@.service")
        assert len(machine.files) == 3
        shop.assert_is(replayed(machine.files), tmp_path)
        assert machine.run("pg-landing-watch@.service").stderr == "", "that nobody receives is as it should be"

        shop.work()
        hand = tmp_path / "hand"
        hand.mkdir()
        options = "PGOPTIONS='-c DateStyle=ISO -c IntervalStyle=postgres -c extra_float_digits=3' PGCLIENTENCODING=UTF8"
        machine.run_shell(f"export {options}; cd {hand}; {GUIDE['by hand']}")
        assert [path.name for path in hand.iterdir()] == ["changes.pgcopy"]
        shop.assert_is(replayed([*machine.files, hand / "changes.pgcopy"]), tmp_path)


def test_the_watch_says_what_is_wrong(tmp_path: Path) -> None:
    with shop_and_machine(18, tmp_path, {"max_wal_size": "64MB"}) as (shop, machine):
        watch = "pg-landing-watch@.service"
        assert "the server can't be asked" in machine.run(watch, fails=True).stderr, "there is no such role"
        machine.run_shell(GUIDE["server"])
        assert "nobody receives from the slot etl" in machine.run(watch, fails=True).stderr
        machine.start()
        machine.wait(lambda: bool(shop.slot("active")), "nobody receives")
        well = machine.run(watch)
        assert re.match(r"shop: slot etl active=t wal_status=reserved retained_bytes=\d+ ", well.stdout)
        looked = machine.run_shell(f"psql -d shop -XAt <<'EOF'\n{GUIDE['look']}\nEOF")
        assert looked.splitlines()[0].startswith("etl|t|reserved|")

        machine.set(MAX_RETAINED_BYTES="1", MAX_CATALOG_AGE="-1", MAX_DISK_PERCENT="0")
        said = machine.run(watch, fails=True).stderr
        assert re.search(r"the slot etl keeps \d+ bytes of WAL on the server", said)
        assert "keeps VACUUM from" in said
        assert re.search(r"the disk below \S+ is \d+ % full", said)

        machine.end(signal.SIGINT)
        with shop.connect() as connection:
            connection.execute("alter system set max_slot_wal_keep_size = '1MB'")
            connection.execute("select pg_reload_conf()")
            for _ in range(4):
                connection.execute("insert into log values (now(), 'more')")
                connection.execute("select pg_switch_wal()")
            connection.execute("checkpoint")
        assert "the slot etl is lost (wal_removed)" in machine.run(watch, fails=True).stderr

        machine.run_shell(f"psql -d shop <<'EOF'\n{GUIDE['limit']}\n{GUIDE['drop']}\nEOF")
        with shop.connect() as connection:
            assert connection.execute("show max_slot_wal_keep_size").fetchone() == ("64GB",)
        assert "the server has no slot etl" in machine.run(watch, fails=True).stderr
        shop.server.stop()
        assert "can't be asked" in machine.run(watch, fails=True).stderr


@pytest.mark.soak
def test_an_idle_publication_is_confirmed_all_the_same(tmp_path: Path) -> None:
    """Others' writes don't stay on the server because nothing is published: no heartbeat is needed."""
    with shop_and_machine(18, tmp_path) as (shop, machine):
        machine.run_shell(GUIDE["server"])
        with shop.connect() as connection:
            connection.execute(b"drop publication etl; create publication etl for table marker")
        machine.start(status_interval="1")
        machine.received(shop.work())
        with shop.connect() as connection:
            connection.execute("insert into doc select -i, repeat('x', 500) from generate_series(1, 20000) i")
        target = shop.server.current_lsn()
        behind = f"confirmed_flush_lsn >= '{target}'::pg_lsn"
        machine.wait(lambda: bool(shop.slot(behind)), "it is not confirmed")


@pytest.mark.soak
def test_after_a_failover_nothing_is_missing_and_nothing_twice(tmp_path: Path) -> None:
    """The receiver, which knows both servers, finds the new primary by itself."""
    with shop_and_machine(18, tmp_path, ROTATE_SECONDS="0") as (shop, machine):
        machine.run_shell(GUIDE["failover"])
        standby = Standby(shop.server)
        with standby:
            both = (shop.server, standby)
            machine.set(
                PGHOST=",".join(str(server.folder) for server in both),
                PGPORT=",".join(str(server.port) for server in both),
                PGTARGETSESSIONATTRS="read-write",
            )
            machine.start()
            machine.received(shop.work())
            machine.run("pg-landing-rotate@.service")
            ready = f"psql -d postgres -XAt <<'EOF'\n{GUIDE['ready']}\nEOF"
            elsewhere = Machine(standby, tmp_path / "standby")
            machine.wait(lambda: "etl|t" in elsewhere.run_shell(ready), "the standby's slot does not get ready")
            shop.work()  # whether it gets to the standby in time or not
            shop.server.crash()
            standby.promote()
            elsewhere.run_shell(f"psql -d postgres <<'EOF'\n{GUIDE['promoted']}\nEOF")
            shop.server = standby
            machine.received(shop.work())
            machine.end(signal.SIGINT)
            machine.run("pg-landing-rotate@.service")
            assert machine.run("pg-landing-watch@.service", fails=True).stderr.count("\n") == 1, "nobody receives now"
            shop.assert_is(replayed(machine.files), tmp_path)


@pytest.mark.soak
def test_a_slot_can_have_both_in_18(tmp_path: Path) -> None:
    with shop_and_machine(18, tmp_path) as (shop, machine):
        machine.run_shell("psql -d shop -v failover=true -v two_phase=true -f conf/landing/setup.sql")
        assert shop.slot("two_phase and failover")


def test_every_block_of_the_guide_is_run() -> None:
    """A block that is added is marked, or said here to be none that is run."""
    text = (ROOT / "docs/landing.md").read_text()
    blocks = re.findall(r"(<!-- tested: [\w ]+ -->\n)?```(\w+)\n(.*?)```", text, re.DOTALL)
    assert [block for marked, kind, block in blocks if not marked and kind != "yaml" and "aws s3 cp" not in block] == []
    run = Path(__file__).read_text()
    assert [name for name in GUIDE if name != "install" and f'GUIDE["{name}"]' not in run.replace("'", '"')] == []
    assert GUIDE["install"].strip() == "sudo conf/landing/install.sh"
