"""Queries for the digests and rows of a table on the server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pgoutput_etl.answers.verify.key_ranges import BUCKETS, HALF_BITS, HALF_DIGITS, Ranges
from pgoutput_etl.postgres.queries import as_text, identifier, integers


@dataclass(frozen=True, slots=True)
class ServerTable:
    """A table on the server. columns: the compared columns, in order. nullable_key: ranges of integers must also select
    NULL."""

    schema: str
    name: str
    columns: tuple[str, ...]
    nullable_key: bool = True

    @property
    def _from(self) -> str:
        return f"{identifier(self.schema)}.{identifier(self.name)}"

    def digests(self, ranges: Ranges) -> str:
        """A row per range: range, rows, first and second (the sums of the MD5s' halves, as text)."""
        if ranges.starts is not None:
            return (
                f"SELECT r.range, d.* FROM {_unnest_ranges(ranges, range(ranges.count))} AS r(range, low, high) "
                f"CROSS JOIN LATERAL (SELECT {_SUMS} FROM (SELECT {self._texts()} FROM {self._from} AS t "
                f"WHERE {self._within(ranges)}) AS v, LATERAL (SELECT {self._md5()} AS m) AS h) AS d"
            )
        return (
            f"SELECT {_bucket(ranges)} AS range, {_SUMS} FROM (SELECT {self._texts()} FROM {self._from} AS t) AS v, "
            f"LATERAL (SELECT {self._md5()} AS m) AS h GROUP BY 1"
        )

    def rows(self, ranges: Ranges, numbers: Sequence[int]) -> str:
        """The rows of the given ranges: range, t0 …, xmin."""
        texts = f"{self._texts()}, t.xmin::text::bigint AS xmin"
        if ranges.starts is not None:
            return (
                f"SELECT r.range, v.* FROM {_unnest_ranges(ranges, numbers)} AS r(range, low, high) "
                f"CROSS JOIN LATERAL (SELECT {texts} FROM {self._from} AS t WHERE {self._within(ranges)}) AS v"
            )
        inner = f"SELECT {_bucket(ranges)} AS range, v.* FROM (SELECT {texts} FROM {self._from} AS t) AS v"
        return f"SELECT * FROM ({inner}) AS b WHERE range IN ({integers(numbers)})"

    def _texts(self) -> str:
        return ", ".join(f"{as_text(f't.{identifier(name)}')} AS t{i}" for i, name in enumerate(self.columns))

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


def _md5_of(positions: Iterable[int]) -> str:
    """The twin of key_ranges.encode_row, in UTF-8 whatever the server's encoding is."""
    parts = (f"CASE WHEN t{i} IS NULL THEN '-' ELSE length(t{i}) || ':' || t{i} END" for i in positions)
    return f"md5(convert_to({' || '.join(parts)}, 'UTF8'))"


def _bucket(ranges: Ranges) -> str:
    if ranges.buckets == 1:
        return "0"
    assert ranges.buckets == BUCKETS, "a bucket is a byte"
    return f"('x' || substr({_md5_of(ranges.columns)}, 1, 2))::bit(8)::int"


def _unnest_ranges(ranges: Ranges, numbers: Sequence[int]) -> str:
    bounds = ranges.bounds
    lows, highs = [bounds[i][0] for i in numbers], [bounds[i][1] for i in numbers]
    arrays = (f"'{{{integers(column)}}}'::bigint[]" for column in (numbers, lows, highs))
    return f"unnest({', '.join(arrays)})"
