"""SQL for a PostgreSQL server: columns, WAL positions, a table's rows, and how to divide them among connections.

Values are printed by their type's output function, which format's %s calls for every type; a cast to text would print
`true` for a bool and strip the blanks of a char(n). Names are quoted only here. Queries contain no values except
integers and the row filters in the server's own catalog.

Sessions have no search path, so functions and operators are PostgreSQL's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

# A session's settings. The first ones keep code of a table's owner from running with the reader's privileges: functions
# that shadow PostgreSQL's, row-level security (a table that has it is an error), and views in place of tables. The
# others affect PostgreSQL's text output. They are a single statement, because a prepared one can't contain several.
_SETTINGS = {
    "search_path": "",
    "row_security": "off",
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "3",
}
SESSION = (
    "SELECT "
    + "".join(f"pg_catalog.set_config('{name}', '{value}', false), " for name, value in _SETTINGS.items())
    + "(SELECT pg_catalog.set_config(name, 'view, foreign-table', false) FROM pg_catalog.pg_settings "
    "WHERE name OPERATOR(pg_catalog.=) 'restrict_nonsystem_relation_kind')"
)

# The environment of a receiver, as in conf/landing/shop.env: sets the text form of values, overriding database and
# role.
RECEIVER_ENVIRONMENT = {
    "PGCLIENTENCODING": "UTF8",
    "PGOPTIONS": (
        "-c DateStyle=ISO -c IntervalStyle=postgres -c bytea_output=hex -c TimeZone=UTC -c extra_float_digits=3"
    ),
}

# Settings for a psql script with literals of such texts, within a transaction.
SCRIPT_SETTINGS = """SET LOCAL search_path = '';
SET LOCAL client_encoding = 'UTF8';
SET LOCAL standard_conforming_strings = on;
SET LOCAL DateStyle = 'ISO, MDY';
SET LOCAL IntervalStyle = 'postgres';
SET LOCAL TimeZone = 'UTC';
SET LOCAL bytea_output = 'hex';
SET LOCAL extra_float_digits = 3;
"""

POSITION = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()::text ELSE pg_current_wal_lsn()::text END "
    "AS lsn, current_setting('server_version_num')::int AS version"
)

DATABASE_BYTES = "SELECT pg_database_size(current_database()) AS bytes"

TIME = "SELECT (extract(epoch FROM now() - timestamptz '2000-01-01 00:00:00+00') * 1000000)::bigint AS time"


def copied_rows(schema: str, name: str, columns: Sequence[str], is_root: bool, conditions: Iterable[str]) -> str:
    """COPY of the rows of `own_rows` that meet all conditions. Each line begins with an empty field, so no line is
    empty and no value at its beginning can be mistaken for a byte order mark."""
    fields = ", ".join(("NULL", *(f"t.{identifier(column)}" for column in columns)))
    where = " AND ".join(f"({condition})" for condition in conditions) or "true"
    return f"COPY (SELECT {fields} FROM {own_rows(schema, name, is_root)} AS t WHERE {where}) TO STDOUT (FORMAT csv)"


def key_limits(schema: str, name: str, key: str, is_root: bool) -> str:
    column = identifier(key)
    table = own_rows(schema, name, is_root)
    return f"SELECT min({column})::bigint AS low, max({column})::bigint AS high FROM {table}"


def own_rows(schema: str, name: str, is_root: bool) -> str:
    """A table's own rows or, for a partitioned table, those of its partitions."""
    return f"{'' if is_root else 'ONLY '}{qualified(schema, name)}"


def sizes(oids: Iterable[int]) -> str:
    """By OID: each table's pages, bytes including TOAST, and approximate number of rows, NULL if a part of it
    was never analyzed. A root has those of its partitions."""
    return (  # without an analysis, reltuples is -1, before PostgreSQL 14 it is 0
        f"{_with_parts(oids)}SELECT p.root::bigint AS oid, "
        "sum(pg_relation_size(p.oid::regclass) / current_setting('block_size')::bigint)::bigint AS pages, "
        "sum(pg_table_size(p.oid::regclass))::bigint AS bytes, "
        "CASE WHEN bool_or(c.reltuples <= 0 AND pg_relation_size(p.oid::regclass) > 0) THEN NULL "
        "ELSE coalesce(sum(greatest(c.reltuples, 0)) FILTER (WHERE c.relkind = 'r'), 0)::bigint END AS rows "
        "FROM parts p JOIN pg_catalog.pg_class c ON c.oid = p.oid GROUP BY 1"
    )


