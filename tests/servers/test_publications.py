"""Publications of changing tables on real servers: a replay of each scenario's archive has the server's rows, or those
that are published. If the archive is ambiguous, the test asserts the defined result.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from pgoutput_etl.config.settings import load_config
from pgoutput_etl.errors import TableError
from pgoutput_etl.targets.plan import TableChanges
from pgoutput_etl.targets.planner import make_plan
from pgoutput_etl.types import NO_USER_TYPES
from tests.support.servers.postgres import Server, Version
from tests.support.servers.publications import Begin, Scene

pytestmark = pytest.mark.e2e

SLOTS: dict[str, tuple[Version, int, dict[str, str]]] = {
    "18-text": (18, 1, {}),
    "18-parallel-binary": (18, 4, {"streaming": "parallel", "binary": "true"}),
    "16-streaming": (16, 2, {"streaming": "on"}),
    "16-streaming-binary": (16, 3, {"streaming": "on", "binary": "true"}),
}
ROWS = "insert into <s>.t (id, v) select i, 'row ' || i from generate_series({}, {}) i"


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[Version, Server]]:
    with Server(version=16) as old, Server(version=18) as new:
        yield {16: old, 18: new}


QUICK = {"18-parallel-binary", "16-streaming"}


@pytest.fixture(params=[pytest.param(slot, marks=[pytest.mark.soak] * (slot not in QUICK)) for slot in SLOTS])
def begin(request: pytest.FixtureRequest, servers: dict[Version, Server], tmp_path: Path) -> Iterator[Begin]:
    version, protocol, options = SLOTS[request.param]
    name = f"s{crc32(request.node.name.encode())}"
    with servers[version].connect() as connection:
        scene = Scene(servers[version], connection, name, tmp_path, protocol, options)

        def begun(*arguments: str, two_phase: bool = False) -> Scene:
            scene.begin(*arguments, two_phase=two_phase)
            return scene

        yield begun
        scene.end()


# Names


def test_a_renamed_table_keeps_its_rows_and_a_recreated_one_has_none(begin: Begin) -> None:
    scene = begin()
    scene.run("create table <s>.t (id int primary key, v text)", ROWS.format(1, 3))
    scene.assert_is_followed("<s>.t")
    scene.run(
        "alter table <s>.t rename to u", "insert into <s>.u values (9, 'after')", "delete from <s>.u where id = 1"
    )
    scene.assert_is_followed("<s>.u")
    first = scene.oid("<s>.u")
    scene.run(
        "drop table <s>.u", "create table <s>.u (v text, id int primary key)", "insert into <s>.u values ('x', 1)"
    )
    scene.assert_is_followed("<s>.u")
    assert first != scene.oid("<s>.u")
    scene.run("create table <s>.w (id int primary key)", "insert into <s>.w values (5)")
    scene.run("alter table <s>.u rename to old", "alter table <s>.w rename to u", "insert into <s>.u values (6)")
    scene.assert_is_followed("<s>.u")
    scene.run("insert into <s>.old values ('y', 2)")
    scene.assert_is_followed("<s>.old")
    scene.assert_holds("<s>.u")


def test_two_tables_exchange_their_names(begin: Begin) -> None:
    scene = begin()
    scene.run("create table <s>.t (id int primary key, v text)", ROWS.format(1, 3))
    scene.run("create table <s>.u (id int primary key, w int)", "insert into <s>.u values (7, 7)")
    scene.land()
    scene.run_in_a_transaction(
        "alter table <s>.t rename to x", "alter table <s>.u rename to t", "alter table <s>.x rename to u"
    )
    scene.run("insert into <s>.t values (8, 8)", "update <s>.u set v = 'u' where id = 2")
    scene.assert_is_followed("<s>.t")
    scene.assert_holds("<s>.u")


def test_a_table_moves_to_another_schema(begin: Begin) -> None:
    scene = begin("for all tables")
    other = f"{scene.name}_other"
    scene.run("create table <s>.t (id int primary key, v text)", ROWS.format(1, 3), f"create schema {other}")
    scene.run(f"alter table <s>.t set schema {other}", f"insert into {other}.t values (9, 'moved')")
    scene.assert_is_followed(f"{other}.t")


def test_a_schema_is_renamed(begin: Begin) -> None:
    scene = begin("for all tables")
    scene.run("create table <s>.t (id int primary key, v text)", ROWS.format(1, 3))
    scene.land()
    scene.run("alter schema <s> rename to <s>_new", "insert into <s>_new.t values (9, 'after')")
    scene.assert_is_followed("<s>_new.t")


def test_a_rename_takes_effect_with_the_first_row_after_it(begin: Begin) -> None:
    scene = begin()
    scene.run("create table <s>.t (id int primary key, v text)", ROWS.format(1, 3), "alter table <s>.t rename to u")
    scene.land()
    scene.assert_holds("<s>.t", "select * from <s>.u")
    scene.run("update <s>.u set v = 'x' where id = 1")
    scene.assert_is_followed("<s>.u")


# Partitions

PARTITIONED = (
    "create table <s>.t (id int, region text, v text, primary key (id, region)) partition by list (region)",
    "create table <s>.north partition of <s>.t for values in ('n')",
    "create table <s>.south partition of <s>.t for values in ('s')",
    "insert into <s>.t values (1, 'n', 'one'), (2, 's', 'two'), (3, 's', 'three')",
)
# Created separately, with another column order and a dropped column.
ATTACHED = (
    "create table <s>.west (gone int, v text, region text not null, id int not null, primary key (id, region))",
    "alter table <s>.west drop gone",
    "alter table <s>.t attach partition <s>.west for values in ('w')",
)


def test_partitions_are_separate_tables(begin: Begin) -> None:
    scene = begin()
    scene.run(*PARTITIONED)
    scene.land()
    scene.run(*ATTACHED, "insert into <s>.t values (4, 'w', 'four')", "update <s>.t set region = 'w' where id = 2")
    scene.run("update <s>.t set v = 'changed' where id = 4", "alter table <s>.t detach partition <s>.south")
    scene.run("insert into <s>.south values (5, 's', 'five')")
    scene.land()
    for leaf in ("north", "south", "west"):
        scene.assert_holds(f"<s>.{leaf}")
    scene.run("truncate <s>.t")
    scene.land()
    for leaf in ("north", "west"):
        assert not scene.table(f"<s>.{leaf}").rows
    scene.assert_holds("<s>.south")


def test_partitions_through_their_root(begin: Begin) -> None:
    scene = begin("for tables in schema <s> with (publish_via_partition_root = true)")
    scene.run(*PARTITIONED)
    scene.assert_is_followed("<s>.t")
    scene.run(*ATTACHED, "insert into <s>.t values (4, 'w', 'four')", "update <s>.t set region = 'w' where id = 2")
    scene.run("update <s>.t set v = 'changed', id = 40 where id = 4")
    scene.assert_is_followed("<s>.t")
    scene.run(
        "alter table <s>.t add n int", "insert into <s>.t values (6, 'w', 'six', 6)", "delete from <s>.t where id = 3"
    )
    scene.run("update <s>.t set n = 1 where n is null")
    scene.assert_is_followed("<s>.t")
    scene.run("truncate <s>.t", "insert into <s>.t values (7, 'n', 'seven', 7)")
    scene.assert_is_followed("<s>.t")
    assert set(scene.replay.tables()) == {scene.oid("<s>.t")}


def test_attached_and_detached_rows_are_not_sent_through_the_root(begin: Begin) -> None:
    """ATTACH adds a partition's rows; DETACH, DROP, and TRUNCATE remove some. The archive has none of these changes."""
    scene = begin("for tables in schema <s> with (publish_via_partition_root = true)")
    scene.run(*PARTITIONED)
    scene.run(
        "alter table <s>.t detach partition <s>.south", "truncate <s>.north", "insert into <s>.t values (6, 'n', '')"
    )
    scene.land()
    assert scene.rows("<s>.t", "id") == [(1,), (2,), (3,), (6,)]
    scene.run("alter table <s>.t attach partition <s>.south for values in ('s')", "delete from <s>.t where id = 3")
    scene.land()
    assert scene.rows("<s>.t", "id") == [(1,), (2,), (6,)]


