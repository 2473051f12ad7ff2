"""No statement that this project sends, prints, or documents calls anything but PostgreSQL's own functions, operators,
and types, whatever the schema `public` and the database's search path have."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgoutput_etl.answers.undo.script import UndoneTable, script
from pgoutput_etl.answers.undo.steps import Row, Step
from pgoutput_etl.answers.verify.key_ranges import Ranges
from pgoutput_etl.answers.verify.server_digest import ServerTable
from pgoutput_etl.config.settings import load_config
from pgoutput_etl.postgres import catalog, queries, source_server
from pgoutput_etl.types import column_type
from pgoutput_etl.types.canonical_text import ComparedColumn
from pgoutput_etl.work.snapshot.request import SnapshotRequest
from pgoutput_etl.work.snapshot.steps import Commands
from tests.spark.jobs.test_apply_job import run
from tests.support.servers.landing_machine import CONF, ROOT, Machine
from tests.support.servers.postgres import Server
from tests.support.servers.traps import set_traps, sprung

pytestmark = pytest.mark.e2e

DRIVER = "org.postgresql:postgresql:42.7.7"
FIRST = "public, pg_catalog"  # the database's owner may set it: then copies of PostgreSQL's functions come first
_SCRIPTS = ("setup", "catalog", "copy-end", "copy-changes", "copy-advance")
LANDING = {name: (CONF / f"{name}.sql").read_text() for name in _SCRIPTS}
LANDING["watch"] = (CONF / "watch.sql").read_text()
TABLES = """
create domain code as text;
create type mood as enum ('ok', 'bad');
create table keyed (id int primary key, v text, at timestamptz);
create table coded (code code, mood mood, v numeric, primary key (code, mood));
create table bag (a int, b text);
alter table bag replica identity full;
insert into keyed values (1, 'a', '2026-03-01'), (2, 'bad', null), (3, null, '2026-03-02');
insert into coded values ('x', 'ok', 1.0), ('y', 'bad', 2.50);
insert into bag values (1, 'x'), (1, 'x'), (null, 'y');
"""


def blocks(page: str) -> list[str]:
    return re.findall(r"```(?:sh|sql)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def documented(page: str, name: str) -> str:
    match = re.search(rf"<!-- tested: {name} -->\n```\w+\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert match is not None
    return "\n".join(line for line in match[1].splitlines() if not line.startswith("./spark-submit.sh"))


def undone(name: str, *columns: str, key: int, steps: list[Step], looked_up: dict[int, str]) -> UndoneTable:
    compared = tuple(ComparedColumn(column, column_type(25, -1)) for column in columns)
    return UndoneTable("public", name, compared, tuple(range(key)), tuple(steps), (), looked_up)


UNDO = "".join(
    script(
        "Undo",
        [
            undone(
                *("keyed", "id", "v", "at"),
                key=1,
                steps=[
                    Step(1, 1, Row(("1", "old", None)), Row(("1", "a", "2026-03-01 00:00:00+00"))),
                    Step(1, 2, Row(("9", "gone", None)), None),
                ],
                looked_up={},
            ),
            undone(
                *("coded", "code", "mood", "v"),
                key=2,
                steps=[Step(1, 3, None, Row(("y", "bad", "2.50")))],
                looked_up={0: "key_1_0", 1: "key_1_1"},
            ),
            undone("bag", "a", "b", key=0, steps=[Step(1, 4, None, Row(("1", "x")))], looked_up={}),
        ],
    )
)
TABLE = ServerTable("public", "keyed", ("id", "v", "at"))
SENT = [
    *(queries.POSITION, queries.TIME, queries.COPIED, catalog.QUERY, source_server.QUERY),
    *(queries.rewritten([1]), queries.sizes([1259]), queries.key_limits("public", "keyed", "id", False)),
    queries.copied_rows("public", "keyed", ["id", "v"], False, ["id > 0", *queries.shares_of_pages(9, 2)[:1]]),
    *(TABLE.digests(Ranges((0,), (2,))), TABLE.digests(Ranges((1,), (1 << 31,), is_hashed=True))),
    TABLE.rows(Ranges((0,), (2,)), [0, 1]),
]
PAGES = ("README.md", "docs/landing.md", "docs/snapshot.md", "docs/ledger.md", "docs/undo.md", "docs/verify.md")
TEXTS = [*LANDING.values(), UNDO, queries.SESSION, *SENT, *(block for page in PAGES for block in blocks(page))]


@pytest.fixture(params=["", FIRST], ids=["default", "public first"])
def trapped(server: Server, request: pytest.FixtureRequest) -> Iterator[Server]:
    """The database shop, with tables and traps."""
    server.psql("create database shop")
    server.database = "shop"
    try:
        server.psql(TABLES)
        set_traps(server, TEXTS)
        server.psql(search_path(request.param))
        yield server
    finally:
        server.database = "postgres"
        server.psql("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
        server.psql("drop database shop with (force); drop role if exists landing")


def search_path(path: str) -> str:
    return f"alter database shop {f'set search_path = {path}' if path else 'reset search_path'}"


def is_public_first(server: Server) -> bool:
    return server.psql("show search_path").strip() == FIRST


def without_path(text: str) -> str:
    return re.sub(r"(?i)set (local )?search_path = '';|SELECT pg_catalog.set_config\('search_path', '', .*", "", text)


def own(server: Server, statement: str) -> str:
    """The result of a statement without traps."""
    return server.psql(f"set search_path = ''; {statement}").strip()


def run_file(server: Server, folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    path = folder / "statements.sql"
    path.write_text(text)
    # setup.sql includes it, and would get a search_path from it.
    (folder / "catalog.sql").write_text(
        LANDING["catalog"] if text in LANDING.values() else without_path(LANDING["catalog"])
    )
    given = {"slot": "etl", "publication": "etl", "upto": own(server, "select pg_current_wal_flush_lsn()")}
    variables = (part for name, value in given.items() for part in ("-v", f"{name}={value}"))
    return server.run_scripts(*variables, "-o", str(folder / "output"), "-f", str(path))


def run_shell(server: Server, folder: Path, commands: str) -> str:
    """Runs documented commands in a folder."""
    reached = {"PGHOST": str(server.folder), "PGPORT": str(server.port), "PGUSER": "postgres"}
    environment = {**os.environ, **reached, "PATH": f"{server.programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    commands = commands.replace("jobs/snapshot.py", str(ROOT / "jobs/snapshot.py")).replace("conf/", f"{ROOT}/conf/")
    command = ["bash", "-euo", "pipefail", "-c", commands]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "ERROR" in done.stderr) == (0, False), done.stdout + done.stderr
    return done.stdout


def test_landing(trapped: Server, tmp_path: Path) -> None:
    with sprung(trapped) as names:
        for name in ("setup", "setup", "watch", "copy-end", "copy-changes", "copy-advance"):
            done = run_file(trapped, tmp_path, LANDING[name])
            assert done.returncode == 0, (name, done.stderr)
        trapped.psql("alter table public.keyed add more int default 7")
        trapped.psql("alter table public.keyed alter more type pg_catalog.text; alter table public.keyed drop more")
        machine = Machine(trapped, tmp_path / "machine", LANDED_BY="copy", PUBLICATION="etl")
        own(trapped, "insert into public.keyed values (10, 'landed')")
        machine.run("pg-landing-copy@.service")
        assert len(machine.files) == 1
        assert "slot etl active=f wal_status=reserved" in machine.run("pg-landing-watch@.service").stdout
    assert names == []
    # The same statements, if the search path stays, spring traps: so they are traps.
    for name, text in LANDING.items():
        if name not in ("catalog", "copy-end") or is_public_first(trapped):
            with sprung(trapped) as names:
                run_file(trapped, tmp_path, without_path(text))
            assert names, name


def test_undo(trapped: Server, tmp_path: Path) -> None:
    without_qualified_text = UNDO.replace("pg_catalog.format", "format")
    for spoiled in (without_path(UNDO), without_qualified_text):
        with sprung(trapped) as names:
            run_file(trapped, tmp_path, spoiled.replace("COMMIT;", "ROLLBACK;"))
        assert names
    with sprung(trapped) as names:
        done = run_file(trapped, tmp_path, UNDO)
        assert (done.returncode, done.stderr) == (0, "")
    assert names == []
    assert own(trapped, "select v from public.keyed where id in (1, 9) order by id") == "old\ngone"
    assert own(trapped, "select code from public.coded") == "x"
    assert own(trapped, "select count(*) from public.bag") == "2"


def test_queries(trapped: Server) -> None:
    """The statements of jobs, as they are sent after the first packet."""
    with sprung(trapped) as names, trapped.connect() as connection:
        connection.execute(queries.SESSION.encode())
        for query in SENT:
            if query.startswith("COPY"):
                with connection.cursor() as cursor, cursor.copy(query.encode()) as copied:
                    assert [*copied]
            else:
                assert connection.execute(query.encode()).fetchall() is not None
    assert names == []
    for query in (source_server.QUERY, TABLE.digests(Ranges((0,), (2,)))):
        with sprung(trapped) as names, trapped.connect() as connection:
            connection.execute(query.encode())
        assert names


def test_documented_and_printed_commands(trapped: Server, tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    nightly = readme[readme.index("## Nightly use") :]
    once, every_night = re.findall(r"```sh\n(.*?)```", nightly, re.DOTALL)[:2]
    config = tmp_path / "job.yaml"
    config.write_text(f"source: {{name: shop, landing: '{tmp_path}'}}\ntarget: {{root: '{tmp_path}'}}\n")
    url = f"postgresql://127.0.0.1:{trapped.port}/shop"
    printed = Commands(load_config(str(config), [], {}), SnapshotRequest(("public.*",), server=url), 180000)
    with sprung(trapped) as names:
        run_shell(trapped, tmp_path, once)
        own(trapped, "insert into public.keyed values (10, 'landed')")
        run_shell(trapped, tmp_path, every_night.partition("./spark-submit.sh")[0])
        assert len(list((tmp_path / "landing" / "shop").glob("*.bin"))) == 1
        run_shell(trapped, tmp_path, documented("docs/landing.md", "by hand"))
        for name in ("limit", "look", "drop"):
            sql = documented("docs/landing.md", name)
            run_shell(trapped, tmp_path, f"psql -v ON_ERROR_STOP=1 -d shop <<'END'\n{sql}\nEND\n")
        run_shell(trapped, tmp_path, f"{printed.create_slot('etl')}; {printed.drop_slot('etl')}")
        own(trapped, "create table public.orders (id int); create table public.lines (id int)")
        for name in ("catalog", "dump", "copy"):
            run_shell(trapped, tmp_path, documented("docs/snapshot.md", name))
        catalog.read_catalog((tmp_path / "catalog.json").read_text(), ["etl"], lambda _: True)
    assert names == []
    with sprung(trapped) as names:
        run_shell(
            trapped, tmp_path, f"{printed.create_slot('etl')}; {printed.drop_slot('etl')}".replace("pg_catalog.", "")
        )
    assert names


JOBS = """
import sys
from importlib import import_module

