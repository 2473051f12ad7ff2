"""Conversion of stored values after a type change, compared with the server's ALTER TABLE … TYPE.

For every pair of types, a real server converts hundreds of values. If our conversion is certain of a value, it must
equal the server's; otherwise the target keeps the old text.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import errors, sql

from pgoutput_etl.schema.migration import SchemaMigration, converted
from pgoutput_etl.schema.table_shape import UNREPRESENTABLE, TableColumn
from pgoutput_etl.time_zones import ZoneConversion
from pgoutput_etl.types import ColumnType, LoadedColumn, Storage, UserTypes, column_type, load_text
from pgoutput_etl.types.canonical_text import texts_of
from pgoutput_etl.types.conversion import convert, is_unchanged
from pgoutput_etl.types.registry import BUILT_IN_OIDS
from tests.support.servers.postgres import Server

Connection = psycopg.Connection[Any]
VALUES = 120
Texts = list[bytes | None]


def integer(bits: int) -> Callable[[random.Random], str]:
    return lambda rng: str(rng.randrange(-(2 ** rng.randrange(1, bits)), 2 ** rng.randrange(1, bits)))


def decimal(before: int, after: int) -> Callable[[random.Random], str]:
    def make(rng: random.Random) -> str:
        whole = str(rng.randrange(10 ** rng.randrange(before + 1)))
        digits = rng.randrange(after + 1)
        fraction = f".{rng.randrange(10**digits):0{digits}}" if digits else ""
        return rng.choice(["", "-"]) + whole + fraction

    return make


def numeric(before: int, after: int) -> Callable[[random.Random], str]:
    return lambda rng: "NaN" if rng.random() < 0.05 else decimal(before, after)(rng)


def float_text(largest: int) -> Callable[[random.Random], str]:
    def make(rng: random.Random) -> str:
        plain = [str(rng.randrange(-1000, 1000)), str(rng.randrange(-9, 9) / 4), "-0", "1e10", "0.1", "1e15"]
        wide = f"{rng.uniform(-10, 10)!r}e{rng.randrange(-largest, largest)}"
        return rng.choice([*plain, wide, "NaN", "Infinity", "-Infinity"])

    return make


def text(rng: random.Random) -> str:
    others = [MAKERS[name](rng) for name in PARSED_FROM_TEXT]
    odd = ["", " ", "ab ", "ünï", 'q"uo\\te', "NULL", "{}", "{1,2}", "a,b", "1.50e1", " 12", "1_000", "+7", "0x1F"]
    return rng.choice([*others, *odd, "-0.00", "15.", ".5", "2024-01-01 10:00:00.1234567", "true", "\\xAB"])


def random_moment(rng: random.Random) -> datetime:
    return datetime(1, 1, 1) + timedelta(  # noqa: DTZ001
        days=rng.randrange(3_600_000), seconds=rng.randrange(86_400), microseconds=rng.choice([0, 500, 123456])
    )


def date_text(rng: random.Random) -> str:
    return rng.choice([random_moment(rng).date().isoformat(), "infinity", "-infinity", "0044-03-15 BC", "12024-01-01"])


def timestamp_text(rng: random.Random) -> str:
    at = random_moment(rng)
    plain = f"{at.year:04}-{at:%m-%d %H:%M:%S.%f}"
    return rng.choice([plain, plain[:19], plain[:19] + ".500", "infinity", "0044-03-15 12:00:00.5 BC"])


def bits(length: int) -> Callable[[random.Random], str]:
    return lambda rng: f"{rng.randrange(2**length):0{length}b}"


def document(rng: random.Random) -> str:
    return rng.choice(['{"b": 1.10, "a":[1,  2]}', "null", '"x"', "17", "1.50", "true", '{"a":1,"a":2}', ' "padded" '])


def array(element: Callable[[random.Random], str]) -> Callable[[random.Random], str]:
    def quoted(rng: random.Random) -> str:
        return '"' + element(rng).replace("\\", "\\\\").replace('"', '\\"') + '"'

    def make(rng: random.Random) -> str:
        items = ["NULL" if rng.random() < 0.1 else quoted(rng) for _ in range(rng.randrange(5))]
        flat = "{" + ",".join(items) + "}"
        a, b = quoted(rng), quoted(rng)
        return rng.choice([flat, flat, flat, f"{{{{{a},NULL}},{{{b},{a}}}}}", f"[0:1]={{{a},{b}}}"])

    return make


def random_time(rng: random.Random) -> str:
    return rng.choice(["10:00:00", "23:59:59.9999", "00:00:00.123456", "24:00:00", "12:34:56.5"])


PARSED_FROM_TEXT = ("int4", "int8", "numeric", "float4", "float8", "date", "timestamp", "json", "bytea", "time", "uuid")
MAKERS: dict[str, Callable[[random.Random], str]] = {
    "bool": lambda rng: rng.choice("tf"),
    "int2": integer(15),
    "int4": integer(31),
    "int8": integer(63),
    "numeric": numeric(30, 20),
    "numeric(12,3)": numeric(9, 3),
    "numeric(20,4)": numeric(16, 4),
    "numeric(5,-2)": decimal(6, 0),
    "float4": float_text(30),
    "float8": float_text(290),
    "text": text,
    "varchar(8)": lambda rng: text(rng)[:8],
    "varchar(20)": lambda rng: text(rng)[:20],
    "char(5)": lambda rng: text(rng)[:5],
    "char(12)": lambda rng: text(rng)[:12],
    '"char"': lambda rng: rng.choice("aZ1"),
    "name": lambda rng: text(rng)[:20],
    "date": date_text,
    "timestamp": timestamp_text,
    "timestamp(3)": timestamp_text,
    "timestamptz": timestamp_text,
    "timestamptz(0)": timestamp_text,
    "time": random_time,
    "time(2)": random_time,
    "timetz": lambda rng: random_time(rng) + rng.choice(["+02", "-11:30"]),
    "timetz(1)": lambda rng: random_time(rng) + "+00",
    "interval": lambda rng: f"{rng.randrange(-30, 30)} months {random_time(rng)}",
    "interval(2)": lambda rng: f"{rng.randrange(-30, 30)} days -{random_time(rng)}",
    "interval day to second(1)": lambda rng: f"{rng.randrange(-30, 30)} days {random_time(rng)}",
    "json": document,
    "jsonb": document,
    "bytea": lambda rng: "\\x" + rng.randbytes(rng.randrange(6)).hex(),
    "uuid": lambda rng: rng.randbytes(16).hex(),
    "inet": lambda rng: rng.choice(["10.0.0.1", "10.0.0.0/8", "::1", "fe80::/64", "10.1.2.3/24"]),
    "cidr": lambda rng: rng.choice(["10.0.0.0/8", "::1/128", "fe80::/64"]),
    "money": decimal(8, 2),
    "oid": lambda rng: str(rng.randrange(2**32)),
    "bit(5)": bits(5),
    "bit(8)": bits(8),
    "varbit": lambda rng: bits(rng.randrange(1, 12))(rng),
    "varbit(4)": lambda rng: bits(rng.randrange(1, 5))(rng),
    "tstzrange": lambda rng: f"[{random_moment(rng):%Y-%m-%d %H:%M:%S},)",
    "int4range": lambda rng: f"[{rng.randrange(9)},{rng.randrange(10, 20)})",
    "regclass": lambda rng: rng.choice(["pg_class", "pg_type"]),
    "bool[]": array(lambda rng: rng.choice("tf")),
    "int4[]": array(integer(31)),
    "int8[]": array(integer(63)),
    "float4[]": array(float_text(30)),
    "float8[]": array(float_text(290)),
    "numeric(6,1)[]": array(numeric(5, 1)),
    "numeric(9,2)[]": array(numeric(7, 2)),
    "text[]": array(text),
    "varchar(4)[]": array(lambda rng: text(rng)[:4]),
    "varchar(9)[]": array(lambda rng: text(rng)[:9]),
    "char(4)[]": array(lambda rng: text(rng)[:4]),
    "bytea[]": array(lambda rng: "\\x" + rng.randbytes(3).hex()),
    "date[]": array(date_text),
    "timestamp[]": array(timestamp_text),
    "timestamptz[]": array(timestamp_text),
    "box[]": lambda rng: rng.choice(["{(1,1),(0,0);(3,3),(2,2)}", "{}"]),
    "vector": lambda rng: f"[{rng.randrange(9)},{rng.uniform(-1, 1)},1e10]",
    "mood": lambda rng: rng.choice(["sad", "ok", "true", "very happy"]),
    "old_mood": lambda rng: rng.choice(["sad", "ok", "f", "Very_happy"]),
}

ENUMS = {"mood", "old_mood"}
USER_TYPES = (
    "create type mood as enum ('sad', 'ok', 'true', 'very happy', 'f', 'Very_happy')",
    "create type old_mood as enum ('sad', 'ok', 'f', 'Very_happy', 'true')",
)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(version=18) as running:
        running.psql("; ".join(("create extension vector", *USER_TYPES)))
        yield running


@dataclass(frozen=True, slots=True)
class Altered:
    """Values before and after ALTER TABLE … TYPE, as the server prints them. has_cast: the server has such a cast."""

    old: ColumnType
    new: ColumnType
    before: Texts
    after: Texts
    has_cast: bool


# The conversion must be certain of every value of these pairs, so that a conversion without certainty fails.
CERTAIN_PAIRS = [
    ("int2", "int8"), ("int4", "numeric"), ("int4", "text"), ("int8", "text"), ("numeric(12,3)", "numeric(20,4)"),
    ("numeric(12,3)", "numeric"), ("numeric(12,3)", "text"), ("float4", "float8"), ("float8", "text"), ("bool", "text"),
    ("varchar(8)", "text"), ("varchar(8)", "char(12)"), ("char(5)", "varchar(8)"), ("date", "timestamp"),
    ("timestamp(3)", "timestamp"), ("timestamp", "text"), ("date", "text"), ("uuid", "text"), ("inet", "text"),
    ("jsonb", "json"), ("jsonb", "text"), ("bytea", "text"), ("int4[]", "int8[]"), ("int4[]", "numeric(9,2)[]"),
    ("varchar(4)[]", "varchar(9)[]"), ("varchar(4)[]", "text[]"), ("float4[]", "float8[]"), ("float8[]", "text[]"),
    ("numeric(6,1)[]", "numeric(9,2)[]"), ("date[]", "text[]"), ("int8[]", "text"), ("vector", "text"),
    ("date[]", "timestamp[]"), ("time(2)", "time"), ("varbit(4)", "varbit"), ("interval(2)", "interval"),
]  # fmt: skip
# All other source types run in `make soak` only.
COMMON_TYPES = (
    "bool", "int2", "int4", "int8", "numeric", "numeric(12,3)", "float4", "float8", "text", "varchar(8)", "char(5)",
    "date", "timestamp", "timestamp(3)", "timestamptz", "json", "jsonb", "bytea", "uuid", "int4[]", "int8[]", "text[]",
    "mood",
)  # fmt: skip


@pytest.mark.e2e
@pytest.mark.parametrize(
    "source", [pytest.param(name, marks=() if name in COMMON_TYPES else pytest.mark.soak) for name in MAKERS]
)
def test_converted_values_equal_those_of_alter_table(server: Server, source: str) -> None:
    rng = random.Random(source)
    with server.connect() as connection:
        fill(connection, source, rng)
        for target in MAKERS:
            altered = alter(connection, source, target)
            batch = reshaped(altered.old, altered.new, altered.before)
            expected = load_text(altered.new, altered.after)
            differences = [
                f"{source} to {target}: {before!r} became {altered.after[i]!r}, here {batch.column('c0')[i]}"
                for i, before in enumerate(altered.before)
                if not is_correct(batch, i, before, expected if altered.has_cast else None)
            ]
            assert not differences, differences[:3]
            if (source, target) in CERTAIN_PAIRS:
                assert not is_uncertain(altered), target


def is_correct(batch: pa.RecordBatch, i: int, before: bytes | None, expected: LoadedColumn | None) -> bool:
    """expected: None if the server has no cast between the types, so that only USING defines the new values."""
    value = batch.column("c0")[i]
    entries = {entry["key"]: entry["value"] for entry in batch.column("_unrep")[i].as_py() or ()}
    if before is None:
        return not value.is_valid and not entries
    if not value.is_valid and entries == {"x": before.decode()}:
        return True  # not certain, or unrepresentable in both types
    if expected is None:
        return False
    return same(value, expected.array[i]) and entries.get("x") == expected.unrepresentable.get(i)


def is_uncertain(altered: Altered) -> bool:
    """True if any value is uncertain. Unrepresentable values are certain."""
    return bool(not is_unchanged(altered.old, altered.new) and convert(altered.old, altered.new, altered.before)[1])


def same(one: Any, other: Any) -> bool:
    """-0 differs from 0, NaN equals NaN."""
    return repr(one.as_py()) == repr(other.as_py())


def fill(connection: Connection, source: str, rng: random.Random) -> None:
    connection.execute("set timezone = 'Europe/Amsterdam'")
    connection.execute(f"create temp table source (id int, x {source})".encode())
    connection.execute("insert into source values (0, null)")
    for number in range(1, VALUES):
        try:
            connection.execute(
                sql.SQL("insert into source values ({}, {}::{})").format(
                    sql.Literal(number),
                    sql.Literal(MAKERS[source](rng)),
                    sql.SQL(source),
                )
            )
        except errors.DataError:
            continue  # too long for the type


def alter(connection: Connection, source: str, target: str) -> Altered:
    """Convert by ALTER TABLE's own cast, else by USING x::type, else through text."""
    through_text = {source, target} <= ENUMS  # whose labels a cast through text keeps
    for using, has_cast in (("x", True), (f"x::{target}", True), (f"x::text::{target}", through_text)):
        try:
            return altered_by(connection, target, using, has_cast)
        except (errors.DatatypeMismatch, errors.CannotCoerce):
            continue
    raise AssertionError(f"{source} to {target}")


