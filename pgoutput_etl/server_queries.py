"""What a PostgreSQL server is asked, as SQL: its columns, where it stands, digests of ranges, rows of some ranges.

A value is taken as its type's output function prints it: format's %s does that for every type, where a cast to text
would make `true` of a bool and cut the blanks off a char(n). Names are quoted here and nowhere else; no value is ever
part of a query, but for the integers that bound ranges.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pgoutput_etl.comparing import BUCKETS, HALF_BITS, HALF_DIGITS, Ranges

# One statement, as a prepared one can't be several. What PostgreSQL prints depends on these.
SESSION = (
    "SELECT set_config('TimeZone', 'UTC', false), set_config('DateStyle', 'ISO, MDY', false), "
    "set_config('IntervalStyle', 'postgres', false), set_config('bytea_output', 'hex', false), "
    "set_config('extra_float_digits', '3', false)"
)
_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '{}'; "
POSITION = (
    "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()::text ELSE pg_current_wal_lsn()::text END "
    "AS lsn, current_setting('server_version_num')::int AS version"
)
TIME = "SELECT (extract(epoch FROM now() - timestamptz '2000-01-01 00:00:00+00') * 1000000)::bigint AS time"
COLUMNS = (
    "SELECT n.nspname::text AS schema, c.relname::text AS name, a.attname::text AS column_name, "
    "a.attnotnull AS not_null, a.attnum::int AS position "
    "FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace "
    "JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid "
    "WHERE c.relkind IN ('r', 'p') AND a.attnum > 0 AND NOT a.attisdropped"
)


@dataclass(frozen=True, slots=True)
class ServerTable:
    """A table on the server. columns: those that are compared, in their order. nullable_key: ranges of integers have to
    ask for NULL, too."""

    schema: str
    name: str
    columns: tuple[str, ...]
    nullable_key: bool = True

    @property
    def _from(self) -> str:
        return f"{identifier(self.schema)}.{identifier(self.name)}"

    def digests(self, ranges: Ranges) -> str:
        """A row per range: range, rows, first, second (the sums of MD5s' halves, as text)."""
        if ranges.starts is not None:
            return (
                f"SELECT r.range, d.* FROM {_listed(ranges, range(ranges.count))} AS r(range, low, high) "
                f"CROSS JOIN LATERAL (SELECT {_SUMS} FROM (SELECT {self._texts()} FROM {self._from} AS t "
                f"WHERE {self._within(ranges)}) AS v, LATERAL (SELECT {self._md5()} AS m) AS h) AS d"
            )
        return (
            f"SELECT {_bucket(ranges)} AS range, {_SUMS} FROM (SELECT {self._texts()} FROM {self._from} AS t) AS v, "
            f"LATERAL (SELECT {self._md5()} AS m) AS h GROUP BY 1"
        )

    def rows(self, ranges: Ranges, which: Sequence[int]) -> str:
        """The rows of some ranges: range, t0 …, xmin."""
        texts = f"{self._texts()}, t.xmin::text::bigint AS xmin"
        if ranges.starts is not None:
            return (
                f"SELECT r.range, v.* FROM {_listed(ranges, which)} AS r(range, low, high) "
                f"CROSS JOIN LATERAL (SELECT {texts} FROM {self._from} AS t WHERE {self._within(ranges)}) AS v"
            )
        inner = f"SELECT {_bucket(ranges)} AS range, v.* FROM (SELECT {texts} FROM {self._from} AS t) AS v"
        return f"SELECT * FROM ({inner}) AS b WHERE range IN ({_integers(which)})"

    def _texts(self) -> str:
        return ", ".join(f"{_text(f't.{identifier(name)}')} AS t{i}" for i, name in enumerate(self.columns))

    def _md5(self) -> str:
        return _md5_of(range(len(self.columns)))

    def _within(self, ranges: Ranges) -> str:
        key = f"t.{identifier(self.columns[ranges.columns[0]])}"
        within = f"{key} BETWEEN r.low AND r.high"
        return f"({within} OR (r.range = 0 AND {key} IS NULL))" if self.nullable_key else within


_AS_NUMBER = f"::bit({HALF_BITS})::bigint"
_SUMS = (
    "count(*) AS rows, "
    f"coalesce(sum(('x' || substr(m, 1, {HALF_DIGITS})){_AS_NUMBER}), 0)::text AS first, "
    f"coalesce(sum(('x' || substr(m, {HALF_DIGITS + 1}, {HALF_DIGITS})){_AS_NUMBER}), 0)::text AS second"
)


def session_of(snapshot: str) -> str:
    """Spark runs it in the transaction that it reads in. `snapshot`: the name that the server gave one."""
    return _SNAPSHOT.format(snapshot) + SESSION


def snapshot_rows(
    schema: str, name: str, columns: Sequence[str], is_root: bool, place: str | None, where: str | None
) -> str:
    """t0 … of a table's own rows (a partitioned one's are its partitions'), as text, and `place`: the column by which
    they are divided. `where`: a publication's row filter, as the server's catalog has it."""
    texts = [f"{_text(f't.{identifier(column)}')} AS t{i}" for i, column in enumerate(columns)]
    if place is not None:
        texts.append(f"t.{place} AS place")
    only = "" if is_root else "ONLY "
    rows = f"SELECT {', '.join(texts)} FROM {only}{identifier(schema)}.{identifier(name)} AS t"
    return rows if where is None else f"{rows} WHERE {where}"


def key_limits(schema: str, name: str, key: str, is_root: bool) -> str:
    only = "" if is_root else "ONLY "
    column = identifier(key)
    table = f"{only}{identifier(schema)}.{identifier(name)}"
    return f"SELECT min({column})::bigint AS low, max({column})::bigint AS high FROM {table}"


def pages(oid: int) -> str:
    return f"SELECT pg_relation_size({oid:d}::oid::regclass) / current_setting('block_size')::bigint AS pages"


def rewritten(oids: Iterable[int]) -> str:
    """Which tables, or partitions of theirs, were written anew since the snapshot: to it they would look empty."""
    return (
        f"WITH RECURSIVE parts(root, oid) AS (SELECT o, o FROM unnest('{{{_integers(oids)}}}'::oid[]) AS o "
        "UNION SELECT p.root, i.inhrelid FROM parts p JOIN pg_catalog.pg_class r ON r.oid = p.root AND r.relkind = 'p' "
        "JOIN pg_catalog.pg_inherits i ON i.inhparent = p.oid) "
        "SELECT DISTINCT p.root::bigint AS oid FROM parts p JOIN pg_catalog.pg_class c ON c.oid = p.oid "
        "WHERE c.relkind = 'r' AND c.relfilenode IS DISTINCT FROM pg_relation_filenode(c.oid)"
    )


def shares_of_integers(low: int | None, high: int | None, count: int) -> list[str]:
    """Conditions on `place`, each for a connection of its own, of which every row meets one."""
    if low is None or high is None or count == 1:
        return ["true"]
    step = max(1, -(-(high - low + 1) // count))
    return _shares([str(at) for at in range(low + step, high + 1, step)])


def shares_of_pages(count: int, connections: int) -> list[str]:
    step = max(1, -(-count // connections))
    return _shares([f"'({at:d},0)'::tid" for at in range(step, count, step)])


def _shares(bounds: Sequence[str]) -> list[str]:
    if not bounds:
        return ["true"]
    between = [f"place >= {low} AND place < {high}" for low, high in pairwise(bounds)]
    return [f"place < {bounds[0]}", *between, f"place >= {bounds[-1]}"]


def identifier(name: str) -> str:
    """A name for PostgreSQL, which takes any but NUL in double quotes."""
    return '"' + name.replace('"', '""') + '"'


def _text(column: str) -> str:
    """IS DISTINCT FROM NULL, as a composite value of NULLs IS NULL and is none."""
    return f"CASE WHEN {column} IS DISTINCT FROM NULL THEN format('%s', {column}) END"


def _md5_of(positions: Iterable[int]) -> str:
    """As comparing.encoded does it, in UTF-8 whatever the server's encoding is."""
    parts = (f"CASE WHEN t{i} IS NULL THEN '-' ELSE length(t{i}) || ':' || t{i} END" for i in positions)
    return f"md5(convert_to({' || '.join(parts)}, 'UTF8'))"


def _bucket(ranges: Ranges) -> str:
    if ranges.buckets == 1:
        return "0"
    assert ranges.buckets == BUCKETS, "a bucket is a byte"
    return f"('x' || substr({_md5_of(ranges.columns)}, 1, 2))::bit(8)::int"


def _listed(ranges: Ranges, which: Iterable[int]) -> str:
    bounds = ranges.bounds
    chosen = list(which)
    lows, highs = [bounds[i][0] for i in chosen], [bounds[i][1] for i in chosen]
    arrays = (f"'{{{_integers(numbers)}}}'::bigint[]" for numbers in (chosen, lows, highs))
    return f"unnest({', '.join(arrays)})"


def _integers(numbers: Iterable[int]) -> str:
    return ", ".join(f"{number:d}" for number in numbers)