def test_publish_via_partition_root_is_switched_on_and_off(begin: Begin) -> None:
    """Rows are sent with the OID of the root or of the leaf: each table has the rows sent with its OID."""
    scene = begin()
    scene.run(*PARTITIONED)
    scene.land()
    scene.run("alter publication <s> set (publish_via_partition_root = true)")
    scene.run("insert into <s>.t values (4, 'n', 'four')", "update <s>.t set v = 'new' where id = 2")
    scene.run("delete from <s>.t where id = 3")
    scene.land()
    assert scene.rows("<s>.t", "id") == [(2,), (4,)]
    assert scene.rows("<s>.south", "id", "v") == [(2, "two"), (3, "three")]
    scene.run("alter publication <s> set (publish_via_partition_root = false)")
    scene.run("update <s>.t set v = 'newer' where id = 2")
    scene.land()
    assert scene.rows("<s>.south", "id", "v") == [(2, "newer"), (3, "three")]
    assert scene.rows("<s>.t", "id", "v") == [(2, "new"), (4, "four")]


# Generated columns

FULL_AND_DELETE = ("alter table <s>.t replica identity full", "delete from <s>.t where id = 3")


def test_generated_columns_are_not_published(begin: Begin) -> None:
    scene = begin()
    scene.run(
        "create table <s>.t (id int primary key, g int generated always as (id * 2) stored, v text)",
        ROWS.format(1, 3),
        "update <s>.t set v = 'x' where id = 2",
        *(FULL_AND_DELETE if scene.server.version < 18 else ()),  # 18 refuses generated columns in the identity
    )
    scene.land()
    scene.assert_holds("<s>.t", "select id, v from <s>.t", key=("id",))
    scene.run("alter table <s>.t alter g drop expression", "update <s>.t set v = 'y' where id = 1")
    scene.land()
    odd = {row["id"]: (row["g"], row["_pg_unrepresentable"]) for row in scene.table("<s>.t", key=("id",)).rows}
    assert odd[1] == (2, None)
    assert odd[2] == (None, {"g": None})  # not sent, and recorded as unknown
    scene.run("update <s>.t set v = 'z'")
    scene.assert_is_followed("<s>.t", key=("id",))


