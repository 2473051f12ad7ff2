"""The undo's script on a real server, for rows that an archive would give: what it finds, and what stops it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgoutput_etl.answers.undo.script import UndoneTable, script
from pgoutput_etl.answers.undo.steps import Row, Step, Text
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


def undo(
    server: Server, folder: Path, *tables: UndoneTable, before: str = "", disables: bool = False
) -> subprocess.CompletedProcess[str]:
    """before: SQL that runs in the same session. disables: the tables' triggers."""
    path = folder / "undo.sql"
    path.write_text("".join(script("Undo", tables, disables)))
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


def test_a_trigger_that_stops_the_script_is_named(server: Server, tmp_path: Path) -> None:
    server.psql(
        """
        create table g (id int primary key, v text); insert into g values (1, 'x');
        create function keep() returns trigger language plpgsql as 'begin return null; end';
        create trigger "Kept" before delete on g for each row execute function keep()
        """
    )
    done = undo(server, tmp_path, table("g", "id", "v", steps=[(None, ("1", "x"))]))
    named = (
        'step 1, public.g finds 0 rows that are what they were. Triggers: "Kept" on public.g (BEFORE DELETE). Disable'
    )
    assert (done.returncode, named in done.stderr) == (3, True), done.stderr
    server.psql("drop table g; drop function keep")


TRIGGERS = """
create table r (id int primary key, v text) partition by range (id);
create table r1 partition of r for values from (0) to (10);
create table c (id int references r);
insert into r values (1, 'bad');
create function touch() returns trigger language plpgsql as $$ begin new.v := new.v || '!'; return new; end $$;
create function nothing() returns trigger language plpgsql as $$ begin return null; end $$;
create trigger touched before update on r for each row execute function touch();
create trigger seen after insert or update on r1 execute function nothing();
create trigger off before update on r for each row execute function touch();
alter table r disable trigger off;
alter table r1 enable always trigger seen;
create role keeper;
alter table r owner to keeper; alter table r1 owner to keeper; alter table c owner to keeper;
"""

STATES = "select tgrelid::regclass, tgname, tgenabled from pg_trigger where not tgisinternal order by 1, 2"


def test_triggers_are_named_before_a_change_and_disabled_on_request(server: Server, tmp_path: Path) -> None:
    """By the tables' owner, who is no superuser. Foreign keys stay."""
    server.psql(TRIGGERS)
    states = server.psql(STATES)
    one = table("r", "id", "v", steps=[(("1", "good"), ("1", "bad"))])
    as_owner = "set role keeper"
    done = undo(server, tmp_path, one, before=as_owner)
    notices = [line.partition("NOTICE:  ")[2] for line in done.stderr.splitlines() if "NOTICE" in line]
    assert notices == [
        "trigger seen on public.r1 (AFTER INSERT OR UPDATE) fires",
        "trigger touched on public.r (BEFORE UPDATE) may change restored rows",
    ]
    error = "nothing is undone: a trigger changes the row of step 1, public.r. Triggers: touched on public.r"
    assert (done.returncode, f"{error} (BEFORE UPDATE). Disable" in done.stderr) == (3, True), done.stderr
    assert (server.psql("select * from r"), server.psql(STATES)) == ("1|bad\n", states)

    done = undo(server, tmp_path, one, before=as_owner, disables=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert (server.psql("select * from r"), server.psql(STATES)) == ("1|good\n", states)

    server.psql("insert into c select 1")
    gone = table("r", "id", "v", steps=[(None, ("1", "good"))])
    done = undo(server, tmp_path, gone, before=as_owner, disables=True)
    assert (done.returncode, "violates foreign key constraint" in done.stderr) == (3, True), done.stderr
    assert server.psql(STATES) == states
    server.psql("drop table c, r; drop function touch, nothing; drop role keeper")


def test_keys_of_user_types_and_a_trigger_with_the_callers_path(server: Server, tmp_path: Path) -> None:
    """The trigger names neither the schema of its table nor that of its function, as an application's would."""
    server.psql(
        """
        create schema ext; create extension vector schema ext;
        create schema app; create domain app.code as varchar(5); create type app.mood as enum ('ok', 'bad');
        create domain app.place as ext.vector(2); create type app.pair as (a int, b text);
        create table app.audit (text text);
        create function app.shout(v text) returns text language sql as 'select upper(v)';
        create function app.log() returns trigger language plpgsql as
          $$ begin insert into audit values (shout(tg_op)); return coalesce(new, old); end $$;
        set search_path = app, ext;
        create table t (code code, mood mood, place place, pair pair, v text check (shout(v) <> 'NO'),
          primary key (code, mood, place, pair));
        create trigger audited after insert or update or delete on app.t for each row execute function app.log();
        """
    )
    key = ("it's", "ok", "[1,2]", "(1,x)")
    step = Step(0x100, 1, Row((*key, "old")), Row((*key, "bad")))
    other = Step(0x100, 2, Row(("b", "bad", "[3,4]", "(,)", "gone")), None)
    columns = tuple(ComparedColumn(name, column_type(25, -1)) for name in ("code", "mood", "place", "pair", "v"))
    looked_up = {i: f"key_1_{i}" for i in range(4)}
    undone = UndoneTable("app", "t", columns, (0, 1, 2, 3), (step, other), (), looked_up)
    path = "set search_path = app, public"
    server.psql(f"{path}; insert into app.t values ('it''s', 'ok', '[1,2]', '(1,x)', 'bad')")
    done = undo(server, tmp_path, undone, before=path)
    notice = "NOTICE:  trigger audited on app.t (AFTER INSERT OR UPDATE OR DELETE) fires\n"
    assert (done.returncode, done.stderr.endswith(notice), done.stderr.count("\n")) == (0, True, 1), done.stderr
    assert server.psql("select code, v from app.t order by 1") == "b|gone\nit's|old\n"
    assert server.psql("select text from app.audit") == "INSERT\nINSERT\nUPDATE\n"
    # The key's index finds a row; without one, the texts do.
    server.psql(f"{path}; insert into t select 'c' || i, 'ok', '[1,2]', '(1,x)', 'v' from generate_series(1, 900) i")
    server.psql("analyze app.t")
    explained = "".join(undone.lookups()) + f"explain {undone.reverse(step)};"
    plan = server.psql(f"set search_path = ''; {explained}")
    assert "Index Scan" in plan
    assert "OPERATOR(ext.=)" in plan
    server.psql("alter table app.t drop constraint t_pkey; alter table app.t replica identity full")
    back = UndoneTable("app", "t", columns, (0, 1, 2, 3), (_back(step),), (), looked_up)
    assert undo(server, tmp_path, back, before=path).returncode == 0
    assert server.psql("select v from app.t where code = 'it''s'") == "bad\n"


def _back(step: Step) -> Step:
    return Step(step.lsn, step.sequence, step.after, step.before)
