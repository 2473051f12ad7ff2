"""Scripted scenarios: a publication on a real server, and a replay of the files landed from its slot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from pgoutput_etl.replay.mirror import Replay, ReplayedTable
from pgoutput_etl.schema.column_matching import Declared
from tests.support.servers.postgres import Server
from tests.support.truth import assert_equals_truth

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(slots=True)
class Scene:
    """A schema, a publication, and a slot with the same name. `<s>` in a statement stands for the schema."""

    server: Server
    connection: Connection
    name: str
    folder: Path
    protocol: int
    options: Mapping[str, str]
    replay: Replay = field(default_factory=Replay)
    landed: int = 0

    @property
    def streams(self) -> bool:
        return "streaming" in self.options

    def begin(self, publication: str = "for tables in schema <s>", *, two_phase: bool = False) -> None:
        self.run("create schema <s>", f"create publication <s> {publication}")
        self.server.create_slot(self.name, two_phase=two_phase)

    def end(self) -> None:
        self.connection.execute("select pg_drop_replication_slot(%s)", (self.name,))

    def run(self, *statements: str) -> None:
        for statement in statements:
            self.connection.execute(statement.replace("<s>", self.name).encode())

    def run_in_a_transaction(self, *statements: str) -> None:
        with self.connection.transaction():
            self.run(*statements)

    def land(self) -> None:
        """Lands everything new as the archive's next file."""
        path = self.folder / f"{self.landed:03}.bin"
        self.landed += 1
        self.server.recvlogical(
            self.name, path, publications=[self.name], proto_version=self.protocol, **dict(self.options)
        )
        self.replay.add_file(str(path), path.read_bytes())

    def oid(self, table: str) -> int:
        schema, name = table.replace("<s>", self.name).split(".")
        return self.replay.name_holders()[schema, name]

    def table(self, table: str, declared: Declared | None = None, key: tuple[str, ...] | None = None) -> ReplayedTable:
        name = table.replace("<s>", self.name)
        keys = {} if key is None else {name: key}
        return self.replay.tables(keys, declared={name: declared or {}})[self.oid(table)]

    def rows(self, table: str, *columns: str, **options: Any) -> list[tuple[Any, ...]]:
        rows = self.table(table, **options).rows
        return sorted((tuple(row[column] for column in columns) for row in rows), key=repr)

    def assert_holds(self, table: str, query: str = "", **options: Any) -> None:
        """Checks that the table has the rows of the query (default: the server's rows of the table)."""
        path = self.folder / "truth.csv"
        query = (query or f"select * from {table}").replace("<s>", self.name)
        copy = sql.SQL(f"copy ({query}) to stdout (format csv, header)")
        with self.connection.cursor() as cursor, cursor.copy(copy) as copied:
            path.write_bytes(b"".join(copied))
        assert_equals_truth(self.table(table, **options).rows, path)

    def assert_is_followed(self, table: str, **options: Any) -> None:
        self.land()
        self.assert_holds(table, **options)


Begin = Callable[..., Scene]
