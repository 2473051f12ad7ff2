"""Queries that compute digests, or read rows, of a table on the server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgoutput_etl.answers.verify.key_ranges import HALF_BITS, HALF_DIGITS, HASH_BITS, HASH_DIGITS, Ranges
from pgoutput_etl.postgres.queries import as_text, identifier, integers, own_rows


@dataclass(frozen=True, slots=True)
class ServerTable:
    """A table on the server. columns: the compared columns, in order. nullable_key: integer ranges must also select
    NULL. has_children: the rows of partitions are the table's own. where: a publication's row filter."""

    schema: str
    name: str
    columns: tuple[str, ...]
    nullable_key: bool = True
    has_children: bool = True
    where: str | None = None

    @property
    def _from(self) -> str:
        return f"{own_rows(self.schema, self.name, self.has_children)} AS t"

    @property
    def _filtered(self) -> str:
        return "" if self.where is None else f" WHERE {self.where}"

    def digests(self, ranges: Ranges, numbers: Sequence[int] | None = None) -> str:
        """One row per range: range, rows, first, and second (the sums of the MD5s' halves, as text). numbers: of the
        ranges to compute; None for all."""
        if not ranges.is_hashed:
            wanted = range(ranges.count) if numbers is None else numbers
            return (
                f"SELECT r.range, d.* FROM {_unnest_ranges(ranges, wanted)} AS r(range, low, high) "
                f"CROSS JOIN LATERAL (SELECT {_SUMS} FROM (SELECT {self._texts()} FROM {self._from} "
                f"WHERE {self._within(ranges)}) AS v, LATERAL (SELECT {self._md5()} AS m) AS h) AS d"
            )
        chosen = "" if numbers is None else f" WHERE p.range IN ({integers(numbers)})"
        return (
            f"SELECT p.range, {_SUMS} FROM (SELECT {self._texts()} FROM {self._from}{self._filtered}) AS v, "
            f"LATERAL (SELECT {_place(ranges)} AS range) AS p, LATERAL (SELECT {self._md5()} AS m) AS h{chosen} "
            "GROUP BY 1"
        )

    def rows(self, ranges: Ranges, numbers: Sequence[int]) -> str:
        """The rows of the given ranges: range, t0 …."""
        texts = self._texts()
        if not ranges.is_hashed:
            return (
                f"SELECT r.range, v.* FROM {_unnest_ranges(ranges, numbers)} AS r(range, low, high) "
                f"CROSS JOIN LATERAL (SELECT {texts} FROM {self._from} WHERE {self._within(ranges)}) AS v"
            )
        inner = f"SELECT {_place(ranges)} AS range, v.* FROM (SELECT {texts} FROM {self._from}{self._filtered}) AS v"
        return f"SELECT * FROM ({inner}) AS b WHERE range IN ({integers(numbers)})"

    def any_row(self) -> str:
        return f"SELECT EXISTS (SELECT FROM {self._from}{self._filtered}) AS has_rows"

    def _texts(self) -> str:
        return ", ".join(f"{as_text(f't.{identifier(name)}')} AS t{i}" for i, name in enumerate(self.columns))

    def _md5(self) -> str:
        return _md5_of(range(len(self.columns)))

    def _within(self, ranges: Ranges) -> str:
        key = f"t.{identifier(self.columns[ranges.columns[0]])}"
        within = f"{key} BETWEEN r.low AND r.high"
        within = f"({within} OR (r.range = 0 AND {key} IS NULL))" if self.nullable_key else within
        return within if self.where is None else f"{within} AND ({self.where})"


_AS_NUMBER = f"::bit({HALF_BITS})::bigint"

_SUMS = (
    "count(*) AS rows, "
    f"coalesce(sum(('x' || substr(m, 1, {HALF_DIGITS})){_AS_NUMBER}), 0)::text AS first, "
    f"coalesce(sum(('x' || substr(m, {HALF_DIGITS + 1}, {HALF_DIGITS})){_AS_NUMBER}), 0)::text AS second"
)


def _md5_of(positions: Iterable[int]) -> str:
    """The twin of key_ranges.encode_row, in UTF-8 regardless of the server's encoding."""
    parts = (f"CASE WHEN t{i} IS NULL THEN '-' ELSE length(t{i}) || ':' || t{i} END" for i in positions)
    return f"md5(convert_to({' || '.join(parts)}, 'UTF8'))"


def _place(ranges: Ranges) -> str:
    """The number of a row's range. width_bucket rejects an empty array."""
    if not ranges.starts:
        return "0"
    place = f"('x' || substr({_md5_of(ranges.columns)}, 1, {HASH_DIGITS}))::bit({HASH_BITS})::bigint"
    return f"width_bucket({place}, '{{{integers(ranges.starts)}}}'::bigint[])"


def _unnest_ranges(ranges: Ranges, numbers: Sequence[int]) -> str:
    bounds = ranges.bounds
    lows, highs = [bounds[i][0] for i in numbers], [bounds[i][1] for i in numbers]
    arrays = (f"'{{{integers(column)}}}'::bigint[]" for column in (numbers, lows, highs))
    return f"unnest({', '.join(arrays)})"
