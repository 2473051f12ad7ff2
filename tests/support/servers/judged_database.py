"""A database on a real server that lands each night as a file, and its rows at the end of the night."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests.support.copied_rows import text_rows
from tests.support.servers.postgres import Server
from tests.support.verdicts import ServerTable, Text

PUBLICATION = "p"

CATALOG_KEY = "5e" * 32  # of has_catalog

CATALOG = Path(__file__).parents[3] / "conf/landing/catalog.sql"

# Truncates each new table, which proves to the job that the table is complete, and restores rows of CREATE TABLE AS.
# An error, for example because a query still reads the table, must not end the statement that creates the table.
_COMPLETE = """
create schema judge;
create function judge.complete() returns event_trigger language plpgsql security definer as $$
declare made record;
begin
  for made in select object_identity as name, command_tag = 'CREATE TABLE' as is_empty
      from pg_event_trigger_ddl_commands()
      where object_type = 'table' and command_tag in ('CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO')
      and schema_name is distinct from 'pg_temp' loop
    begin
      if made.is_empty then
        execute format('truncate %s', made.name);
      else
        execute format('create temp table judged_rows as select * from %s', made.name);
        execute format('truncate %s', made.name);
        execute format('insert into %s select * from judged_rows', made.name);
        drop table judged_rows;
      end if;
    exception when others then null;
    end;
  end loop;
end $$;
create event trigger judge_complete on ddl_command_end execute function judge.complete();
"""

_PUBLISHED = b"select distinct relid, attrs from pg_get_publication_tables('p')"
_PUBLISHED_14 = b"""
select p.relid, array_agg(a.attnum) as attrs from pg_get_publication_tables('p') p join pg_attribute a
on a.attrelid = p.relid and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' group by p.relid
"""

_TABLES = b"""
select t.relid, n.nspname, c.relname, c.relkind, a.attname, a.atttypid
from (%s) t
join pg_class c on c.oid = t.relid join pg_namespace n on n.oid = c.relnamespace
left join pg_attribute a on a.attrelid = t.relid and a.attnum = any(t.attrs)
order by t.relid, a.attnum
"""

# Text as walsenders send it, whatever the database's settings are; bytes as they are in any encoding.
_SETTINGS = b"""
set client_encoding = 'SQL_ASCII'; set extra_float_digits = 1; set datestyle = 'ISO'; set intervalstyle = 'postgres';
set timezone = 'UTC'; set bytea_output = 'hex'; set search_path = public; set lock_timeout = '10s'
"""


@dataclass(slots=True)
class JudgedDatabase:
    """options: pgoutput's."""

    server: Server
    name: str
    landing: Path
    options: Mapping[str, str] = field(default_factory=dict)
    _landed: int = 0

    def land(self) -> None:
        """Lands everything new as the archive's next file."""
        path = self.landing / f"{self._landed:03}.bin"
        self._landed += 1
        self.server.recvlogical(self.name, path, publications=[PUBLICATION], proto_version=1, **self.options)

    def tables(self, skipped: Collection[int] = ()) -> list[ServerTable]:
        """The published columns and rows of all published tables. skipped: OIDs of tables to leave out."""
        with self.server.connect() as connection:
            connection.execute(_SETTINGS)
            columns: dict[tuple[str, ...], list[tuple[str, int]]] = {}
            published = _PUBLISHED_14 if self.server.version == 14 else _PUBLISHED
            for *table, name, type_oid in _copied(connection, _TABLES % published, 6):
                of_table = columns.setdefault(tuple(text or "" for text in table), [])
                if name is not None and type_oid is not None:
                    of_table.append((name, int(type_oid)))
            wanted = {table: named for table, named in columns.items() if int(table[0]) not in skipped}
            return [_read(connection, table, named) for table, named in wanted.items()]

    def query(self, query: bytes, width: int) -> list[tuple[Text, ...]]:
        """The rows as texts, of a query with this number of columns."""
        with self.server.connect() as connection:
            connection.execute(_SETTINGS)
            return _copied(connection, query, width)


def _read(connection: psycopg.Connection[Any], table: tuple[str, ...], columns: list[tuple[str, int]]) -> ServerTable:
    oid, schema, name, kind = table
    only = "" if kind == "p" else "only "
    names = [column for column, _ in columns]
    query = f"select {', '.join(map(_quoted, names))} from {only}{_quoted(schema)}.{_quoted(name)}"
    rows = _copied(connection, query.encode("utf-8", "surrogateescape"), len(names))
    return ServerTable(int(oid), schema, name, tuple(names), tuple(type_oid for _, type_oid in columns), tuple(rows))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _copied(connection: psycopg.Connection[Any], query: bytes, width: int) -> list[tuple[Text, ...]]:
    with connection.cursor() as cursor, cursor.copy(b"copy (" + query + b") to stdout") as copied:
        content = b"".join(copied)
    rows = text_rows(content, "COPY", width)
    return [tuple(None if cell is None else cell.decode("utf-8", "surrogateescape") for cell in row) for row in rows]


@contextmanager
def judged_database(
    server: Server,
    name: str,
    landing: Path,
    *,
    created: str = "",
    setup: str = "",
    publication: str = "",
    has_catalog: bool = False,
    **options: str,
) -> Iterator[JudgedDatabase]:
    """A new database with a slot that is older than its tables, and a publication for all tables.

    created: options of CREATE DATABASE. setup: statements before the slot is created. publication: the publication's
    options. has_catalog: the server sends catalog Messages, signed with CATALOG_KEY. options: pgoutput's.
    """
    server.psql(f'create database "{name}" {created}')
    server.database = name
    try:
        given = f"with ({publication})" if publication else ""
        server.psql(f"{setup} {_COMPLETE} create publication {PUBLICATION} for all tables {given}")
        server.create_slot(name)
        if has_catalog:
            key = f"create materialized view pgoutput_etl.catalog_key as select '\\x{CATALOG_KEY}'::bytea as key"
            server.psql(f"create schema pgoutput_etl; {key}")
            installed = server.run_scripts("-f", str(CATALOG))
            assert installed.returncode == 0, installed.stderr
            options["messages"] = "true"
        yield JudgedDatabase(server, name, landing, options)
    finally:
        _drop(server, name)


def _drop(server: Server, name: str) -> None:
    with server.connect() as connection:
        prepared = "select gid from pg_prepared_xacts where database = current_database()"
        for (gid,) in connection.execute(prepared).fetchall():
            connection.execute(sql.SQL("rollback prepared {}").format(sql.Literal(gid)))
        connection.execute(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where database = current_database()"
        )
    server.database = "postgres"
    server.psql(f'drop database "{name}" with (force)')
