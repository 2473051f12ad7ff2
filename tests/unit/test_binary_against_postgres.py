"""Values as real servers send them in binary form, compared with the texts that the same servers print."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from pgoutput_etl.types import ColumnType, LoadedColumn, column_type, load_binary, load_text
from tests.postgres import Server
from tests.unit.scalar_values import SCALARS

pytestmark = pytest.mark.e2e

Connection = psycopg.Connection[Any]
COUNT = 2000


@pytest.fixture(scope="module", params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(version=request.param) as running:
        yield running


@pytest.fixture
def connection(server: Server) -> Iterator[Connection]:
    with server.connect() as connected:
        yield connected


def ask(
    connection: Connection, name: str, send: str, texts: list[str | None]
) -> tuple[ColumnType, list[bytes | None], list[bytes | None]]:
    """What the server makes of the texts as values of a type: the column's type, its values' texts and binary forms."""
    query = f"select x, {send}(x) from (select s::{name} x from unnest(%s::text[]) s)"
    result = connection.execute(query, [texts]).pgresult
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
def test_the_binary_form_is_the_same_value_as_the_text(connection: Connection, name: str) -> None:
    send, values = SCALARS[name]
    column, texts, sent = ask(connection, name, send, [*values(random.Random(name), COUNT), None])
    assert [None if value is None else column.binary_text(value) for value in sent] == texts
    assert_same(load_binary(column, sent), load_text(column, texts))