def test_published_generated_columns(begin: Begin) -> None:
    scene = begin()
    if scene.server.version < 18:
        pytest.skip("requires PostgreSQL 18")
    scene.run("alter publication <s> set (publish_generated_columns = stored)")
    scene.run(
        "create table <s>.t (id int primary key, g int generated always as (id * 2) stored, v text,"
        " w int generated always as (id * 3) virtual)",
        ROWS.format(1, 3),
        "update <s>.t set id = 9 where id = 2",
        "delete from <s>.t where id = 3",
    )
    scene.land()
    scene.assert_holds("<s>.t", "select id, g, v from <s>.t")
    scene.run("alter publication <s> set (publish_generated_columns = none)", "update <s>.t set v = 'x'")
    scene.land()
    scene.assert_holds("<s>.t", "select id, v from <s>.t")


# Column lists and row filters


def test_a_column_list_changes(begin: Begin) -> None:
    scene = begin("")
    scene.run("create table <s>.t (a text, id int primary key, b text, c int)")
    scene.run("alter publication <s> add table <s>.t (c, id, a)")
    scene.run("insert into <s>.t values ('a1', 1, 'b1', 1), ('a2', 2, 'b2', 2)", "update <s>.t set b = 'not sent'")
    scene.land()
    scene.assert_holds("<s>.t", "select a, id, c from <s>.t")
    scene.run("alter publication <s> set table <s>.t (id, a)", "update <s>.t set c = 7, a = 'new' where id = 1")
    scene.land()
    scene.assert_holds("<s>.t", "select a, id from <s>.t")
    scene.run("alter publication <s> set table <s>.t (id, a, c)", "insert into <s>.t values ('a3', 3, 'b3', 3)")
    scene.land()
    # Like an added column: its earlier values went with the dropped one.
    assert scene.rows("<s>.t", "id", "c") == [(1, None), (2, None), (3, 3)]
    scene.run("update <s>.t set a = a")
    scene.land()
    scene.assert_holds("<s>.t", "select a, id, c from <s>.t")


