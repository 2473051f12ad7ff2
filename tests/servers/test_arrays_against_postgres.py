"""Arrays, ranges, rows and user types from real servers: the text and the binary form must give the same values."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from pgoutput_etl.types import ColumnType, LoadedColumn, UserTypes, column_type, load_binary, load_text
from pgoutput_etl.types.registry import BUILT_IN_OIDS
from tests.core.types.test_arrays import array_out
from tests.support.scalar_values import SCALARS, any_text
from tests.support.servers.postgres import Server

pytestmark = pytest.mark.e2e

Connection = psycopg.Connection[Any]
COUNT = 400


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    with server.connect() as connected:
        connected.prepare_threshold = None  # the temporary table v has another type in each query
        connected.execute("select setseed(0.3)")
        yield connected


@dataclass(frozen=True, slots=True)
class Values:
    """A column of a table, as a walsender sends it in both forms."""

    column: ColumnType
    texts: list[bytes | None]
    sent: list[bytes | None]

    def loaded(self) -> LoadedColumn:
        """Load both forms and check that they give the same values."""
        assert [None if value is None else self.column.binary_text(value) for value in self.sent] == self.texts
        text, binary = load_text(self.column, self.texts), load_binary(self.column, self.sent)
        assert binary.unrepresentable == text.unrepresentable
        assert to_the_bit(binary.array) == to_the_bit(text.array)
        return text


def to_the_bit(array: pa.Array) -> list[str]:
    return [repr(value) for value in array.to_pylist()]


def values(connection: Connection, query: str, *parameters: object, **configured: str) -> Values:
    """The column x of the query's result. Domains have the name of their base type, as in Type messages."""
    connection.execute("drop table if exists v")
    connection.execute(f"create temp table v as select x, row_number() over () n from ({query}) q", parameters or None)
    forms = []
    for binary in (False, True):
        result = connection.execute("select x from v order by n", binary=binary).pgresult
        assert result is not None
        forms.append([result.get_value(row, 0) for row in range(result.ntuples)])
    described = "select atttypid, atttypmod from pg_attribute where attrelid = 'v'::regclass and attname = 'x'"
    oid, typmod = connection.execute(described).fetchone() or (0, 0)
    user_types = UserTypes(names(connection), {name.replace("__", "."): text for name, text in configured.items()})
    return Values(column_type(oid, typmod, user_types), forms[0], forms[1])


def names(connection: Connection) -> dict[int, tuple[str, str]]:
    """The names that logicalrep_write_typ sends."""
    query = """
        select t.oid, n.nspname, b.typname from pg_type t
        join pg_type b on b.oid = case t.typtype when 'd' then t.typbasetype else t.oid end
        join pg_namespace n on n.oid = b.typnamespace where t.oid >= 16384
    """
    return {oid: (namespace, name) for oid, namespace, name in connection.execute(query).fetchall()}


def test_built_in_types_have_the_servers_names(connection: Connection) -> None:
    query = "select typname, oid::int8 from pg_type where oid = any(%s)"
    oids = dict(connection.execute(query, [list(BUILT_IN_OIDS.values())]).fetchall())
    assert oids == {name: oid for name, oid in BUILT_IN_OIDS.items() if name in oids}
    assert len(oids) > 140
    elements = "select oid::int8, typelem::int8, typdelim from pg_type where typcategory = 'A' and oid < 10000"
    for oid, element, delimiter in connection.execute(elements).fetchall():
        column = column_type(oid, -1)
        if column.element is not None:
            assert column.element == column_type(element, -1)
            assert column.element.delimiter == delimiter.encode()


