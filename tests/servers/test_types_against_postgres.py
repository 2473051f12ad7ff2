"""Text values from a real server, compared with the same server's other representations of them.

Each query returns a value in text form, as a walsender sends it, and the bytes of its binary form, its microseconds
since 1970, or another representation that doesn't depend on that text.
"""

from __future__ import annotations

import decimal
import random
import struct
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from pgoutput_etl.types import LoadedColumn, column_type, load_text
from tests.support.servers.postgres import Server

pytestmark = pytest.mark.e2e

Connection = psycopg.Connection[Any]
ROWS = 5000
EXACT = decimal.Context(prec=100)
FIRST_MICROSECOND, LAST_MICROSECOND = -62_135_596_800_000_000, 253_402_300_799_999_999


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(version=18) as running:
        yield running


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    with server.connect() as connected:
        connected.execute("select setseed(0.3)")
        yield connected


def ask(connection: Connection, query: str, *parameters: object) -> tuple[LoadedColumn, list[str | None]]:
    """The first column, loaded from its text form, and the raw texts of the second."""
    cursor = connection.execute(query, parameters or None)
    result = cursor.pgresult
    assert result is not None
    texts = [result.get_value(row, 0) for row in range(result.ntuples)]
    others = [result.get_value(row, 1) for row in range(result.ntuples)]
    column = column_type(result.ftype(0), result.fmod(0))
    loaded = load_text(column, texts)
    assert len(loaded.array) == len(texts)
    assert loaded.array.type == column.arrow
    for index, text in loaded.unrepresentable.items():
        assert text.encode() == texts[index] or column.name == "timestamptz"  # kept as text in UTC
        assert not loaded.array[index].is_valid
    assert loaded.array.null_count == len(loaded.unrepresentable) + texts.count(None)
    return loaded, [None if other is None else other.decode() for other in others]


def ask_about(
    connection: Connection, type_name: str, texts: list[str], other: str
) -> tuple[LoadedColumn, list[str | None]]:
    """Let the server parse the texts as the type; query the values x and `other`, an expression of x."""
    return ask(connection, f"select x, {other} from (select s::{type_name} x from unnest(%s::text[]) s)", texts)


@pytest.mark.parametrize(
    ("source", "send", "form"),
    [
        ("(random(-32768, 32767))::int2", "int2send", ">h"),
        ("random(-2147483648, 2147483647)", "int4send", ">i"),
        ("random(-9223372036854775808, 9223372036854775807)", "int8send", ">q"),
        ("random(-20, 20)::int8", "int8send", ">q"),
        ("random(0, 4294967295)::oid", "oidsend", ">I"),
        ("random(0, 4294967295)::text::xid", "xidsend", ">I"),
    ],
)
def test_integers(connection: Connection, source: str, send: str, form: str) -> None:
    loaded, sent = ask(
        connection,
        f"select x, encode({send}(x), 'hex') from (select {source} x from generate_series(1, {ROWS}))",
    )
    assert [struct.pack(form, value).hex() for value in loaded.array.to_pylist()] == sent


def test_the_limits_of_the_integer_types(connection: Connection) -> None:
    for name, bits in (("int2", 15), ("int4", 31), ("int8", 63)):
        values = [-(2**bits), 2**bits - 1, 0, -1]
        loaded, _ = ask_about(connection, name, [str(value) for value in values], "null")
        assert loaded.array.to_pylist() == values
    for name in ("oid", "xid"):
        loaded, _ = ask_about(connection, name, ["0", "4294967295"], "null")
        assert loaded.array.to_pylist() == [0, 2**32 - 1]


def test_bool(connection: Connection) -> None:
    loaded, numbers = ask_about(connection, "bool", ["true", "false", "yes", "off"], "x::int")
    assert [str(int(value)) for value in loaded.array.to_pylist()] == numbers


FLOATS = [("float4", ">f", ">I"), ("float8", ">d", ">Q")]


def sample_floats(form: str, bits_form: str) -> list[str]:
    """Random bit patterns, numbers of moderate size, and the extremes."""
    rng = random.Random(20261121)
    size = 8 * struct.calcsize(form)
    patterns = [rng.getrandbits(size) for _ in range(ROWS)]
    patterns += [0, 1, 2 ** (size - 1), 2 ** (size - 1) + 1, {32: 0x7F7FFFFF, 64: 0x7FEFFFFFFFFFFFFF}[size]]
    patterns += [{32: 0x00800000, 64: 0x0010000000000000}[size] + offset for offset in (-1, 0, 1)]
    values = [struct.unpack(form, struct.pack(bits_form, pattern))[0] for pattern in patterns]
    values += [struct.unpack(form, struct.pack(form, rng.uniform(-1000, 1000)))[0] for _ in range(ROWS)]
    return [repr(value) for value in values] + ["NaN", "Infinity", "-Infinity"]