def test_a_column_list_and_a_filter_change_within_a_transaction(begin: Begin) -> None:
    scene = begin("")
    scene.run("create table <s>.t (id int primary key, v text, w int)")
    scene.run("alter publication <s> add table <s>.t (id, v)")
    with scene.server.connect() as another, scene.connection.transaction():
        scene.run(ROWS.format(1, 900))
        another.execute(f"alter publication {scene.name} set table {scene.name}.t".encode())
        scene.run(ROWS.format(901, 1800), "update <s>.t set w = id where id % 7 = 0")
    scene.land()
    have = dict(scene.rows("<s>.t", "id", "w"))
    assert len(have) == 1800
    # The server decides from which change on the list applies; all sent values are correct.
    assert {w for key, w in have.items() if key % 7} == {None}
    assert all(w == key for key, w in have.items() if w is not None)
    scene.run("update <s>.t set w = id")
    scene.assert_is_followed("<s>.t")


def test_a_row_filter_makes_inserts_and_deletes_of_updates(begin: Begin) -> None:
    scene = begin("")
    scene.run(
        "create table <s>.t (id int primary key, v text)", "alter publication <s> add table <s>.t where (id < 10)"
    )
    scene.run(ROWS.format(5, 14), "update <s>.t set id = -id where id > 12", "update <s>.t set id = 100 where id = 5")
    scene.run("delete from <s>.t where id in (6, 14, 12)", "update <s>.t set v = 'x'")
    scene.land()
    scene.assert_holds("<s>.t", "select * from <s>.t where id < 10")
    scene.run("alter publication <s> set table <s>.t where (id > 7)")
    scene.run("update <s>.t set v = 'y' where id in (-13, 9, 11)", "update <s>.t set id = 1 where id = 8")
    scene.land()
    # Rows that the new filter excludes keep their last sent values.
    now = [(-13, "x"), (-14, "x"), (11, "y"), (7, "x"), (9, "y")]
    assert scene.rows("<s>.t", "id", "v") == sorted(now, key=repr)


def test_a_column_list_adds_another_column(begin: Begin) -> None:
    """A column before existing ones can't be new: its values in existing rows are recorded as never sent."""
    scene = begin("")
    scene.run("create table <s>.t (id int primary key, a text, b text, c text)")
    scene.run("alter publication <s> add table <s>.t (id, c)", "insert into <s>.t values (1, 'a1', 'b1', 'c1')")
    scene.land()
    scene.run("alter publication <s> set table <s>.t", "insert into <s>.t values (2, 'a2', 'b2', 'c2')")
    scene.land()
    with pytest.raises(TableError, match="c was renamed to b, and its name given to a new column; or b is newly publi"):
        scene.table("<s>.t")
    published: dict[str, str | None] = {"a": None, "b": None}
    rows = {row["id"]: row for row in scene.table("<s>.t", declared=published).rows}
    assert rows[1]["_pg_unrepresentable"] == {"a": None, "b": None}
    assert (rows[1]["c"], rows[2]["a"], rows[2]["_pg_unrepresentable"]) == ("c1", "a2", None)
    scene.run("update <s>.t set c = 'new'")
    scene.land()
    scene.assert_holds("<s>.t", declared=published)