def random_arrays(name: str, rng: random.Random) -> Iterator[str | None]:
    """Array literals: most are lists, some have two or three dimensions or another lower bound."""
    pool = [value for value, _ in zip(SCALARS[name][1](rng, 500), range(3000), strict=False)]
    delimiter = ";" if name == "box" else ","

    def random_list(count: int) -> str:
        return array_out([None if rng.random() < 0.1 else rng.choice(pool) for _ in range(count)], delimiter)

    yield from ("{}", None)
    for _ in range(COUNT):
        length, kind = rng.randrange(7), rng.randrange(20)
        if kind == 0:
            yield "{" + delimiter.join(random_list(length + 1) for _ in range(rng.randint(1, 3))) + "}"
        elif kind == 1:
            inner = ("{" + delimiter.join((random_list(2), random_list(2))) + "}" for _ in range(2))
            yield "[2:3][0:1][-1:0]={" + delimiter.join(inner) + "}"
        elif kind == 2:
            yield f"[{length - 3}:{2 * length - 3}]=" + random_list(length + 1)
        else:
            yield random_list(length)


@pytest.mark.parametrize("name", [name for name in SCALARS if not name.startswith("interval ")])
def test_arrays(connection: Connection, name: str) -> None:
    literals = list(random_arrays(name, random.Random(name)))
    if "vector" in name and name != "tsvector":
        literals = [text for text in literals if text is None or text[0] != "["]
    arrays = values(connection, f"select s::{name.replace('::', '[]::')}[] x from unnest(%s::text[]) s", literals)
    loaded = arrays.loaded()
    element = arrays.column.element
    assert element is not None
    # the elements of each list, printed one by one by the server
    query = """
        select case when cardinality(x) = 0 or array_ndims(x) = 1 and array_lower(x, 1) = 1 then
            array(select case when e is not null then convert_to(format('%%s', e), 'UTF8') end from unnest(x) e)
        end from v order by n
    """
    for i, (elements,) in enumerate(connection.execute(query, []).fetchall()):
        if elements is None:
            assert not loaded.array[i].is_valid
            assert (i in loaded.unrepresentable) == (arrays.texts[i] is not None)
            continue
        expected = load_text(element, elements)
        if expected.unrepresentable:
            assert i in loaded.unrepresentable
        else:
            assert to_the_bit(loaded.array[i].values) == to_the_bit(expected.array)


RANGES = {
    "int4range": ("int4", "int4multirange"), "int8range": ("int8", "int8multirange"),
    "numrange": ("numeric", "nummultirange"), "daterange": ("date", "datemultirange"),
    "tsrange": ("timestamp", "tsmultirange"), "tstzrange": ("timestamptz", "tstzmultirange"),
}  # fmt: skip


def create_random_ranges(connection: Connection, name: str) -> None:
    """Create the table r of random ranges x."""
    bound = RANGES[name][0]
    limit = {"numeric": "abs(s::numeric) < 1e50 and s <> 'NaN'", "int4": "s::int4 < 2147483647"}.get(bound, "true")
    limit = {"int8": "s::int8 < 9223372036854775807", "date": "s !~ '^5[0-9]{6}-'"}.get(bound, limit)
    pool = [value for value, _ in zip(SCALARS[bound][1](random.Random(name), 300), range(600), strict=False)]
    connection.execute("drop table if exists r, pool")
    connection.execute(f"create temp table pool as select s::{bound} b from unnest(%s::text[]) s where {limit}", [pool])
    bounds = "array['[]', '[)', '(]', '()']"
    connection.execute(
        f"""
        create temp table r as select {name}(
            case when random() < 0.9 then least(a, b) end, case when random() < 0.9 then greatest(a, b) end,
            ({bounds})[1 + floor(random() * 4)]
        ) x from (select a.b a, b.b b from pool a, pool b order by random() limit 1500) pairs
        """
    )


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kathmandu", "America/St_Johns"])
@pytest.mark.parametrize("name", RANGES)
def test_ranges_and_multiranges(connection: Connection, name: str, zone: str) -> None:
    create_random_ranges(connection, name)
    connection.execute("set timezone to 'UTC'")
    queries = (
        "select x from r union all values ('empty'::{0}), (null::{0})",
        "select {0}(a.x, b.x) x from r a, r b where random() < 0.001 union all values ('{{}}'::{0})",
        "select array[x, null, x] x from r limit 300",
    )
    for query, type_name in zip(queries, (name, RANGES[name][1], ""), strict=True):
        in_utc = values(connection, query.format(type_name)).loaded()
        connection.execute(f"set timezone to '{zone}'")
        result = connection.execute("select x from v order by n").pgresult
        assert result is not None
        texts = [result.get_value(row, 0) for row in range(result.ntuples)]
        oid = result.ftype(0)
        connection.execute("set timezone to 'UTC'")
        assert load_text(column_type(oid, -1), texts).array == in_utc.array


