"""The undo's script on a real server, for rows that an archive would give: what it finds, and what stops it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgoutput_etl.jobs.undo.script import UndoneTable, script
from pgoutput_etl.jobs.undo.steps import Row, Step, Text
from pgoutput_etl.types import column_type
from pgoutput_etl.types.canonical_text import ComparedColumn
from tests.support.servers.postgres import Server

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(18) as running:
        yield running


def table(
    name: str, *columns: str, key: int = 1, steps: list[tuple[tuple[Text, ...] | None, tuple[Text, ...] | None]]
) -> UndoneTable:
    """columns: of type text, as far as the script knows. key: the number of the key's columns. steps: rows before and
    after."""
    compared = tuple(ComparedColumn(column, column_type(25, -1)) for column in columns)
    made = [
        Step(0x100, number, None if old is None else Row(old), None if new is None else Row(new))
        for number, (old, new) in enumerate(steps)
    ]
    return UndoneTable("public", name, compared, tuple(range(key)), tuple(made), ())


def undo(server: Server, folder: Path, *tables: UndoneTable, before: str = "") -> subprocess.CompletedProcess[str]:
    """before: SQL that runs in the same session."""
    path = folder / "undo.sql"
    path.write_text("".join(script("Undo", tables)))
    return server.run_scripts(*(["-c", before] if before else []), "-f", str(path))


def succeeds(server: Server, folder: Path, *tables: UndoneTable, before: str = "") -> None:
    done = undo(server, folder, *tables, before=before)
    assert (done.returncode, done.stderr) == (0, "")


def test_equal_values_are_told_apart_by_their_texts(server: Server, tmp_path: Path) -> None:
    server.psql(
        "create type pair as (a int, b int); create table bag (v numeric, d jsonb, p pair);"
        """insert into bag values (1.0, '{"a": 1.0}', '(,)'), (1.00, '{"a": 1.00}', null)"""
    )
    inserted = ("1.00", '{"a": 1.00}', None)
    succeeds(server, tmp_path, table("bag", "v", "d", "p", key=0, steps=[(None, inserted)]))
    assert server.psql("select * from bag") == '1.0|{"a": 1.0}|(,)\n'
    server.psql("create table keyed (id numeric primary key, v text); insert into keyed values (1.0, 'x')")
    done = undo(server, tmp_path, table("keyed", "id", "v", steps=[(None, ("1.00", "x"))]))
    assert "finds 0 rows" in done.stderr


def test_a_step_uses_the_keys_index(server: Server) -> None:
    server.psql("create table big as select i as id, 'x' as v from generate_series(1, 5000) i")
    server.psql("alter table big add primary key (id); analyze big")
    undone = table("big", "id", "v", steps=[(("5", "w"), ("5", "x"))])
    assert "Index Scan" in server.psql(f"explain {undone.reverse(undone.steps[0])}")


def test_partitions_and_their_foreign_keys(server: Server, tmp_path: Path) -> None:
    server.psql(
        """
        create table fp (id int primary key);
        create table fc (id int, p int references fp on delete cascade, primary key (id)) partition by range (id);
        create table fc1 partition of fc for values from (0) to (10);
        create table bag_root (a int, b text) partition by range (a);
        create table bag1 partition of bag_root for values from (0) to (10);
        create table bag2 partition of bag_root for values from (10) to (20);
        insert into bag_root values (1, 'x'), (11, 'y');
        """
    )
    gone = [table("fp", "id", steps=[(("1",), None)]), table("fc1", "id", "p", steps=[(("5", "1"), None)])]
    gone[1] = UndoneTable("public", "fc1", gone[1].columns, (0,), (Step(0x100, 9, Row(("5", "1")), None),), ())
    succeeds(server, tmp_path, *gone)
    assert server.psql("select * from fc") == "5|1\n"
    assert server.psql("select bool_or(condeferrable) from pg_constraint where contype = 'f'") == "f\n"
    succeeds(server, tmp_path, table("bag_root", "a", "b", key=0, steps=[(None, ("11", "y"))]))
    assert server.psql("select * from bag_root") == "1|x\n"


def test_several_scripts_and_other_statements_in_a_session(server: Server, tmp_path: Path) -> None:
    server.psql("create table s (id int primary key, v text); insert into s values (1, 'a'), (2, 'bad'), (3, 'bad')")
    earlier = tmp_path / "earlier.sql"
    earlier.write_text("".join(script("Undo", [table("s", "id", "v", steps=[(("2", "b"), ("2", "bad"))])])))
    last = table("s", "id", "v", steps=[(("3", "c"), ("3", "bad"))])
    succeeds(server, tmp_path, last, before="update s set v = v where id = 1")
    done = server.run_scripts("-f", str(earlier), "-f", str(earlier))
    assert "step 1, public.s finds 0 rows" in done.stderr  # by the second one
    assert server.psql("select v from s order by id") == "a\nb\nc\n"


@pytest.mark.parametrize(
    ("prepare", "error"),
    [
        (
            "create publication p for table g where (v = 'x')",
            "publication p sends only some rows or operations of public.g",
        ),
        (
            "create publication p for table g with (publish = 'insert')",
            "publication p sends only some rows or operations",
        ),
        ("create table heir () inherits (g)", "other tables inherit from public.g"),
        ("alter role postgres set track_counts = off", "track_counts is off"),
        (
            "create table h (g int references g on delete cascade); insert into h values (2)",
            "a cascade or a trigger updates or deletes other rows of public.h",
        ),
    ],
)
def test_what_the_archive_may_not_have_stops_the_script(
    server: Server, tmp_path: Path, prepare: str, error: str
) -> None:
    server.psql("create table g (id int primary key, v text); insert into g values (1, 'x'), (2, 'y')")
    try:
        server.psql(prepare)
        done = undo(server, tmp_path, table("g", "id", "v", steps=[(None, ("2", "y"))]))
        assert (done.returncode, f"nothing is undone: {error}" in done.stderr) == (3, True), done.stderr
        assert server.psql("select count(*) from g") == "2\n"
    finally:
        server.psql(
            "alter role postgres reset track_counts; drop publication if exists p; drop table if exists h, heir, g"
        )