def test_a_column_list_replaces_one_column_by_another(begin: Begin) -> None:
    """This looks like a rename, unless the configuration declares otherwise."""
    scene = begin("")
    scene.run("create table <s>.t (id int primary key, a text, b text, c text)")
    scene.run("alter publication <s> add table <s>.t (id, a, c)", "insert into <s>.t values (1, 'a1', 'b1', 'c1')")
    scene.land()
    scene.run("alter publication <s> set table <s>.t (id, b, c)", "insert into <s>.t values (2, 'a2', 'b2', 'c2')")
    scene.land()
    assert scene.rows("<s>.t", "id", "b") == [(1, "a1"), (2, "b2")]
    assert scene.rows("<s>.t", "id", "b", declared={"b": None}) == [(1, None), (2, "b2")]
    rows = {row["id"]: row["_pg_unrepresentable"] for row in scene.table("<s>.t", declared={"b": None}).rows}
    assert rows == {1: {"b": None}, 2: None}


# Keys and replica identities


def test_replica_identities(begin: Begin) -> None:
    scene = begin()
    scene.run("create table <s>.t (id int primary key, v text, n int not null)")
    scene.run("insert into <s>.t select i, 'row ' || i, -i from generate_series(1, 20) i")
    scene.run("update <s>.t set id = 101 where id = 1")
    scene.land()
    scene.run("alter table <s>.t replica identity full", "update <s>.t set n = 5, id = 102 where id = 2")
    scene.run("delete from <s>.t where id = 3")
    scene.assert_is_followed("<s>.t")
    scene.run("create unique index by_n on <s>.t (n)", "alter table <s>.t replica identity using index by_n")
    scene.run(
        "update <s>.t set id = 104 where id = 4",
        "update <s>.t set n = 70 where id = 5",
        "delete from <s>.t where n = -6",
    )
    scene.assert_is_followed("<s>.t")
    scene.run("alter publication <s> set (publish = 'insert, truncate')", "alter table <s>.t replica identity nothing")
    scene.run("insert into <s>.t values (200, 'nothing', 200)")
    scene.assert_is_followed("<s>.t")
    scene.run("alter publication <s> set (publish = 'insert, update, delete, truncate')")
    scene.run("alter table <s>.t replica identity default", "update <s>.t set v = 'again' where id = 200")
    scene.assert_is_followed("<s>.t")


def test_the_primary_key_changes(begin: Begin) -> None:
    scene = begin()
    scene.run("create table <s>.t (id int, v text, n smallint not null, constraint k primary key (id))")
    scene.run("insert into <s>.t select i, 'row ' || i, i / 2 from generate_series(1, 20) i")
    scene.land()
    scene.run("alter table <s>.t drop constraint k", "alter table <s>.t add constraint k primary key (n, id)")
    scene.run(
        "update <s>.t set n = 100 where id = 7",
        "delete from <s>.t where id = 8",
        "update <s>.t set v = 'x' where id = 9",
    )
    scene.assert_is_followed("<s>.t")
    scene.run("alter table <s>.t rename id to key", "alter table <s>.t alter key type bigint")
    scene.run("update <s>.t set key = key + 10000000000 where key = 10", "update <s>.t set v = 'y' where key = 11")
    scene.run("delete from <s>.t where key = 12")
    scene.assert_is_followed("<s>.t")
    scene.run("alter table <s>.t alter key type text", "update <s>.t set v = 'z' where key = '13'")
    scene.assert_is_followed("<s>.t")


# Within transactions


def changing(scene: Scene, begin_id: int) -> None:
    scene.run(
        ROWS.format(begin_id, begin_id + 500),
        "alter table <s>.t add n int",
        f"update <s>.t set n = id where id % 3 = 0 and id > {begin_id}",
        "alter table <s>.t rename v to w",
        f"update <s>.t set w = 'renamed' where id % 5 = 0 and id > {begin_id}",
        "alter table <s>.t alter n type text using n::text",
        f"insert into <s>.t select i, 'row', 'n' from generate_series({begin_id + 501}, {begin_id + 900}) i",
    )