for line in sys.argv[1:]:
    name, *arguments = line.split()
    code = import_module(f"pgoutput_etl.jobs.{name}").COMMAND.main(arguments=arguments)
    if code != 0:
        sys.exit(f"{line}: exit code {code}")
"""
CHANGES = """
set search_path = '';
begin;
select pg_current_xact_id()::text;
update public.keyed set v = 'spoiled' where id = 1;
delete from public.coded where code = 'x';
insert into public.bag values (7, 'new');
commit;
"""


class Jobs:
    """Jobs by JDBC, with a URL that asks for the schema of the traps. Several run in one JVM."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder, self.landing = server, folder, folder / "landing"
        self.landing.mkdir()
        self.jdbc = f"--jdbc jdbc:postgresql://127.0.0.1:{server.port}/shop?currentSchema=public"
        (folder / "jobs.py").write_text(JOBS)
        source = f"{{name: shop, landing: '{self.landing}', snapshot: accept}}"
        (folder / "job.yaml").write_text(
            f"source: {source}\ntarget: {{root: '{folder / 'tables'}'}}\n"
            "spark: {spark.sql.shuffle.partitions: 1, spark.sql.adaptive.enabled: false}\n"
        )

    def run(self, *lines: str) -> None:
        parts = (line.partition(" ") for line in lines)
        named = [f"{name} --config {self.folder / 'job.yaml'} {rest}" for name, _, rest in parts]
        command = (ROOT / "spark-submit.sh", "--master=local[2]", "--packages", DRIVER, self.folder / "jobs.py")
        done = run(*command, *named)
        assert done.returncode == 0, done.stdout + done.stderr[-3000:]

    def receive(self, number: int) -> None:
        end = own(self.server, "select pg_current_wal_lsn()")
        self.server.recvlogical("etl", self.landing / f"{number}.bin", publications=["etl"], endpos=end)

    def load_and_verify(self) -> None:
        self.receive(0)
        loads = (f"snapshot --tables public.* {self.jdbc} {option}" for option in ("--check", "--connections 2"))
        self.run(*loads, "apply", f"verify {self.jdbc}")

    def undo_and_export(self) -> None:
        server, folder = self.server, self.folder
        before = rows(server)
        xid = server.psql(CHANGES).split()[0]
        self.receive(1)
        self.run(
            "apply",
            f"verify {self.jdbc}",
            f"snapshot --tables public.keyed {self.jdbc} --repair",
            f"export --tables public.* --out {folder / 'copy'}",
            f"export --tables public.* --format sql --out {folder / 'sql'}",
            f"undo --xid {xid} --out {folder / 'undo'}",
        )
        after = rows(server)
        for form in ("copy", "sql"):
            own(server, "truncate public.keyed, public.coded, public.bag")
            loaded = server.run_scripts("-f", "load.sql", cwd=folder / form)
            assert (loaded.returncode, rows(server)) == (0, after), loaded.stderr
        done = server.run_scripts("-f", str(folder / "undo" / "undo.sql"))
        assert (done.returncode, rows(server)) == (0, before), done.stderr


@pytest.mark.spark
@pytest.mark.parametrize(
    ("version", "path", "undoes"),
    [
        pytest.param(18, FIRST, False, marks=pytest.mark.soak),
        *(pytest.param(v, path, True, marks=pytest.mark.soak) for v in (16, 18) for path in (FIRST, "")),
    ],
)
def test_jobs(version: int, path: str, undoes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGUSER", "postgres")
    with Server(18 if version == 18 else 16) as server:
        server.psql("create database shop")
        server.database = "shop"
        server.psql(f"{TABLES} create publication etl for all tables;")
        server.create_slot("etl")
        set_traps(server, TEXTS)
        server.psql(search_path(path))
        own(server, "insert into public.keyed values (10, 'archived')")
        jobs = Jobs(server, tmp_path)
        with sprung(server) as names:
            jobs.load_and_verify()
            if undoes:
                jobs.undo_and_export()
        assert names == []


def rows(server: Server) -> list[str]:
    return [own(server, f"select t::text from public.{table} t order by 1") for table in ("keyed", "coded", "bag")]