def test_ranges_in_another_date_style_are_refused(connection: Connection) -> None:
    for style in ("German", "SQL, DMY", "Postgres"):
        connection.execute(f"set datestyle to '{style}'")
        for name in ("daterange", "tsrange", "tstzrange"):
            text = connection.execute(f"select {name}('2026-11-21', null)::text").fetchone()
            assert text is not None
            column = column_type({"daterange": 3912, "tsrange": 3908, "tstzrange": 3910}[name], -1)
            with pytest.raises(ValueError, match=r"ISO|a range as PostgreSQL prints it"):
                load_text(column, [text[0].encode()])


@pytest.fixture
def own_types(connection: Connection) -> Iterator[None]:
    connection.execute("drop schema if exists own cascade; create schema own")
    connection.execute(
        """
        create type own.mood as enum ('sad', 'very "sad"', 'a,b', '{c}', 'žluť', 'null');
        create type own."Odd.name" as enum ('x');
        create domain own.posint as int4 check (value > 0);
        create domain own.label as text;
        create domain own.price as numeric(10,2);
        create domain own.ints as int4[];
        create type own.pair as (a int4, b text);
        create type own.nest as (
            n own.pair, m own.mood, ms own.mood[], f float8, ts timestamp, d own.label, j jsonb, r int4range, b bytea,
            many own.pair[], p numeric(10,2), c char(5), q "char", t bool
        );
        create type own.heights as range (subtype = float8, multirange_type_name = own.manyheights);
        """
    )
    yield
    connection.execute("drop table if exists v; drop schema own cascade")


@pytest.mark.usefixtures("own_types")
def test_enums_and_their_arrays(connection: Connection) -> None:
    enums = values(connection, "select e x from unnest(enum_range(null::own.mood) || null::own.mood) e")
    assert enums.column.name == "own.mood"
    assert len(enums.loaded().array) == 7
    assert values(connection, "select 'x'::own.\"Odd.name\" x").loaded().array.to_pylist() == ["x"]
    arrays = values(connection, "select array[e, null, e] x from unnest(enum_range(null::own.mood)) e").loaded()
    assert arrays.array.to_pylist() == [[label, None, label] for label in enums.loaded().array.to_pylist()[:6]]


@pytest.mark.usefixtures("own_types")
def test_domains_are_read_as_their_base_types(connection: Connection) -> None:
    cases = [
        ("select 5::own.posint x", pa.int32(), [5]),
        ("select 'ž'::own.label x", pa.string(), ["ž"]),
        ("select 1.5::own.price x", pa.string(), ["1.50"]),
        ("select '{1,2}'::own.ints x", pa.list_(pa.int32()), [[1, 2]]),
        ("select array['a b', null]::own.label[] x", pa.list_(pa.string()), [["a b", None]]),
    ]
    for query, arrow, expected in cases:
        domains = values(connection, query)
        assert domains.column.arrow == arrow
        assert domains.loaded().array.to_pylist() == expected


@pytest.mark.usefixtures("own_types")
def test_an_array_of_a_domain_is_read_as_configured(connection: Connection) -> None:
    query = "select array[1, 1094861636, null]::own.posint[] x"
    configured = values(connection, query, own__posint="int4")
    assert configured.loaded().array.to_pylist() == [[1, 1094861636, None]]
    # without configuration the elements are text, although the Type message has the domain's base type
    assert values(connection, query).loaded().array.to_pylist() == [["1", "1094861636", None]]