@pytest.mark.parametrize(("name", "form", "bits_form"), FLOATS)
def test_floats_to_the_bit(connection: Connection, name: str, form: str, bits_form: str) -> None:
    loaded, sent = ask_about(connection, name, sample_floats(form, bits_form), f"encode({name}send(x), 'hex')")
    not_a_number = {32: "7fc00000", 64: "7ff8000000000000"}[8 * struct.calcsize(form)]
    values = loaded.array.to_pylist()
    assert [struct.pack(form, v).hex() if v == v else not_a_number for v in values] == sent


@pytest.mark.parametrize(("name", "form", "_bits_form"), FLOATS)
@pytest.mark.parametrize("extra_float_digits", [0, -3])
def test_floats_with_fewer_digits_are_read_as_by_the_server(
    connection: Connection, name: str, form: str, _bits_form: str, extra_float_digits: int
) -> None:
    connection.execute(f"set extra_float_digits = {extra_float_digits}")
    loaded, sent = ask(
        connection,
        f"select x, encode({name}send(format('%s', x)::{name}), 'hex') from ("
        f"select (random_normal() * 10 ^ random(-30, 30))::{name} x from generate_series(1, {ROWS}))",
    )
    assert [struct.pack(form, value).hex() for value in loaded.array.to_pylist()] == sent


@pytest.mark.parametrize(
    ("precision", "scale"), [(1, 0), (4, 4), (10, 2), (18, 0), (19, 6), (38, 0), (38, 10), (38, 37), (38, 38)]
)
def test_decimals(connection: Connection, precision: int, scale: int) -> None:
    rng = random.Random(precision * 100 + scale)
    unscaled = [rng.randint(-(10**precision) + 1, 10**precision - 1) for _ in range(ROWS)]
    unscaled += [int(value / 10 ** rng.randint(0, precision)) for value in unscaled]
    unscaled += [0, 1, -1, 10**precision - 1, -(10**precision) + 1]
    loaded, shifted = ask_about(
        connection,
        f"numeric({precision},{scale})",
        [f"{value}e-{scale}" for value in unscaled] + ["NaN"],
        f"trunc(x * '1e{scale}'::numeric)",
    )
    assert loaded.array.type == pa.decimal128(precision, scale)
    values = loaded.array.to_pylist()
    assert [str(int(value.scaleb(scale, EXACT))) for value in values[:-1]] == shifted[:-1]
    assert [str(value) for value in unscaled] == shifted[:-1]
    assert loaded.unrepresentable == {len(unscaled): "NaN"}


def test_other_numerics_keep_every_digit(connection: Connection) -> None:
    texts = ["NaN", "Infinity", "-Infinity", "1.50", "-0.00", "1e-400", "9" * 1000, f"0.{'0' * 500}1"]
    for name in ("numeric", "numeric(1000,500)", "numeric(3,-2)", "numeric(3,5)"):
        valid = texts if name == "numeric" else ["NaN", "0.001", "-0.00999"]
        loaded, printed = ask_about(connection, name, valid, "format('%%s', x)")
        assert loaded.array.to_pylist() == printed
        assert not loaded.unrepresentable


def test_dates(connection: Connection) -> None:
    # many days around both limits, and samples from the server's whole range
    loaded, days = ask(
        connection,
        """
        select x, case when isfinite(x) then x - date '1970-01-01' end from (
            select date '0001-01-01' + random(-800, 800) x from generate_series(1, 2000)
            union all select date '9999-12-31' + random(-800, 800) from generate_series(1, 2000)
            union all select date '0001-01-01' + random(0, 3652058) from generate_series(1, 5000)
            union all select date '2000-01-01' + random(-2451545, 2145031948) from generate_series(1, 2000)
            union all select d::date from unnest('{infinity,-infinity,NULL,5874897-12-31}'::text[]) d)
        """,
    )
    first, last = FIRST_MICROSECOND // 86_400_000_000, LAST_MICROSECOND // 86_400_000_000
    assert_inside(loaded, days, loaded.array.cast(pa.int32()), first, last)


