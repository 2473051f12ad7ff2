"""Binary values from real servers, compared with the texts that the same servers print."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from pgoutput_etl.types import ColumnType, LoadedColumn, ValueTextError, column_type, load_binary, load_text
from pgoutput_etl.types.column import no_binary_form
from tests.support.scalar_values import SCALARS, intervals, timestamps
from tests.support.servers.postgres import Server

pytestmark = pytest.mark.e2e

Connection = psycopg.Connection[Any]
COUNT = 2000


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    with server.connect() as connected:
        yield connected


def ask(
    connection: Connection, name: str, send: str, texts: Sequence[str | None]
) -> tuple[ColumnType, list[bytes | None], list[bytes | None]]:
    """Let the server parse the texts as a type; return the column's type and the values' texts and binary forms."""
    query = f"select x, {send}(x) from (select s::{name} x from unnest(%s::text[]) s)"
    result = connection.execute(query, [list(texts)]).pgresult
    assert result is not None
    rows = range(result.ntuples)
    sent = [result.get_value(row, 1) for row in rows]
    return (
        column_type(result.ftype(0), result.fmod(0)),
        [result.get_value(row, 0) for row in rows],
        [None if value is None else bytes.fromhex(value[2:].decode()) for value in sent],
    )


def assert_same(one: LoadedColumn, other: LoadedColumn) -> None:
    assert one.unrepresentable == other.unrepresentable
    assert one.array.type == other.array.type
    assert bits(one.array).equals(bits(other.array))


def bits(array: pa.Array) -> pa.Array:
    return (
        array.view({32: pa.int32(), 64: pa.int64()}[array.type.bit_width])
        if pa.types.is_floating(array.type)
        else array
    )


@pytest.mark.parametrize("name", SCALARS)
def test_the_binary_form_has_the_same_value_as_the_text(connection: Connection, name: str) -> None:
    send, values = SCALARS[name]
    column, texts, sent = ask(connection, name, send, [*values(random.Random(name), COUNT), None])
    assert [None if value is None else column.binary_text(value) for value in sent] == texts
    assert_same(load_binary(column, sent), load_text(column, texts))


@pytest.mark.parametrize("time_zone", ["Europe/Berlin", "America/New_York", "Pacific/Apia", "<tired>-100"])
def test_instants_are_the_same_in_any_time_zone(connection: Connection, time_zone: str) -> None:
    connection.execute("select set_config('TimeZone', %s, false)", [time_zone])
    written = [f"{text}{'' if 'infinity' in text else '+00'}" for text in timestamps(random.Random(time_zone), COUNT)]
    written = [f"{text.replace(' BC', '')} BC" if " BC" in text else text for text in written]
    column, texts, sent = ask(connection, "timestamptz", "timestamptz_send", written)
    assert not any(text.endswith(b"+00") for text in texts if text)
    assert_same(load_binary(column, sent), load_text(column, texts))


def test_the_limits_of_interval_are_infinite_since_17(server: Server, connection: Connection) -> None:
    since_17 = server.version >= 17
    most = "infinity" if since_17 else "178956970 years 7 mons 2147483647 days 2562047788:00:54.775807"
    column, texts, sent = ask(connection, "interval", "interval_send", [most])
    assert texts == [most.encode()]
    assert load_text(column, texts).array.to_pylist() == [most]
    assert load_binary(column, sent).array.to_pylist() == ["infinity"]
    if since_17:
        column, texts, sent = ask(connection, "interval", "interval_send", ["-infinity"])
        assert_same(load_binary(column, sent), load_text(column, texts))


@pytest.mark.parametrize("style", ["postgres", "sql_standard", "iso_8601", "postgres_verbose"])
def test_only_interval_texts_of_style_postgres_are_read(connection: Connection, style: str) -> None:
    written = list(intervals(random.Random(17), COUNT))
    column, expected, _ = ask(connection, "interval", "interval_send", written)
    connection.execute("select set_config('IntervalStyle', %s, false)", [style])
    # use texts of style postgres as input: sql_standard would parse some other texts differently
    _, texts, sent = ask(connection, "interval", "interval_send", [text.decode() for text in expected if text])
    refused = 0
    for text, postgres_text in zip(texts, expected, strict=True):
        try:
            (loaded,) = load_text(column, [text]).array.to_pylist()
        except ValueTextError:
            refused += 1
        else:
            assert loaded.encode() == postgres_text
    assert refused == 0 if style == "postgres" else refused > len(texts) / 2
    assert load_binary(column, sent).array.to_pylist() == [text.decode() for text in expected if text]


def test_reg_types_in_binary_form_are_digits(connection: Connection) -> None:
    for name, written in (
        ("regclass", "pg_class"),
        ("regtype", "interval"),
        ("regrole", "postgres"),
        ("regproc", "now"),
    ):
        column, texts, sent = ask(connection, name, f"{name}send", [written])
        assert texts == [written.encode()]
        digits = load_binary(column, sent).array.to_pylist()
        assert connection.execute(f"select %s::{name} = %s::{name}", [digits[0], written]).fetchone() == (True,)


def test_every_scalar_type_with_a_send_function_is_read(connection: Connection) -> None:
    rows = connection.execute(
        "select oid::int8, typname from pg_type where typtype = 'b' and typsend <> 0 and typcategory <> 'A'"
        " and oid < 10000 and typname !~ '^pg_(node_tree|ndistinct|dependencies|mcv_list|brin_.*)$'"
    ).fetchall()
    without = [name for oid, name in rows if column_type(oid, -1).binary_text is no_binary_form]
    assert not without
    assert len(rows) >= 60


def test_pgoutput_sends_the_output_of_send_functions(connection: Connection) -> None:
    """Rows with all types, sent through a publication and decoded with binary values and with texts."""
    names = [name for name in SCALARS if "::" not in name] + ["refcursor", "aclitem"]
    connection.execute(f"create table every ({', '.join(f'c{i} {name}' for i, name in enumerate(names))})")
    connection.execute("create publication every for table every")
    connection.execute("select pg_create_logical_replication_slot('every', 'pgoutput')")
    values = ", ".join(f"%s::text::{name}" for name in names)
    for index in (-1, -2):
        connection.execute(f"insert into every values ({values})", [sample_value(name, index) for name in names])
    described = connection.execute(
        "select atttypid::int8, atttypmod from pg_attribute where attrelid = 'every'::regclass and attnum > 0"
        " order by attnum"
    ).fetchall()
    columns = [column_type(oid, typmod) for oid, typmod in described]
    for sent, texts in zip(inserted(connection, "true"), inserted(connection, "false"), strict=True):
        for column, (kind, value), (_, text) in zip(columns, sent, texts, strict=True):
            assert kind == (b"t" if column.name == "aclitem" else b"b")
            assert (value if kind == b"t" else column.binary_text(value)) == text


def sample_value(name: str, index: int) -> str:
    if name in SCALARS:
        return list(SCALARS[name][1](random.Random(name), 10))[index]
    return {"aclitem": "postgres=r/postgres", "refcursor": "cursor"}[name]


def inserted(connection: Connection, binary: str) -> list[list[tuple[bytes, bytes]]]:
    """The kind and bytes of every value in the TupleData of Insert messages; none is NULL."""
    messages = connection.execute(
        "select data from pg_logical_slot_peek_binary_changes("
        "'every', null, null, 'proto_version', '1', 'publication_names', 'every', 'binary', %s)",
        [binary],
    ).fetchall()
    return [values_of(data) for (data,) in messages if data.startswith(b"I")]


def values_of(insert: bytes) -> list[tuple[bytes, bytes]]:
    (count,) = struct.unpack_from(">h", insert, 6)  # after I, the relation's OID and N
    values, at = [], 8
    for _ in range(count):
        kind, length = struct.unpack_from(">ci", insert, at)
        values.append((kind, insert[at + 5 : at + 5 + length]))
        at += 5 + length
    assert at == len(insert)
    return values
