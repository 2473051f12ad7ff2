"""The undo's script on a real server: the server is then as if the transaction had never been, except for conflicts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import psycopg
import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.answers.moment.read import archive_of
from pgoutput_etl.answers.undo.request import UndoRequest
from pgoutput_etl.answers.undo.run import undo, undone_tables
from tests.support.jobs import Job
from tests.support.servers.postgres import Server

pytestmark = [pytest.mark.spark, pytest.mark.e2e]

SCHEMA = """
create table parent (id int primary key, name text unique, note text);
create table child (
    id int primary key, parent int not null references parent on update cascade on delete cascade,
    amount numeric, big text
);
alter table child alter big set storage external;
create table bag (a int, b text);
alter table bag replica identity full;
insert into parent select i, 'p' || i, null from generate_series(1, 3) i;
create publication p for all tables;
"""

BIG = "repeat(md5('{}'), 100)"


class History:
    """Random transactions, as SQL. Later ones insert no children of new parents."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.children: set[int] = set()
        self.families: list[int] = []
        self.free = list(range(1, 15))
        self.bag: list[tuple[int, str]] = []
        self.next_parent = 10

    def transaction(self, number: int) -> list[str]:
        return [self._statement(number) for _ in range(self.random.randint(1, 5))]

    def _statement(self, number: int) -> str:
        random = self.random
        kinds = [self._insert, self._insert, self._family, self._add_to_bag]
        kinds += [self._update, self._update, self._delete, self._move] if self.children else []
        kinds += [self._remove_family, self._rename_family] if self.families else []
        kinds += [self._remove_from_bag, self._update_bag] if self.bag else []
        return random.choice(kinds)(number)

    def _insert(self, number: int) -> str:
        key = self.free.pop(self.random.randrange(len(self.free))) if self.free else 100 + number
        self.children.add(key)
        return f"insert into child values ({key}, {self.random.randint(1, 3)}, {number}.50, {BIG.format(number)})"

    def _child(self) -> int:
        return self.random.choice(sorted(self.children))

    def _update(self, number: int) -> str:
        values = self.random.choice([f"amount = {number}", "amount = null", f"big = {BIG.format(number)}"])
        return f"update child set {values} where id = {self._child()}"

    def _delete(self, number: int) -> str:  # noqa: ARG002
        key = self._child()
        self.children.remove(key)
        self.free.append(key)
        return f"delete from child where id = {key}"

    def _move(self, number: int) -> str:
        old, new = self._child(), self.free.pop(0) if self.free else 200 + number
        self.children -= {old}
        self.children |= {new}
        self.free.append(old)
        return f"update child set id = {new} where id = {old}"

    def _family(self, number: int) -> str:
        key, self.next_parent = self.next_parent, self.next_parent + 1
        self.families.append(key)
        children = f"insert into child select {1000 * key} + i, {key}, i, 'c' from generate_series(1, 2) i"
        return f"insert into parent values ({key}, 'p{key}', 'by {number}'); {children}"

    def _remove_family(self, number: int) -> str:  # noqa: ARG002
        return f"delete from parent where id = {self.families.pop(self.random.randrange(len(self.families)))}"

    def _rename_family(self, number: int) -> str:
        old = self.families.pop()
        self.families.append(self.next_parent)
        self.next_parent += 1
        return f"update parent set id = {self.families[-1]}, note = 'moved by {number}' where id = {old}"

    def _add_to_bag(self, number: int) -> str:
        self.bag.append((self.random.randint(1, 2), f"it's {number % 3}"))
        return f"insert into bag values ({_bag_values(self.bag[-1])})"

    def _remove_from_bag(self, number: int) -> str:  # noqa: ARG002
        row = self.bag.pop(self.random.randrange(len(self.bag)))
        return f"delete from bag where ctid = (select ctid from bag where (a, b) = ({_bag_values(row)}) limit 1)"

    def _update_bag(self, number: int) -> str:
        row = self.bag.pop(self.random.randrange(len(self.bag)))
        self.bag.append((row[0] + 1, f"new {number}"))
        one = f"(select ctid from bag where (a, b) = ({_bag_values(row)}) limit 1)"
        return f"update bag set a = a + 1, b = 'new {number}' where ctid = {one}"