TIMESTAMPS = """
    select x, case when isfinite(x) then (extract(epoch from x) * 1000000)::int8 end from (
        select {0} '0001-01-01 00:00:00' + random(-1000, 1000) * interval '1 hour' x
            from generate_series(1, 3000)
        union all select {0} '9999-12-31 23:59:59.999999' + random(-200, 200) * interval '1 hour'
            from generate_series(1, 3000)
        union all select {0} '0001-01-01' + random(0, 3652058) * interval '1 day'
            + random(0, 86399999999) * interval '1 microsecond' from generate_series(1, 5000)
        union all select {0} '2000-01-01' + random(-2451500, 106750000) * interval '1 day'
            + random(0, 86399999999) * interval '1 microsecond' from generate_series(1, 3000)
        union all select {0} '1800-01-01' + random(0, 100000) * interval '1 day'
            + random(0, 86399) * interval '1 second' from generate_series(1, 5000)
        union all select t::{0} from unnest('{{infinity,-infinity,NULL}}'::text[]) t)
"""


def test_timestamps(connection: Connection) -> None:
    loaded, microseconds = ask(connection, TIMESTAMPS.format("timestamp"))
    assert_inside(loaded, microseconds, loaded.array.cast(pa.int64()), FIRST_MICROSECOND, LAST_MICROSECOND)


@pytest.mark.parametrize(
    "time_zone",
    [
        "UTC",
        "Europe/Amsterdam",  # +00:19:32 until 1937
        "America/New_York",  # -04:56:02 until 1883
        "Asia/Kathmandu",  # +05:45
        "Pacific/Apia",  # -12:33:04, -11:26:56, -11:30, -11, +13
        "<tired>-100",  # +100
    ],
)
def test_timestamptz_in_any_time_zone_is_the_same_instant(connection: Connection, time_zone: str) -> None:
    connection.execute("select set_config('TimeZone', %s, false)", [time_zone])
    loaded, microseconds = ask(connection, TIMESTAMPS.format("timestamptz"))
    assert_inside(loaded, microseconds, loaded.array.cast(pa.int64()), FIRST_MICROSECOND, LAST_MICROSECOND)


def assert_inside(loaded: LoadedColumn, expected: list[str | None], actual: pa.Array, first: int, last: int) -> None:
    """Check that values from first to last have arrived, and that all others, except for NULL, are unrepresentable."""
    numbers = [None if number is None else int(number) for number in expected]
    assert actual.to_pylist() == [n if n is not None and first <= n <= last else None for n in numbers]
    outside = {i for i, n in enumerate(numbers) if n is not None and not first <= n <= last}
    infinite = {i for i, text in loaded.unrepresentable.items() if text in ("infinity", "-infinity")}
    assert loaded.unrepresentable.keys() == outside | infinite
    assert len(infinite) == 2
    assert outside


@pytest.mark.parametrize("style", ["SQL, DMY", "SQL, MDY", "Postgres, DMY", "Postgres, MDY", "German"])
@pytest.mark.parametrize("name", ["date", "timestamp", "timestamptz"])
def test_other_date_styles_are_refused(connection: Connection, style: str, name: str) -> None:
    connection.execute(f"set DateStyle = '{style}'")
    for text in ("2026-11-21 03:04:05", "2026-03-04", "12026-11-21", "0044-03-15 BC", "0001-02-03"):
        with pytest.raises(ValueError, match="DateStyle must be ISO"):
            ask_about(connection, name, [text], "null")


@pytest.mark.parametrize("order", ["DMY", "MDY", "YMD"])
def test_iso_dates_are_read_with_any_date_order(connection: Connection, order: str) -> None:
    connection.execute(f"set DateStyle = 'ISO, {order}'")
    loaded, days = ask_about(connection, "date", ["2026-03-04"], "x - date '1970-01-01'")
    assert loaded.array.cast(pa.int32()).to_pylist() == [int(day or "") for day in days]


def test_bytea(connection: Connection) -> None:
    loaded, sent = ask(
        connection,
        f"""
        select x, encode(x, 'hex') from (
            select substr(sha256(i::text::bytea), 1, random(0, 32)) x from generate_series(1, {ROWS}) i)
        """,
    )
    assert [value.hex() for value in loaded.array.to_pylist()] == sent


def test_bytea_in_escape_form_is_refused(connection: Connection) -> None:
    connection.execute("set bytea_output = 'escape'")
    for text in ("", "abc", r"\x00", r"\x5c78", r"\x5c783431"):
        with pytest.raises(ValueError, match="bytea_output must be hex"):
            ask_about(connection, "bytea", [text], "null")


def random_text(rng: random.Random) -> str:
    ranges = [(1, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF)]
    return "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randint(0, 12)))


