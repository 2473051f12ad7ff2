"""conf/landing/setup.sql and the README's nightly commands work in either order, and again; mismatches are reported."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support.servers.landing_machine import CONF, ROOT, replayed
from tests.support.servers.postgres import Server

pytestmark = pytest.mark.e2e

_README = (ROOT / "README.md").read_text()
_NIGHTLY = _README[_README.index("## Nightly use") :]
ONCE, EVERY_NIGHT = re.findall(r"```sh\n(.*?)```", _NIGHTLY, re.DOTALL)[:2]
# What README.md and docs/landing.md said before setup.sql could be run again.
OLD_RECIPE = """
psql -d shop -c "create publication etl for all tables"
pg_recvlogical -d shop --slot=etl --create-slot --plugin=pgoutput
"""


class Database:
    """The database shop, and a shell in a folder with the README's paths."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.folder = folder
        (folder / "conf").mkdir()
        (folder / "conf" / "landing").symlink_to(CONF)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": f"{self.server.programs}:/usr/bin:/bin",
            "PGHOST": str(self.server.folder),
            "PGPORT": str(self.server.port),
            "PGUSER": "postgres",
        }
        command = ["bash", "-euo", "pipefail", "-c", script]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)

    def setup(self, *options: str, database: str = "shop") -> subprocess.CompletedProcess[str]:
        given = " ".join(f"-v {option}" for option in options)
        return self.run(f"psql -d {database} {given} -f conf/landing/setup.sql")

    def psql(self, *statements: str) -> None:
        with psycopg.connect(self.server.conninfo.replace("dbname=postgres", "dbname=shop"), autocommit=True) as shop:
            for statement in statements:
                shop.execute(statement.encode())


@pytest.fixture
def shop(server: Server, tmp_path: Path) -> Iterator[Database]:
    server.psql("create database shop")
    yield Database(server, tmp_path)
    server.psql("select pg_drop_replication_slot(slot_name) from pg_replication_slots")
    server.psql("drop database shop with (force)")
    server.psql("drop role if exists landing")
    server.psql("drop publication if exists etl")