def test_a_transaction_with_rows_before_and_after_its_ddl(begin: Begin) -> None:
    scene = begin()
    scene.run("create table <s>.t (id int primary key, v text)", ROWS.format(1, 3))
    with scene.connection.transaction():
        changing(scene, 10)
    scene.assert_is_followed("<s>.t")


def test_ddl_of_an_aborted_transaction_and_of_a_savepoint(begin: Begin) -> None:
    scene = begin()
    scene.run("create table <s>.t (id int primary key, v text)", ROWS.format(1, 3))
    with scene.connection.transaction(force_rollback=True):
        changing(scene, 10)
    with scene.connection.transaction():
        scene.run(ROWS.format(5000, 5400))
        with scene.connection.transaction(force_rollback=True):
            changing(scene, 10)
        scene.run("update <s>.t set v = 'kept' where id = 1", ROWS.format(5401, 5900))
        with scene.connection.transaction():
            scene.run("alter table <s>.t add z int default 4", "update <s>.t set v = v")
    scene.assert_is_followed("<s>.t")


@pytest.mark.parametrize("end", ["commit prepared", "rollback prepared"])
def test_ddl_of_a_prepared_transaction(begin: Begin, end: str) -> None:
    scene = begin(two_phase=True)
    if scene.protocol < 3:
        scene.protocol = 3
    scene.run("create table <s>.t (id int primary key, v text)", ROWS.format(1, 3))
    scene.run("begin")
    changing(scene, 10)
    scene.run("prepare transaction '<s>'")
    scene.land()
    scene.run(f"{end} '<s>'", "insert into <s>.t values (9000, 'behind')")
    scene.assert_is_followed("<s>.t")


# Types, columns and their names


def test_an_enum_and_a_domain_change(begin: Begin) -> None:
    scene = begin()
    scene.run(
        "create type <s>.mood as enum ('sad', 'ok')",
        "create domain <s>.small as int check (value < 100)",
        "create table <s>.t (id int primary key, m <s>.mood, d <s>.small, v text)",
        "insert into <s>.t values (1, 'sad', 1), (2, 'ok', 2)",
        "alter type <s>.mood add value 'glad' before 'ok'",
        "insert into <s>.t values (3, 'glad', 3)",
        "alter domain <s>.small drop constraint small_check",
        "update <s>.t set d = 1000 where id = 1",
        "alter type <s>.mood rename to feeling",
        "insert into <s>.t values (4, 'ok', 4)",
        "alter table <s>.t alter d type bigint",
        "insert into <s>.t values (5, 'ok', 5)",
    )
    scene.assert_is_followed("<s>.t")
    scene.run("alter type <s>.feeling rename value 'ok' to 'fine'", "insert into <s>.t values (6, 'fine', 6)")
    scene.land()
    # Rows keep the label with which they were sent.
    assert scene.rows("<s>.t", "id", "m")[3:] == [(4, "ok"), (5, "ok"), (6, "fine")]


def test_values_computed_by_the_server_are_not_sent(begin: Begin) -> None:
    """ADD COLUMN … DEFAULT; the last column dropped and added again; a USING clause that computes values."""
    scene = begin()
    scene.run(
        "create table <s>.t (id int primary key, n int, v text)",
        "insert into <s>.t values (1, 1, 'old'), (2, 2, 'old')",
    )
    scene.run("alter table <s>.t add w int default 7", "insert into <s>.t (id) values (3)")
    scene.land()
    assert scene.rows("<s>.t", "id", "w") == [(1, None), (2, None), (3, 7)]
    scene.run("alter table <s>.t drop w", "alter table <s>.t add w int", "insert into <s>.t (id) values (4)")
    scene.land()
    assert scene.rows("<s>.t", "id", "w") == [(1, None), (2, None), (3, 7), (4, None)]
    scene.run("alter table <s>.t alter n type bigint using n * 100", "insert into <s>.t (id) values (5)")
    scene.land()
    assert scene.rows("<s>.t", "id", "n") == [(1, 1), (2, 2), (3, None), (4, None), (5, None)]
    scene.run("update <s>.t set v = v")
    scene.assert_is_followed("<s>.t")