# The number of rows that each COPY of a query by this user has sent so far.
COPIED = (
    "SELECT p.pid, a.query, p.tuples_processed AS rows FROM pg_catalog.pg_stat_progress_copy p "
    "JOIN pg_catalog.pg_stat_activity a ON a.pid = p.pid "
    "WHERE p.command = 'COPY TO' AND p.relid = 0 AND a.usename = current_user AND a.datid = p.datid"
)


def _with_parts(oids: Iterable[int]) -> str:
    """A WITH clause for `parts`: ordinary tables, each as its own root, and the partitions of roots."""
    return (
        f"WITH RECURSIVE parts(root, oid) AS (SELECT o, o FROM unnest('{{{integers(oids)}}}'::oid[]) AS o "
        "UNION SELECT p.root, i.inhrelid FROM parts p JOIN pg_catalog.pg_class r ON r.oid = p.root AND r.relkind = 'p' "
        "JOIN pg_catalog.pg_inherits i ON i.inhparent = p.oid) "
    )


def rewritten(oids: Iterable[int]) -> str:
    """OIDs of tables that were rewritten since the snapshot, or whose partitions were. The snapshot sees such tables as
    empty."""
    return (
        f"{_with_parts(oids)}SELECT DISTINCT p.root::bigint AS oid FROM parts p "
        "JOIN pg_catalog.pg_class c ON c.oid = p.oid "
        "WHERE c.relkind = 'r' AND c.relfilenode IS DISTINCT FROM pg_relation_filenode(c.oid)"
    )


def shares_of_integers(name: str, low: int | None, high: int | None, count: int) -> list[str]:
    """Conditions on a column, one per connection; each row meets exactly one."""
    if low is None or high is None or count == 1:
        return ["true"]
    step = max(1, -(-(high - low + 1) // count))
    return _shares(f"t.{identifier(name)}", [str(at) for at in range(low + step, high + 1, step)])


def shares_of_pages(count: int, connections: int) -> list[str]:
    step = max(1, -(-count // connections))
    return _shares("t.ctid", [f"'({at:d},0)'::tid" for at in range(step, count, step)])


def within(name: str, ranges: Iterable[tuple[int, int]]) -> str:
    """A condition on a column. ranges: (least, greatest) values."""
    return " OR ".join(f"t.{identifier(name)} BETWEEN {least:d} AND {greatest:d}" for least, greatest in ranges)


def _shares(column: str, bounds: Sequence[str]) -> list[str]:
    if not bounds:
        return ["true"]
    between = [f"{column} >= {low} AND {column} < {high}" for low, high in pairwise(bounds)]
    return [f"{column} < {bounds[0]}", *between, f"{column} >= {bounds[-1]}"]


def identifier(name: str) -> str:
    """Quotes a name, which may contain any character except NUL."""
    return '"' + name.replace('"', '""') + '"'


def qualified(schema: str, name: str) -> str:
    """A table's name."""
    return f"{identifier(schema)}.{identifier(name)}"


def literal(text: str | None) -> str:
    """An SQL literal, for standard_conforming_strings = on."""
    return "NULL" if text is None else "'" + text.replace("'", "''") + "'"


def insertion(table: str, columns: Iterable[str]) -> str:
    """The beginning of an INSERT, before VALUES; also for columns that are GENERATED ALWAYS AS IDENTITY. table,
    columns: quoted."""
    return f"INSERT INTO {table} ({', '.join(columns)}) OVERRIDING SYSTEM VALUE VALUES "


def as_text(column: str) -> str:
    """A column as text. Uses IS DISTINCT FROM NULL, because a composite value of NULLs IS NULL but is not NULL
    itself."""
    return f"CASE WHEN {column} IS DISTINCT FROM NULL THEN pg_catalog.format('%s', {column}) END"


def integers(numbers: Iterable[int]) -> str:
    return ", ".join(f"{number:d}" for number in numbers)