@pytest.mark.parametrize("name", ["text", "varchar(12)", "char(20)"])
def test_text_of_any_characters(connection: Connection, name: str) -> None:
    rng = random.Random(name)
    loaded, sent = ask_about(
        connection,
        name,
        [random_text(rng) for _ in range(ROWS)],
        "encode(convert_to(format('%%s', x), 'UTF8'), 'hex')",
    )
    assert [value.encode().hex() for value in loaded.array.to_pylist()] == sent


STRINGS: list[tuple[str, list[str]]] = [
    ("name", ["a b", 'quo"ted']),
    ('"char"', ["x", ""]),
    ("uuid", ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"]),
    ("json", [' { "b" : 1, "a":[null, 1e2] } ']),
    ("jsonb", ['{"b": 1, "a": [null, 1e2]}']),
    ("time", ["24:00:00", "03:04:05.000006"]),
    ("timetz", ["24:00:00-15:59", "03:04:05.5+01"]),
    ("interval", ["1 year 2 mons -3 days 04:05:06.789", "-infinity", "0"]),
    ("money", ["-1234.50"]),
    ("inet", ["::ffff:1.2.3.4/128", "10.1.2.3/8"]),
    ("cidr", ["10.0.0.0/8"]),
    ("macaddr", ["08-00-2b-01-02-03"]),
    ("macaddr8", ["08-00-2b-01-02-03-04-05"]),
    ("bit(3)", ["101"]),
    ("varbit", ["", "10101"]),
    ("point", ["(1.5,-0)"]),
    ("path", ["[(0,0),(1,1)]"]),
    ("circle", ["<(0,0),1>"]),
    ("tsvector", ["a:1A fat cat"]),
    ("tsquery", ["fat & (rat | cat)"]),
    ("pg_lsn", ["16/B374D848"]),
    ("xid8", ["18446744073709551615"]),
    ("regclass", ["pg_class"]),
    ("int4range", ["[1,5]", "empty"]),
    ("tstzrange", ["(,infinity)"]),
    ("int4multirange", ["{[1,2],[5,7)}"]),
    ("pg_temp.mood", ["happy", "so so"]),
    ("pg_temp.pair", ['(1,"a ""b"" (c)")', "(,)"]),
]


@pytest.mark.parametrize(("name", "texts"), STRINGS, ids=[name for name, _ in STRINGS])
def test_types_that_stay_text(connection: Connection, name: str, texts: list[str]) -> None:
    connection.execute("create type pg_temp.mood as enum ('happy', 'so so')")
    connection.execute("create type pg_temp.pair as (a int, b text)")
    loaded, printed = ask_about(connection, name, texts, "format('%%s', x)")
    assert loaded.array.type == (pa.string())
    assert [str(value) for value in loaded.array.to_pylist()] == printed


def test_names_with_modifiers_equal_the_servers(connection: Connection) -> None:
    names = [
        "bool", "int2", "int4", "int8", "float4", "float8", "oid", "xid", "date", "bytea", "text",
        "name", '"char"', "numeric", "numeric(10,2)", "numeric(38,38)", "numeric(1000,-1000)", "numeric(3,5)",
        "numeric(1,1000)",
        "varchar", "varchar(20)", "bpchar", "char(1)", "char(300)", "bit(3)", "varbit", "varbit(64)",
        "time", "time(0)", "timetz(6)", "timestamp", "timestamp(0)", "timestamptz", "timestamptz(3)",
        "interval", "interval(3)", "interval year", "interval year to month", "interval day to second(0)",
        "interval hour to minute", "interval second(6)", "int2vector", "oidvector",
        "int4[]", "text[]", '"char"[]', "jsonb", "uuid", "int8multirange[]",
    ]  # fmt: skip
    columns = ", ".join(f"c{i} {name}" for i, name in enumerate(names))
    connection.execute(f"create temporary table every ({columns})")
    described = connection.execute(
        "select atttypid::int8, atttypmod from pg_attribute"
        " where attrelid = 'every'::regclass and attnum > 0 order by attnum"
    ).fetchall()
    assert [column_type(oid, typmod).name for oid, typmod in described] == names


def test_every_name_belongs_to_its_oid(connection: Connection) -> None:
    oids = [oid for (oid,) in connection.execute("select oid::int8 from pg_type where oid < 10000").fetchall()]
    named = [(oid, column_type(oid, -1).name) for oid in oids]
    named = [(oid, name) for oid, name in named if name != f"oid {oid}"]
    for oid, name in named:
        assert connection.execute("select to_regtype(%s)::oid::int8", [name]).fetchone() == (oid,), name
    assert len(named) > 120