def test_a_column_takes_the_name_of_a_dropped_one(begin: Begin) -> None:
    """Its position shows that it is another one, but not which; a place and type of its own show nothing."""
    scene = begin()
    scene.run(
        "create table <s>.t (id int primary key, a int, b text, c int)", "insert into <s>.t values (1, 10, 'b', 30)"
    )
    scene.run("alter table <s>.t drop a", "alter table <s>.t add a int", "insert into <s>.t values (2, 'b', 31, 20)")
    scene.land()
    with pytest.raises(TableError, match="names that both versions have are out of order"):
        scene.table("<s>.t")
    declared: dict[str, str | None] = {"a": None}
    scene.assert_holds("<s>.t", declared=declared)
    scene.run("alter table <s>.t drop c", "alter table <s>.t rename a to c", "insert into <s>.t values (3, 'b', 40)")
    scene.land()
    # c was another column's name; as only names and types are sent, this looks as if `a` had been dropped.
    assert scene.rows("<s>.t", "id", "c", declared=declared) == [(1, 30), (2, 31), (3, 40)]


def held(scene: Scene, table: str) -> str:
    """The reason for which the job would hold the table."""
    oid = scene.oid(table)
    written = scene.folder / "job.yaml"
    written.write_text(f"source: {{name: test, landing: '{scene.folder}'}}\ntarget: {{root: tables}}\n")
    config = load_config(str(written))
    changes = {oid: TableChanges(oid, inserts=1)}
    plan = make_plan(config, scene.replay.assembly.relations, changes, {}, NO_USER_TYPES)
    return " ".join(table.reason for table in plan.held)


def test_names_that_delta_refuses_hold_their_table(begin: Begin) -> None:
    scene = begin()
    scene.run(
        'create table <s>.t (id int primary key, "A" text, a text)',
        "insert into <s>.t values (1, 'A', 'a')",
        "create table <s>.u (id int primary key, _pg_commit_lsn text)",
        "insert into <s>.u values (1, 'mine')",
        'create table <s>.w (id int primary key, "`_unrep`" int, c0 text, "u.1" int, "_PG_xid " text)',
        "insert into <s>.w values (1, 2, 'three', 4, 'five')",
    )
    scene.land()
    assert held(scene, "<s>.t") == "columns 'A' and 'a' differ only in case, which Delta ignores"
    assert held(scene, "<s>.u") == "the column name '_pg_commit_lsn' is reserved in every mode"
    assert held(scene, "<s>.w") == ""
    scene.assert_holds("<s>.w")


def test_a_truncate_ends_all_uncertainty(begin: Begin) -> None:
    scene = begin()
    scene.run("create table <s>.t (id int primary key, a int, b int)", "insert into <s>.t values (1, 10, 20)")
    scene.land()
    scene.run_in_a_transaction(
        "alter table <s>.t rename a to x", "alter table <s>.t rename b to a", "alter table <s>.t rename x to b"
    )
    scene.run("insert into <s>.t values (2, 30, 40)")
    scene.land()
    with pytest.raises(TableError, match="names that both versions have are out of order"):
        scene.table("<s>.t")
    exchanged: dict[str, str | None] = {"a": "b", "b": "a"}
    scene.assert_holds("<s>.t", declared=exchanged)
    scene.run("truncate <s>.t", "insert into <s>.t values (3, 50, 60)")
    scene.assert_is_followed("<s>.t")


def test_not_null_is_not_in_the_archive(begin: Begin) -> None:
    scene = begin()
    scene.run("create table <s>.t (id int primary key, v text)", ROWS.format(1, 3))
    scene.run("alter table <s>.t alter v set not null", ROWS.format(4, 5), "alter table <s>.t alter v drop not null")
    scene.run("insert into <s>.t values (6, null)")
    scene.assert_is_followed("<s>.t")