@pytest.mark.usefixtures("own_types")
def test_rows(connection: Connection) -> None:
    rng = random.Random(7)
    texts = [any_text(rng) for _ in range(COUNT)] + ["", " ", "NULL", "(", "a,b", '"', "\\", "\t", "\v"]
    pairs = values(connection, "select row(length(s), s)::own.pair x from unnest(%s::text[]) s", texts)
    assert pairs.loaded().array.to_pylist()[-9] == '(0,"")'
    nested = """
        select case when random() < 0.02 then null else row(
            case when random() < 0.8 then row(length(s), s)::own.pair end,
            (enum_range(null::own.mood))[1 + floor(random() * 7)], enum_range(null::own.mood), random(),
            '2026-11-21 03:04:05'::timestamp + random() * interval '1 year', s, to_jsonb(s),
            int4range(1, length(s) + 2),
            convert_to(s, 'UTF8'), array[row(1, s), null, row(null, null)]::own.pair[], 1.5, 'ab', left(s, 1), true
        )::own.nest end x from unnest(%s::text[]) s
    """
    assert values(connection, nested, texts).loaded().array.null_count < COUNT
    arrays = values(connection, "select array[row(1, s), null]::own.pair[] x from unnest(%s::text[]) s", texts)
    assert arrays.loaded().array[0].as_py()[1] is None


@pytest.mark.usefixtures("own_types")
def test_binary_user_ranges_need_configuration(connection: Connection) -> None:
    ranges = values(connection, "select own.heights(1.5, 2) x")
    assert load_text(ranges.column, ranges.texts).array.to_pylist() == ["[1.5,2)"]
    with pytest.raises(ValueError, match=r'types: \{"own\.heights": …\}'):
        load_binary(ranges.column, ranges.sent)
    query = "select own.heights(random(), case when random() < 0.9 then 1 end) x from generate_series(1, 100)"
    configured = {"own__heights": "range(float8)", "own__manyheights": "multirange(float8)"}
    assert len(values(connection, query, **configured).loaded().array) == 100
    multiranges = f"select own.manyheights(x, 'empty', '(2,)') x from ({query}) r"
    assert len(values(connection, multiranges, **configured).loaded().array) == 100


def create_extension(connection: Connection, name: str) -> None:
    if not connection.execute("select from pg_available_extensions where name = %s", [name]).fetchall():
        pytest.skip(f"this server has no extension {name}")
    connection.execute(f"create extension if not exists {name}")


def test_vectors(connection: Connection) -> None:
    create_extension(connection, "vector")
    query = """
        select array(select random() * 10 ^ (i - 15) from generate_series(1, 1 + i))::vector x
        from generate_series(1, 30) i
    """
    vectors = values(connection, query)
    assert vectors.column.name == "public.vector"
    loaded = vectors.loaded()
    assert loaded.array.type == pa.list_(pa.float32())
    rows = connection.execute("select x::float4[] from v order by n").fetchall()
    assert [[float(e) for e in row] for row in loaded.array.to_pylist()] == load_text(
        column_type(1021, -1), [array_out([repr_of(e) for e in elements]).encode() for (elements,) in rows]
    ).array.to_pylist()
    assert values(connection, "select array['[1,2]'::vector, null] x").loaded().array.to_pylist() == [
        [[1.0, 2.0], None]
    ]


def repr_of(number: float) -> str:
    return repr(float(number))


def test_hstores_and_citexts(connection: Connection) -> None:
    create_extension(connection, "hstore")
    create_extension(connection, "citext")
    rng = random.Random(8)
    texts: Sequence[str] = [any_text(rng, 5) for _ in range(COUNT)]
    hstores = values(
        connection, "select hstore(s, null) || hstore('a' || s, s) || 'b=>1' x from unnest(%s::text[]) s", texts
    )
    assert [entry["value"] for entry in hstores.loaded().array[0].as_py()].count(None) == 1
    assert values(connection, "select array['a=>1'::hstore, ''] x").loaded().array.null_count == 0
    assert values(connection, "select 'Ab'::citext x").loaded().array.to_pylist() == ["Ab"]