def succeeds(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_readmes_nights_work_before_and_after_the_setup(shop: Database) -> None:
    night = EVERY_NIGHT.partition("./spark-submit.sh")[0]
    shop.psql("create table a (b int primary key)")
    succeeds(shop.run(ONCE))
    shop.psql("insert into a values (1)")
    succeeds(shop.run(night))
    succeeds(shop.setup())
    succeeds(shop.run(ONCE))
    shop.psql("insert into a values (2)")
    succeeds(shop.run(f"sleep 1; {night}"))
    files = sorted((shop.folder / "landing" / "shop").glob("*.bin"))
    assert len(files) == 2
    [table] = replayed(files).tables().values()
    assert len(table.rows) == 2


def test_an_earlier_recipe_is_kept(shop: Database) -> None:
    succeeds(shop.run(OLD_RECIPE))
    shop.psql("create table a (b int primary key)", "insert into a values (1)")
    for _ in range(2):
        succeeds(shop.setup())
    succeeds(shop.run(f"mkdir -p landing/shop; {EVERY_NIGHT.partition('./spark-submit.sh')[0]}"))
    [file] = (shop.folder / "landing" / "shop").glob("*.bin")
    assert len(replayed([file]).tables()) == 1, "the slot was not created again, and lost nothing"


def test_tables_without_changes_are_listed(shop: Database) -> None:
    shop.psql("create table listed (a int)", "create table other (a int)", "create publication etl for table listed")
    done = shop.setup()
    succeeds(done)
    assert re.findall(r"^ (\w[\w. ]*\w) *$", done.stdout, re.MULTILINE)[-4:] == [
        *("not published", "public.other"),
        *("without a key", "public.listed"),
    ]
    shop.psql("alter publication etl set (publish = 'insert')")
    assert "The publication etl leaves out some operations" in shop.setup().stdout


def test_nothing_is_created_that_would_break_the_application(shop: Database) -> None:
    shop.psql(
        "create table with_key (a int primary key)",
        "create table keyless (a int)",
        "create table parted (a int) partition by list (a)",
        'create table "a part" partition of parted default',
        "create unlogged table unlogged (a int)",
        "create table nothing (a int primary key)",
        "alter table nothing replica identity nothing",
        "create table published (a int)",
        "create publication other for table published",
    )
    done = shop.setup()
    assert done.returncode == 3
    listed = done.stdout.partition("without a key")[2]
    assert re.findall(r"^ ([^ ].*?) *$", listed, re.MULTILINE) == [
        "public.keyless",
        'public."a part"',
        "public.nothing",
    ]
    assert "nothing was created: PostgreSQL would reject UPDATEs" in done.stderr
    assert "-v keyless=accept" in done.stderr
    created = "select count(*) from pg_publication where pubname = 'etl' union all select count(*) from pg_roles "
    created += "where rolname = 'landing' union all select count(*) from pg_replication_slots"
    assert shop.server.psql(created).split() == ["0", "0", "0"]
    succeeds(shop.setup("keyless=accept"))
    succeeds(shop.setup())


def test_what_was_set_up_can_be_removed(shop: Database) -> None:
    shop.psql("create table a (b int primary key)")
    remove = "psql -d shop -f conf/landing/setup-remove.sql"
    succeeds(shop.setup("slot=named"))
    succeeds(shop.run(f"{remove} -v slot=named"))
    succeeds(shop.run(remove))
    left = "select (select count(*) from pg_publication), (select count(*) from pg_event_trigger), "
    left += "(select count(*) from pg_replication_slots)"
    shop.psql("create table c (d int)", "alter table c add column e int")
    assert shop.run(f'psql -d shop -XAtc "{left}"').stdout.strip() == "0|0|0"
    succeeds(shop.setup("keyless=accept"))


def test_tables_whose_key_is_not_sent_are_listed(shop: Database) -> None:
    shop.psql(
        "create table generated (a int, b int generated always as (a + 1) stored, c int, primary key (a, b))",
        "create table listed (a int, b int, primary key (a, b))",
        "create table complete (a int primary key, b int generated always as (a + 1) stored)",
        "create table covering (a int, b int generated always as (a + 1) stored, primary key (a) include (b))",
        "create publication etl for table generated, complete, covering, listed (b)",
    )
    done = shop.setup()
    listed = done.stdout.partition("key is not sent")[2].partition(" row")[0]
    assert re.findall(r"^ ([\w.]+) +\| ([\w, ]+)$", listed, re.MULTILINE) == [
        ("public.generated", "b"),
        ("public.listed", "a"),
    ]


def test_partitions_with_another_identity_are_listed(shop: Database) -> None:
    partitions = [(root, n) for root in ("good", "bad") for n in "12"]
    shop.psql(
        "create table good (a int, b int, primary key (a, b)) partition by list (a)",
        "create table bad (a int, b int) partition by list (a)",
        *(f"create table {root}_{n} partition of {root} for values in ({n})" for root, n in partitions),
        "alter table bad_1 add primary key (b) include (a)",
        "alter table bad_2 replica identity full",
        "create publication etl for all tables with (publish_via_partition_root = true)",
    )
    done = shop.setup()
    succeeds(done)
    listed = done.stdout.partition("partition with another identity")[2].partition(" row")[0]
    assert re.findall(r"^ ([\w.]+) +\| (\w+) +\| ([\w.]+)", listed, re.MULTILINE) == [
        ("public.bad_1", "b", "public.bad")
    ]


def refuses(done: subprocess.CompletedProcess[str], *problems: str) -> None:
    assert done.returncode == 3, done.stdout + done.stderr
    assert "landing needs the changes that are listed above" in done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith(("The slot", "The role"))] == [*problems]


def test_a_role_that_cant_receive_is_reported(shop: Database) -> None:
    shop.psql("create role landing")
    changes = ["ALTER ROLE landing LOGIN", "ALTER ROLE landing REPLICATION"]
    refuses(
        shop.setup(),
        f"The role landing can't log in: {changes[0]}",
        f"The role landing can't replicate: {changes[1]}",
    )
    shop.psql(*changes)
    succeeds(shop.setup())
    shop.psql("alter role landing noreplication", "create role rds_replication", "grant rds_replication to landing")
    succeeds(shop.setup())
    shop.psql("drop role rds_replication")


