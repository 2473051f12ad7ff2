"""The partitions of a root in a server's catalog, described as pgoutput would describe them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity

# An SQL expression: the key columns of pg_index `i`, without INCLUDE columns, which identify nothing. to_jsonb omits
# catalog columns that a version of PostgreSQL doesn't have.
KEY_ATTRIBUTES = "(i.indkey::int2[])[0:coalesce((to_jsonb(i)->>'indnkeyatts')::int, i.indnatts) - 1]"


def described_with_partitions(root: str) -> str:
    """An SQL expression: a JSON array of a table and all partitions below it. root: an expression for its OID, which
    must not use the aliases `above` and `part`.

    A table that others inherit from has no partitions: their rows are published under their own names.
    """
    return f"""(WITH RECURSIVE parts(oid) AS (SELECT {root} UNION SELECT h.inhrelid FROM parts
    JOIN pg_catalog.pg_class above ON above.oid = parts.oid AND above.relkind = 'p'
    JOIN pg_catalog.pg_inherits h ON h.inhparent = above.oid)
  SELECT json_agg(json_build_object('oid', part.oid::bigint, 'schema', n.nspname, 'table', part.relname,
      'identity', part.relreplident, 'columns', (SELECT coalesce(json_agg(json_build_object('name', a.attname,
        'type', a.atttypid::bigint, 'modifier', a.atttypmod, 'identity', part.relreplident = 'f'
        OR coalesce(a.attnum = ANY ({KEY_ATTRIBUTES}), false)) ORDER BY a.attnum), '[]'::json)
      FROM pg_catalog.pg_attribute a LEFT JOIN pg_catalog.pg_index i ON i.indrelid = a.attrelid AND i.indisvalid
        AND CASE part.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
      WHERE a.attrelid = part.oid AND a.attnum > 0 AND NOT a.attisdropped))
    ORDER BY part.oid <> {root}, n.nspname, part.relname)
  FROM parts JOIN pg_catalog.pg_class part ON part.oid = parts.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = part.relnamespace
  WHERE part.relkind = 'r' OR part.oid = {root})"""


def described_relations(rows: Iterable[Mapping[str, Any]]) -> tuple[Relation, ...]:
    """rows: elements of the array; the root is the first."""
    return tuple(
        Relation(
            None,
            row["oid"],
            row["schema"],
            row["table"],
            ReplicaIdentity(row["identity"]),
            tuple(RelationColumn(c["identity"], c["name"], c["type"], c["modifier"]) for c in row["columns"]),
        )
        for row in rows
    )