def altered_by(connection: Connection, target: str, using: str, has_cast: bool) -> Altered:
    clause = "" if using == "x" else f" using {using}"
    with connection.transaction(force_rollback=True):
        connection.execute(f"create temp table target (id int, x {target}) on commit drop".encode())
        connection.execute(
            f"""do $$ declare one record; begin
                perform x from source where false;
                for one in select * from source loop
                    begin insert into target select s.id, {using} from source s where s.id = one.id;
                    exception when datatype_mismatch or cannot_coerce then raise;
                    when others then null; end;
                end loop; end $$""".encode()
        )
        connection.execute("create temp table altered as select s.* from source s join target using (id) order by id")
        old, before = values(connection)
        connection.execute(f"alter table altered alter x type {target}{clause}".encode())
        new, after = values(connection)
        return Altered(old, new, before, after, has_cast)


def values(connection: Connection) -> tuple[ColumnType, Texts]:
    connection.execute("set local timezone = 'UTC'")
    result = connection.execute("select x from altered order by id").pgresult
    connection.execute("set local timezone = 'Europe/Amsterdam'")
    assert result is not None
    described = connection.execute(
        "select atttypid::int, atttypmod, typname from pg_attribute join pg_type on pg_type.oid = atttypid "
        "where attrelid = 'altered'::regclass and attname = 'x'"
    )
    [(oid, modifier, name)] = described.fetchall()
    user_types = UserTypes({oid: ("public", name)}) if oid >= 10_000 else UserTypes()
    return column_type(oid, modifier, user_types), [result.get_value(i, 0) for i in range(result.ntuples)]


