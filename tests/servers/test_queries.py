"""Results of the queries on a real server, compared with digests of the rows that it prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from pgoutput_etl.answers.verify.key_ranges import Digest, Ranges, merge_digests
from pgoutput_etl.answers.verify.server_digest import ServerTable
from pgoutput_etl.postgres import queries
from pgoutput_etl.postgres.copy_format import records
from pgoutput_etl.postgres.live_server import GUARDS
from tests.support.servers.postgres import Server

pytestmark = pytest.mark.e2e
Connection = psycopg.Connection[tuple[Any, ...]]
HASHED = tuple(range(1 << 24, 1 << 32, 1 << 24))
SETUP = """
create type pair as (a int, b text);
create table "Odd ""one" (
  "the %s key" bigint primary key, flag bool, short char(5), amount numeric(10,2), f float4, t timestamptz, b bytea,
  list text[], p pair, d interval, empty text
);
insert into "Odd ""one" select i * 10 - 500, i % 2 = 0, 'ab', i / 3.0, i / 3.0, '2026-03-01 12:00+02',
  decode('00ff', 'hex'), array['a b', null, i::text], '(,)', '1 year -3 days 04:05', nullif('', '')
  from generate_series(1, 99) i;
insert into "Odd ""one" ("the %s key", empty, p)
  values (-9223372036854775808, '', null), (9223372036854775807, 'ž', '(1,x)');
create table bag (a text, b int);
insert into bag select 'v' || i % 40, nullif(i % 3, 0) from generate_series(1, 200) i;
create table loose (a int, b text);
insert into loose values (null, 'null'), (1, 'one'), (20, 'twenty');
"""

SIZED = """
create schema sized;
create table sized.void (id int);
create table sized.plain (id int);
insert into sized.plain values (1), (2);
create table sized.root (id int) partition by list (id);
create table sized.one partition of sized.root for values in (1);
create table sized.two partition of sized.root for values in (2);
create table sized.none partition of sized.root default;
insert into sized.root values (1), (2);
analyze sized.one;
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(16) as started:
        started.psql(SETUP)
        yield started


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    with server.connect() as connection:
        connection.execute("set timezone = 'America/New_York'")
        connection.execute(queries.SESSION)
        yield connection


def answers(connection: Connection, query: str) -> list[dict[str, Any]]:
    cursor = connection.execute(query.encode())
    assert cursor.description is not None
    return [dict(zip((column.name for column in cursor.description), row, strict=True)) for row in cursor]


def test_rows_of_a_table_are_unknown_until_all_of_it_is_analyzed(server: Server) -> None:
    server.psql(SIZED)
    with server.connect() as connection:
        tables = connection.execute("select oid::int, relname from pg_class where relname in ('void', 'plain', 'root')")
        names = dict(tables.fetchall())

        def rows() -> dict[str, int | None]:
            return {names[row["oid"]]: row["rows"] for row in answers(connection, queries.sizes(names))}

        assert rows() == {"void": 0, "plain": None, "root": None}
        connection.execute("analyze sized.plain; analyze sized.two")
        assert rows() == {"void": 0, "plain": 2, "root": 2}
        connection.execute("drop schema sized cascade")


def printed(server: Server, table: str, folder: Path) -> tuple[list[str], list[tuple[str | None, ...]]]:
    path = folder / "rows.csv"
    server.copy_csv(table, path)
    header, *rows = records(path.read_bytes(), str(path))
    return [name or "" for name in header], [tuple(row) for row in rows]


def expected(rows: Sequence[Sequence[str | None]], ranges: Ranges) -> dict[int, Digest]:
    digests: dict[int, Digest] = {}
    for row in rows:
        digests.setdefault(ranges.range_of(row), Digest()).add(row)
    return digests