def test_settings_that_change_values_are_reported(shop: Database) -> None:
    def reported() -> list[str]:
        done = shop.setup()
        succeeds(done)
        return [line for line in done.stdout.splitlines() if line.startswith("Without the PGOPTIONS")]

    assert reported() == []
    shop.psql("alter database shop set extra_float_digits = 0", "alter role landing set datestyle = 'German, DMY'")
    rounded, held = reported()
    assert "keys that differ only in later digits become one row, because of extra_float_digits = 0: " in rounded
    assert "tables with dates or times are held, because of DateStyle = German, DMY: " in held
    shop.psql(*(line.rpartition(": ")[2] for line in (rounded, held)))
    assert reported() == [], "the printed statements overrule database and role"
    shop.psql("create database latin template template0 encoding 'LATIN1' locale 'C'")
    try:
        assert "because of client_encoding = LATIN1: " in shop.setup("slot=latin", database="latin").stdout
    finally:
        shop.psql("select pg_drop_replication_slot('latin')", "drop database latin with (force)")


def test_the_readmes_receiver_overrules_settings_of_the_database(shop: Database) -> None:
    shop.psql("create table f (id int primary key, x float8)", "create table k (x float8 primary key, v text)")
    succeeds(shop.run(ONCE))
    shop.psql("alter database shop set extra_float_digits = 0")
    shop.psql(
        "insert into f values (1, 0.1::float8 + 0.2)", "insert into k values (0.1::float8 + 0.2, 'a'), (0.3, 'b')"
    )
    succeeds(shop.run(EVERY_NIGHT.partition("./spark-submit.sh")[0]))
    [file] = (shop.folder / "landing" / "shop").glob("*.bin")
    tables = replayed([file]).tables().values()
    rows = {table.shape.relation.name: sorted(row["x"] for row in table.rows) for table in tables}
    assert rows == {"f": [0.1 + 0.2], "k": [0.3, 0.1 + 0.2]}


def test_a_slot_of_another_kind_or_database_is_reported(shop: Database) -> None:
    shop.psql("select pg_create_physical_replication_slot('etl')")
    other_name = "choose another name with -v slot= and SLOT="
    refuses(shop.setup(), f"The slot etl has no plugin instead of pgoutput: drop it, or {other_name}")
    shop.psql("select pg_drop_replication_slot('etl')")
    succeeds(shop.setup(database="postgres"))
    refuses(shop.setup(), f"The slot etl is of the database postgres: {other_name}")
    succeeds(shop.setup("slot=etl_shop"))
    succeeds(shop.setup("slot=etl_shop"))


def test_a_lost_slot_is_reported(shop: Database) -> None:
    succeeds(shop.setup())
    shop.psql("alter system set max_slot_wal_keep_size = '1MB'", "select pg_reload_conf()")
    shop.psql("create table a (b text)")
    for _ in range(4):
        shop.psql("insert into a values ('more')", "select pg_switch_wal()")
    shop.psql("checkpoint", "alter system reset max_slot_wal_keep_size", "select pg_reload_conf()")
    lost = "The slot etl is lost, with changes that were not received: see docs/landing.md, A lost slot"
    refuses(shop.setup(), lost)


def test_a_slot_gets_its_options_later(shop: Database) -> None:
    succeeds(shop.setup())
    done = shop.setup("two_phase=on", "failover=true")
    if shop.server.version == 16:
        fixed = "this server can't change it"
        refuses(done, f"The slot etl needs two_phase true: {fixed}", f"The slot etl needs failover true: {fixed}")
        return
    commands = re.findall(r"end the receiver, and run (psql .*)", done.stdout)
    refuses(
        done,
        *(
            f"The slot etl needs {name} true: end the receiver, and run {command}"
            for name, command in zip(("two_phase", "failover"), commands, strict=True)
        ),
    )
    for command in commands:
        succeeds(shop.run(command))
    succeeds(shop.setup("two_phase=true", "failover=on"))
    succeeds(shop.setup())
    assert "The slot etl needs failover false: " in shop.setup("failover=false").stdout


def test_a_databases_name_is_not_part_of_a_printed_command(shop: Database) -> None:
    name = 'x"; touch p; echo "\x1b[31m'
    quoted = '"' + name.replace('"', '""') + '"'
    shop.psql(f"create database {quoted}")
    try:
        environment_name = name.replace("'", "")
        succeeds(shop.run(f"psql -d '{environment_name}' -f conf/landing/setup.sql"))
        other = shop.setup()
        assert "The slot etl is of the database x" in other.stdout
        assert "\x1b" not in other.stdout
        if shop.server.version == 18:
            done = shop.run(f"psql -d '{environment_name}' -v failover=true -f conf/landing/setup.sql")
            assert 'end the receiver, and run psql "' in done.stdout
            assert "touch" not in done.stdout
    finally:
        shop.psql("select pg_drop_replication_slot('etl')", f"drop database {quoted} with (force)")