def reshaped(old: ColumnType, new: ColumnType, texts: Texts) -> pa.RecordBatch:
    """The values, migrated as rows of an existing table."""
    loaded = load_text(old, texts)
    entries = [
        [{"key": "x", "value": loaded.unrepresentable[i]}] if i in loaded.unrepresentable else None
        for i in range(len(texts))
    ]
    rows = pa.RecordBatch.from_pydict({"c0": loaded.array, "_unrep": pa.array(entries, UNREPRESENTABLE)})
    return converted(rows, SchemaMigration((TableColumn("x", old),), (TableColumn("x", new),), (), (0,)))


def named(name: str, **configured: str) -> ColumnType:
    return column_type(20_000, -1, UserTypes({20_000: ("public", name)}, configured))


TEXT, INT4, JSONB, NUMERIC = (column_type(oid, -1) for oid in (25, 23, 3802, 1700))


@pytest.mark.parametrize(
    ("old", "new", "before", "after"),
    [
        # enum labels are certain; rows and ranges may contain values printed under another TimeZone
        (named("mood"), TEXT, b"happy", "happy"),
        (named("address"), TEXT, b"(1,2024-01-01 00:00:00+00)", None),
        (named("mood"), named("temper"), b"happy", "happy"),
        (named("mood"), named("temper"), b"very happy", None),
        (TEXT, named("mood"), b"happy", "happy"),
        (TEXT, named("mood"), b"0badcafe", None),
        (TEXT, named("mood"), b"EMPTY", None),  # of a range
        (TEXT, named("citext"), b"Text", "Text"),
        (named("citext"), TEXT, b"Text", "Text"),
        (named("hstore"), TEXT, b'"a"=>"1", "b\\"c"=>NULL', '"a"=>"1", "b\\"c"=>NULL'),
        (named("hstore"), JSONB, b'"a"=>"1"', None),
        (
            named("geometry"),
            TEXT,
            b"0101000000000000000000F03F0000000000000040",
            "0101000000000000000000F03F0000000000000040",
        ),
        (named("vector"), column_type(1021, -1), b"[1,2.5]", None),
        # the target keeps neither a document's spelling nor the trailing zeros of a numeric
        (column_type(3802, -1, UserTypes({}, {"jsonb": "variant"})), TEXT, b'{"a":1}', None),
        (column_type(1700, -1, UserTypes({}, {"numeric": "numeric(38,10)"})), TEXT, b"1.5", None),
        (column_type(1700, -1, UserTypes({}, {"numeric": "numeric(38,10)"})), INT4, b"15", 15),
    ],
)
def test_types_known_by_name_or_configuration(old: ColumnType, new: ColumnType, before: bytes, after: Any) -> None:
    batch = reshaped(old, new, [before, None])
    assert batch.column("c0").to_pylist() == [after, None]
    assert [row is not None for row in batch.column("_unrep").to_pylist()] == [after is None, False]
    if after is None and old.arrow == pa.string() and old.storage is Storage.PLAIN:
        assert batch.column("_unrep")[0].as_py() == [{"key": "x", "value": before.decode()}]


