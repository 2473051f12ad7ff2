"""The roles of docs/security.md can do what their scripts and jobs need, and nothing to the tables."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import psycopg
import pytest
from psycopg import errors

from pgoutput_etl.postgres.queries import SESSION, copied_rows
from pgoutput_etl.postgres.source_server import QUERY, SourceServer
from tests.support.servers.landing_machine import CONF, ROOT, replayed
from tests.support.servers.postgres import Server

pytestmark = pytest.mark.e2e
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
# Until PostgreSQL 14, everybody may create functions in a new database's public schema.
BEFORE = """
create role app login;
grant create on schema public to app, public;
set role app;
create table public.before (id int primary key);
"""
BLOCKS = dict(re.findall(r"<!-- tested: ([\w ]+) -->\n```sql\n(.*?)```", PAGE, re.DOTALL))


class Shop:
    """A database whose tables belong to `app`, set up as the page says."""

    def __init__(self, server: Server) -> None:
        self.server = server
        server.psql(BEFORE)
        server.psql(BLOCKS["etl role"] + BLOCKS["public"])
        server.psql("set role app; create table public.after (id int primary key)")
        assert server.run_scripts("-f", str(CONF / "setup.sql")).returncode == 0
        server.psql("insert into after values (7)")

    def connected(self, role: str) -> psycopg.Connection[tuple[object, ...]]:
        return psycopg.connect(f"{self.server.conninfo} user={role}", autocommit=True)

    def psql(self, role: str, script: str) -> subprocess.CompletedProcess[bytes]:
        variables = ("slot=etl", "publication=etl", f"upto={self.server.current_lsn()}")
        command = [str(self.server.programs / "psql"), f"{self.server.conninfo} user={role}", "-XqAt"]
        command += [*(part for variable in variables for part in ("-v", variable)), "-v", "ON_ERROR_STOP=1"]
        return subprocess.run([*command, "-f", str(CONF / script)], capture_output=True, check=False)


@pytest.fixture(scope="module")
def shop(server: Server) -> Shop:
    return Shop(server)


def test_the_etl_role_reads_all_tables_and_writes_none(shop: Shop) -> None:
    with shop.connected("etl") as etl:
        etl.execute(SESSION.encode())
        row = etl.execute(QUERY.encode()).fetchone()
        assert row is not None
        found = SourceServer.of(str(row[0]))
        assert {table.table: table.may_select for table in found.tables} == {"before": True, "after": True}
        assert not found.may_replicate
        with etl.cursor() as cursor, cursor.copy(copied_rows("public", "after", ["id"], False, []).encode()) as rows:
            assert [bytes(row) for row in rows] == [b",7\n"]
        for change in (b"insert into public.after values (8)", b"create table public.more ()"):
            with pytest.raises((errors.ReadOnlySqlTransaction, errors.InsufficientPrivilege)):
                etl.execute(change)
        etl.execute(b"set default_transaction_read_only = off")
        with pytest.raises(errors.InsufficientPrivilege):
            etl.execute(b"insert into public.after values (8)")


def test_the_snapshot_role_may_create_a_slot_and_read(shop: Shop) -> None:
    with shop.connected("etl_snapshot") as reader:
        reader.execute(b"select pg_catalog.pg_create_logical_replication_slot('snapshot', 'pgoutput', true)")
        assert reader.execute(b"select id from public.after").fetchall() == [(7,)]


def test_the_landing_role_receives_without_rights_on_tables(shop: Shop, tmp_path: Path) -> None:
    with shop.connected("landing") as landing, pytest.raises(errors.InsufficientPrivilege):
        landing.execute(b"select from public.after")
    for script in ("watch.sql", "copy-end.sql", "copy-changes.sql"):
        done = shop.psql("landing", script)
        assert (done.returncode, done.stderr) == (0, b""), script
        assert done.stdout, script
    file = tmp_path / "0.bin"
    command = [str(shop.server.programs / "pg_recvlogical"), "-d", f"{shop.server.conninfo} user=landing", "--slot=etl"]
    options = ["-o", "proto_version=1", "-o", "publication_names=etl", "--no-loop"]
    subprocess.run(
        [*command, *options, f"--endpos={shop.server.current_lsn()}", "--start", "-f", str(file)], check=True
    )
    [table] = replayed([file]).tables().values()
    assert len(table.rows) == 1
    assert shop.psql("landing", "copy-advance.sql").returncode == 0


def test_others_create_nothing_in_public(shop: Shop) -> None:
    shop.server.psql("create role stranger login")
    with shop.connected("stranger") as stranger, pytest.raises(errors.InsufficientPrivilege):
        stranger.execute(b"create function public.trap() returns int return 1")
