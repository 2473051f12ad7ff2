"""What a server's catalog says of published tables, as Relation and Type messages would: by one query, as one JSON.

A table that nothing changed since the slot was made has no Relation message in the archive. What pgoutput would say of
it (logicalrep_write_rel and _typ in proto.c) is in the catalog: OID, names, which columns are of the replica identity.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity, Type

# What versions of PostgreSQL don't all have is asked for through to_jsonb, which leaves it out.
QUERY = """
WITH RECURSIVE published AS (
  SELECT c.oid, n.nspname, c.relname, c.relkind, c.relreplident, array_agg(json_build_object(
    'name', p.pubname, 'columns', to_jsonb(p)->'attnames', 'filter', to_jsonb(p)->>'rowfilter')) AS publications
  FROM pg_catalog.pg_publication_tables p
  JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
  GROUP BY 1, 2, 3, 4, 5
), attributes AS (
  SELECT t.oid, a.attname, a.attnum, a.atttypid, a.atttypmod, a.attnotnull,
    coalesce(to_jsonb(a)->>'attgenerated', '') <> '' AS generated,
    coalesce(a.attnum = ANY (i.indkey::int2[]), false) AS is_identity
  FROM published t
  JOIN pg_catalog.pg_attribute a ON a.attrelid = t.oid AND a.attnum > 0 AND NOT a.attisdropped
  LEFT JOIN pg_catalog.pg_index i ON i.indrelid = t.oid AND i.indisvalid AND i.indimmediate AND i.indisunique
    AND CASE t.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
), domains(oid, base) AS (
  SELECT DISTINCT atttypid, atttypid FROM attributes WHERE atttypid >= 10000
  UNION SELECT d.oid, t.typbasetype FROM domains d JOIN pg_catalog.pg_type t ON t.oid = d.base WHERE t.typtype = 'd'
)
SELECT json_build_object(
  'version', current_setting('server_version_num')::int,
  'tables', (SELECT coalesce(json_agg(json_build_object(
      'oid', t.oid::bigint, 'schema', t.nspname, 'table', t.relname, 'kind', t.relkind, 'identity', t.relreplident,
      'publications', to_json(t.publications), 'columns', (SELECT coalesce(json_agg(json_build_object(
        'name', a.attname, 'type', a.atttypid::bigint, 'modifier', a.atttypmod, 'not_null', a.attnotnull,
        'generated', a.generated, 'identity', a.is_identity) ORDER BY a.attnum), '[]'::json)
        FROM attributes a WHERE a.oid = t.oid)) ORDER BY t.nspname, t.relname), '[]'::json) FROM published t),
  'types', (SELECT coalesce(json_agg(json_build_object('oid', d.oid::bigint, 'schema', n.nspname, 'name', t.typname)),
      '[]'::json) FROM domains d JOIN pg_catalog.pg_type t ON t.oid = d.base
      JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace WHERE t.typtype <> 'd')
)::text AS catalog
""".strip()


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """relation: as pgoutput would describe it. filter: the publications' row filter, as an SQL expression. is_root: it
    is partitioned, and its rows are its partitions'. not_null: its columns that can't be NULL."""

    relation: Relation
    filter: str | None
    is_root: bool
    not_null: frozenset[str]

    @property
    def full_name(self) -> str:
        return f"{self.relation.namespace}.{self.relation.name}"


@dataclass(frozen=True, slots=True)
class Catalog:
    version: int
    tables: tuple[CatalogTable, ...]
    types: tuple[Type, ...]


def read_catalog(text: str, publications: Collection[str], wanted: Callable[[str], bool]) -> Catalog:
    """`text`: what QUERY gives. publications: what counts; all if none is named. wanted: tables, by schema.table.
    Raises ConfigError for a text that is none, and for tables that publications show in different ways."""
    try:
        found = json.loads(text)
        version, tables, types = int(found["version"]), found["tables"], found["types"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError("--catalog: expected what the query of jobs/snapshot.py --catalog-query gives") from None
    known = {p["name"] for row in tables for p in row["publications"]}
    missing = sorted(set(publications) - known)
    if missing:
        raise ConfigError(f"--publication: no publication {missing[0]!r} has tables")
    named = [row for row in tables if wanted(f"{row['schema']}.{row['table']}")]
    chosen = [(row, _counting(row, publications)) for row in named]
    return Catalog(
        version,
        tuple(_table(row, counting) for row, counting in chosen if counting),
        tuple(Type(None, t["oid"], t["schema"], t["name"]) for t in types),
    )


def _counting(row: Mapping[str, Any], publications: Collection[str]) -> list[Mapping[str, Any]]:
    return [p for p in row["publications"] if not publications or p["name"] in publications]


def _table(row: Mapping[str, Any], publications: list[Mapping[str, Any]]) -> CatalogTable:
    names = _columns(row, publications)
    identity = ReplicaIdentity(row["identity"])
    columns = tuple(
        RelationColumn(identity is ReplicaIdentity.FULL or c["identity"], c["name"], c["type"], c["modifier"])
        for c in row["columns"]
        if c["name"] in names
    )
    relation = Relation(None, row["oid"], row["schema"], row["table"], identity, columns)
    not_null = frozenset(c["name"] for c in row["columns"] if c["not_null"])
    return CatalogTable(relation, _filter(row, publications), row["kind"] == "p", not_null)


def _columns(row: Mapping[str, Any], publications: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Before PostgreSQL 15 all but generated ones are published."""
    plain = frozenset(c["name"] for c in row["columns"] if not c["generated"])
    found = {plain if p["columns"] is None else frozenset(p["columns"]) for p in publications}
    if len(found) > 1:
        raise ConfigError(_ambiguous(row, "columns"))
    return found.pop()


def _filter(row: Mapping[str, Any], publications: Iterable[Mapping[str, Any]]) -> str | None:
    found = {p["filter"] for p in publications}
    if len(found) > 1:
        raise ConfigError(_ambiguous(row, "rows"))
    filter_: str | None = found.pop()
    return filter_


def _ambiguous(row: Mapping[str, Any], what: str) -> str:
    names = ", ".join(sorted(p["name"] for p in row["publications"]))
    return (
        f"the publications {names} have different {what} of {row['schema']}.{row['table']}: --publication says which "
        "of them the slot's receiver names"
    )


def relation_row(relation: Relation) -> dict[str, Any]:
    """For JSON."""
    return {**asdict(relation), "replica_identity": relation.replica_identity.value}


def relation_of(row: Mapping[str, Any]) -> Relation:
    columns = tuple(RelationColumn(**column) for column in row["columns"])
    return Relation(**{**row, "replica_identity": ReplicaIdentity(row["replica_identity"]), "columns": columns})
