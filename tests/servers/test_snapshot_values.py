"""A snapshot's values have the same bytes as replicated ones."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from pgoutput_etl.postgres import queries
from pgoutput_etl.postgres.catalog import QUERY, read_catalog
from pgoutput_etl.postgres.copy_format import csv_tuples, tuple_of
from pgoutput_etl.protocol.decoder import decode, read_tuple
from pgoutput_etl.protocol.messages import Insert, Relation, Type
from tests.spark.load.test_type_matrix import create, fill
from tests.support.copied_rows import binary_rows, text_rows
from tests.support.servers.postgres import Server, Version
from tests.support.type_cases import USER_TYPES, cases

pytestmark = pytest.mark.e2e
PEEK = "select data from pg_logical_slot_peek_binary_changes('slot', null, null, 'proto_version', '1', "
PEEK += "'publication_names', 'p', 'binary', '{}')"


@pytest.mark.parametrize("version", [18, pytest.param(16, marks=pytest.mark.soak)])
def test_values_of_every_type_equal_the_replicated_ones(version: Version, tmp_path: Path) -> None:
    columns = cases(version, "binary")
    with Server(version) as server:
        server.psql(USER_TYPES)
        create(server, columns)
        server.create_slot("slot")
        fill(server, columns)
        raw = {form: [bytes(row[0]) for row in _query(server, PEEK.format(form))] for form in ("off", "on")}
        sent = {form: [decode(data, False) for data in messages] for form, messages in raw.items()}
        as_text, as_binary = ([data[len("I....N") :] for data in raw[form] if data[:1] == b"I"] for form in raw)
        assert len(as_text) == len(as_binary) > 20
        [relation] = [message for message in sent["off"] if isinstance(message, Relation)]
        catalog = read_catalog(server.psql(f"{QUERY};"), (), lambda name: name == "public.matrix")
        assert [table.relation for table in catalog.tables] == [relation]
        types = {message for message in sent["off"] if isinstance(message, Type)}
        assert types
        assert set(catalog.types) == types

        names = [column.name for column in relation.columns]
        server.psql("copy matrix to stdout", output=tmp_path / "t")
        copied_rows = text_rows((tmp_path / "t").read_bytes(), "t", len(names))
        assert by_id(tuple_of(fields, b"t") for fields in copied_rows) == by_id(as_text)

        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(queries.SESSION.encode())
            with cursor.copy(queries.copied_rows("public", "matrix", names, False, []).encode()) as lines:
                data = b"".join(lines)
        assert by_id(csv_tuples(data, len(names)).to_pylist()) == by_id(as_text)

        # Values without a send function are sent as text, and COPY refuses them.
        rows = [message.new for message in sent["on"] if isinstance(message, Insert)]
        sendable = [i for i in range(len(names)) if all(row.kinds[i : i + 1] != b"t" for row in rows)]
        assert len(names) - 5 < len(sendable) < len(names)
        column_list = sql.SQL(", ").join(sql.Identifier(names[i]) for i in sendable)
        copy = sql.SQL("copy matrix ({}) to stdout (format binary)").format(column_list).as_string()
        server.psql(copy, output=tmp_path / "b")
        copied = binary_rows((tmp_path / "b").read_bytes(), "b", len(sendable))
        replicated = [tuple_of([row.values[i] for i in sendable], b"b") for row in rows]
        assert by_id(tuple_of(fields, b"b") for fields in copied) == by_id(replicated)


def by_id(tuples: Iterable[bytes]) -> dict[bytes | None, tuple[bytes | None, ...]]:
    """Rows by id, as a table's rows have no order."""
    rows = {row.values[0]: row.values for row in map(read_tuple, tuples)}
    assert None not in rows
    return rows


def _query(server: Server, query: str) -> list[tuple[Any, ...]]:
    with server.connect() as connection:
        connection.execute(queries.SESSION.encode())
        return [*connection.execute(query.encode())]