def _bag_values(row: tuple[int, str]) -> str:
    return f"{row[0]}, '" + row[1].replace("'", "''") + "'"


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 13))
def test_the_server_is_as_if_the_transaction_had_never_been(
    spark: SparkSession, tmp_path: Path, landing: Path, seed: int
) -> None:
    history, random = History(seed), Random(-seed)
    transactions = [history.transaction(number) for number in range(1, 26)]
    bad = random.randrange(4, 22)
    job = Job(spark, tmp_path, landing)
    with Server(18 if seed % 2 else 16) as server:
        server.psql(SCHEMA)
        server.create_slot("slot")
        xids = []
        for number, statements in enumerate(transactions):
            xids.append(int(server.psql(f"begin; select pg_current_xact_id(); {'; '.join(statements)}; commit")))
            if number in (7, 15, 24):
                server.recvlogical("slot", landing / f"{number:02}.bin", publications=["p"])
                assert job.run().exit_code == 0
        request = UndoRequest(str(tmp_path / "undo"), xid=xids[bad])
        tables = undone_tables(archive_of(spark, job.loaded()), request).tables
        summary = undo(spark, job.loaded(), request)
        later = {xid for table in summary.tables for xid in table.xids}
        assert later <= set(xids[bad + 1 :])
        done = server.run_scripts("-f", str(tmp_path / "undo" / "undo.sql"))
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
        after = contents(server)

        server.psql("create database without")
        server.database = "without"
        server.psql(SCHEMA)
        replay(server, [statements for number, statements in enumerate(transactions) if number != bad])
        conflicts = {(table.name, key) for table in tables for conflict in table.conflicts for key in conflict.keys}
        width = {table.name: len(table.key) or len(table.columns) for table in tables}
        assert without(after, conflicts, width) == without(contents(server), conflicts, width)


def replay(server: Server, transactions: Sequence[Sequence[str]]) -> None:
    """A statement that needs a row of the transaction that is missing changes nothing: that row is a conflict."""
    with server.connect() as connection:
        for statements in transactions:
            with connection.transaction():
                for statement in statements:
                    try:
                        with connection.transaction():
                            connection.execute(statement.encode())
                    except psycopg.errors.UniqueViolation:
                        pass


def contents(server: Server) -> dict[str, list[tuple[str | None, ...]]]:
    with server.connect() as connection:
        rows = {}
        for table, columns in (("parent", "id, name, note"), ("child", "id, parent, amount, big"), ("bag", "a, b")):
            texts = ", ".join(f"{column}::text" for column in columns.split(", "))
            rows[table] = sorted(connection.execute(f"select {texts} from {table}".encode()).fetchall(), key=str)
    return rows


def without(
    rows: dict[str, list[tuple[str | None, ...]]],
    conflicts: set[tuple[str, tuple[str | None, ...]]],
    width: dict[str, int],
) -> dict[str, list[tuple[str | None, ...]]]:
    return {
        table: [row for row in found if (table, row[: width.get(table, 1)]) not in conflicts]
        for table, found in rows.items()
    }


GUARDED = """
create table t (id int primary key, v text, updated_at timestamptz);
create table u (id int primary key, t int references t on delete cascade);
create publication p for all tables;
insert into t values (1, 'a', now()), (2, 'b', now());
"""

TRIGGER = """
create function touch() returns trigger language plpgsql as $$ begin new.updated_at := now(); return new; end $$;
create trigger touched before update on t for each row execute function touch();
"""


def test_the_script_changes_nothing_if_something_is_not_what_it_was(
    spark: SparkSession, tmp_path: Path, landing: Path
) -> None:
    with Server(18) as server:
        server.psql("create publication other")
        server.create_slot("slot")
        server.psql(GUARDED)
        xid = int(
            server.psql(
                "begin; select pg_current_xact_id(); update t set v = 'bad', updated_at = null where id = 1;"
                "insert into t values (3, 'c', null); insert into u values (30, 3); commit"
            )
        )
        server.recvlogical("slot", landing / "1.bin", publications=["p"])
        job = Job(spark, tmp_path, landing)
        assert job.run().exit_code == 0
        assert undo(spark, job.loaded(), UndoRequest(str(tmp_path / "undo"), xid=xid)).exit_code == 0
        for spoil, mend, error in (
            ("update t set v = 'other' where id = 1", "update t set v = 'bad' where id = 1", "finds 0 rows"),
            (
                "insert into u values (31, 3)",
                "delete from u where id = 31",
                "a cascade or a trigger updates or deletes",
            ),
            (
                TRIGGER,
                "drop trigger touched on t; drop function touch",
                "a trigger changes the row of step 3, public.t. Triggers: touched on public.t (BEFORE UPDATE). Disable",
            ),
        ):
            server.psql(spoil)
            before = server.psql("select * from t order by id; select * from u")
            done = server.run_scripts("-f", str(tmp_path / "undo" / "undo.sql"))
            assert done.returncode == 3
            assert error in done.stderr
            assert server.psql("select * from t order by id; select * from u") == before
            server.psql(mend)
        done = server.run_scripts("-f", str(tmp_path / "undo" / "undo.sql"))
        assert done.returncode == 0, done.stderr
        assert server.psql("select id, v from t order by id") == "1|a\n2|b\n"
        assert server.psql("select * from u") == ""
        assert server.psql("select bool_or(condeferrable) from pg_constraint where contype = 'f'") == "f\n"