@pytest.mark.parametrize(
    ("name", "ranges", "used"),
    [
        ('Odd "one', Ranges((0,), (-400, -100, 200)), 4),
        ('Odd "one', Ranges((0,), ()), 1),
        ('Odd "one', Ranges((0,), HASHED, is_hashed=True), 84),
        ('Odd "one', Ranges((0, 2), (), is_hashed=True), 1),
        ("bag", Ranges((0, 1), HASHED, is_hashed=True), 95),
        ("loose", Ranges((0,), (2, 10)), 2),
    ],
)
def test_a_server_computes_the_digests_of_its_printed_rows(
    server: Server, connection: Connection, tmp_path: Path, name: str, ranges: Ranges, used: int
) -> None:
    header, rows = printed(server, f"public.{name}", tmp_path)
    table = ServerTable("public", name, tuple(header))
    want = expected(rows, ranges)
    assert merge_digests(answers(connection, table.digests(ranges))) == want
    assert abs(len(want) - used) <= 12, "the rows are distributed"

    some = sorted(want)[::2]
    result = answers(connection, table.rows(ranges, some))
    texts = Counter(tuple(row[f"t{i}"] for i in range(len(header))) for row in result)
    assert texts == Counter(row for row in rows if ranges.range_of(row) in some)
    assert {row["range"] for row in result} == set(some)


def test_a_column_excluded_from_the_comparison_is_not_read(connection: Connection) -> None:
    table = ServerTable("public", 'Odd "one', ("short", "the %s key"))
    first = next(row for row in answers(connection, table.rows(Ranges((1,), ()), [0])) if row["t1"] == "10")
    assert set(first) == {"range", "t0", "t1"}
    assert first["t0"] == "ab   ", "with its blanks, which a cast to text would remove"


def test_an_index_finds_the_ranges_of_a_not_null_key(server: Server, connection: Connection) -> None:
    server.psql(
        "create table big as select i as id from generate_series(1, 20000) i; alter table big add primary key (id);"
        "analyze big;"
    )
    ranges = Ranges((0,), (5000, 10000))
    for query in (ServerTable("public", "big", ("id",), False).rows(ranges, [1]),):
        plan = "\n".join(row["QUERY PLAN"] for row in answers(connection, f"explain {query}"))
        assert "Index" in plan, plan


def test_spark_reads_part_of_the_ranges_and_columns(server: Server, connection: Connection, tmp_path: Path) -> None:
    header, rows = printed(server, 'public.Odd "one', tmp_path)
    table, ranges = ServerTable("public", 'Odd "one', tuple(header), False), Ranges((0,), (-400, -100, 200))
    want = expected(rows, ranges)
    share = f'SELECT "range","rows","first","second" FROM ({table.digests(ranges)}) AS q  WHERE range IN (1, 3)'
    assert merge_digests(answers(connection, share)) == {number: want[number] for number in (1, 3)}
    one = f'SELECT "t0" FROM ({table.rows(ranges, [1, 3])}) AS q  WHERE range IN (3)'
    keys = [int(row[0] or "") for row in rows if int(row[0] or "") >= 200]
    assert sorted(int(row["t0"]) for row in answers(connection, one)) == sorted(keys)


def test_the_end_of_the_wal(server: Server, connection: Connection) -> None:
    [position] = answers(connection, queries.POSITION)
    assert (position["lsn"], position["version"] // 10000) == (server.current_lsn(), 16)


def test_the_size_of_the_database(connection: Connection) -> None:
    [size] = answers(connection, queries.DATABASE_BYTES)
    assert 1 << 22 < size["bytes"] < 1 << 28


def test_a_session_reads_no_view_and_no_rows_by_a_policy(server: Server, connection: Connection) -> None:
    """Their expressions would run with the reader's rights."""
    server.psql(
        "create role reader; create table guarded (id int); alter table guarded enable row level security;"
        "create policy everybody on guarded using (true); create view replaced as select 1 as id;"
        "grant select on guarded, replaced to reader"
    )
    # Planning evaluates an immutable function, also where no row can pass.
    server.psql(
        "create function told(text) returns bool immutable language plpgsql as"
        " $$ begin raise exception 'told as %', current_user; end $$;"
        "create table planned (id int); alter table planned enable row level security;"
        "create policy trap on planned using (told('me')); grant select on planned to reader"
    )
    columns = queries.copied_rows("public", "planned", ["id"], False, ["1 = 0"])
    for first_packet, error in (("", "told as reader"), (GUARDS, "affected by row-level security policy")):
        with psycopg.connect(f"{server.conninfo} options='{first_packet}'", autocommit=True) as other:
            other.execute("set role reader")
            with pytest.raises(psycopg.Error, match=error):
                other.execute(columns.encode())
    connection.execute("set role reader")
    for name, error in (
        ("guarded", "affected by row-level security policy"),
        ("replaced", "non-system view .* is rest"),
    ):
        query = queries.copied_rows("public", name, ["id"], False, [])
        with pytest.raises(psycopg.Error, match=error):
            connection.execute(query.encode())