ZONES = ["Europe/Berlin", "America/St_Johns", "Australia/Lord_Howe", "Pacific/Apia", "UTC"]


@pytest.mark.e2e
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("before", ["timestamp", "timestamptz"])
def test_a_declared_time_zone_converts_as_alter_table_does(server: Server, zone: str, before: str) -> None:
    after = "timestamptz" if before == "timestamp" else "timestamp"
    with server.connect() as connection, connection.transaction(force_rollback=True):
        connection.execute("set local timezone = 'UTC'")
        # A year's half hours have all changes of the clock.
        connection.execute(
            f"create temp table altered as select row_number() over () as id, x::{before} from ("
            "select generate_series('2011-01-01'::timestamp, '2012-01-02', '30 minutes') + '0.25 s'::interval "
            "union all values ('infinity'::timestamp), ('-infinity'), ('0001-06-01'), ('1890-01-01 12:00:00.000001'), "
            "('9999-12-30 23:59:59.999999'), (null)) as moments(x)".encode()
        )
        texts = [text for (text,) in connection.execute("select x::text from altered order by id")]
        old = [None if text is None else text.encode() for text in texts]
        connection.execute(f"set local timezone = '{zone}'".encode())
        connection.execute(f"alter table altered alter x type {after}".encode())
        connection.execute("set local timezone = 'UTC'")
        new = [text for (text,) in connection.execute("select x::text from altered order by id")]
    old_type, new_type = (column_type(BUILT_IN_OIDS[name], -1) for name in (before, after))
    loaded, uncertain = convert(old_type, new_type, old, ZoneConversion(before, zone))
    converted_texts = texts_of(new_type, loaded.array)
    assert {**dict(enumerate(converted_texts)), **loaded.unrepresentable} == dict(enumerate(new))
    assert not uncertain
