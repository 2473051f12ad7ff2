"""Reads descriptions of published tables from a server's catalog, with one query that returns a JSON text.

A table without changes since the slot was created has no Relation message in the archive. The catalog has what pgoutput
would send (logicalrep_write_rel and logicalrep_write_typ in proto.c): OIDs, names, and columns of the replica identity.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.postgres.partitions import KEY_ATTRIBUTES, described_relations, described_with_partitions
from pgoutput_etl.protocol.messages import Relation, RelationColumn, ReplicaIdentity, Type

T = TypeVar("T")

# to_jsonb omits columns that a version of PostgreSQL doesn't have.
QUERY = f"""
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
    coalesce(a.attnum = ANY ({KEY_ATTRIBUTES}), false) AS is_identity
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
  'for_all_tables', (SELECT coalesce(json_agg(pubname), '[]'::json) FROM pg_catalog.pg_publication WHERE puballtables),
  'oids', (SELECT coalesce(json_agg(oid::bigint), '[]'::json) FROM pg_catalog.pg_class
    WHERE relkind IN ('r', 'p') AND oid >= 16384),
  'tables', (SELECT coalesce(json_agg(json_build_object(
      'oid', t.oid::bigint, 'schema', t.nspname, 'table', t.relname, 'kind', t.relkind, 'identity', t.relreplident,
      'publications', to_json(t.publications), 'columns', (SELECT coalesce(json_agg(json_build_object(
        'name', a.attname, 'type', a.atttypid::bigint, 'modifier', a.atttypmod, 'not_null', a.attnotnull,
        'generated', a.generated, 'identity', a.is_identity) ORDER BY a.attnum), '[]'::json)
        FROM attributes a WHERE a.oid = t.oid), 'described', CASE WHEN t.relkind = 'p' THEN
        {described_with_partitions("t.oid")} END) ORDER BY t.nspname, t.relname), '[]'::json) FROM published t),
  'types', (SELECT coalesce(json_agg(json_build_object('oid', d.oid::bigint, 'schema', n.nspname, 'name', t.typname)),
      '[]'::json) FROM domains d JOIN pg_catalog.pg_type t ON t.oid = d.base
      JOIN pg_catalog.pg_namespace n ON n.oid = t.typnamespace WHERE t.typtype <> 'd')
)::text AS catalog
""".strip()


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """relation: as pgoutput would describe it. filter: the publication's row filter, an SQL expression. is_root: it is
    a partitioned table, and its partitions have the rows. not_null: names of NOT NULL columns. is_unique: no two rows
    have the same values in the published columns of the replica identity. partitions: if it is a root."""

    relation: Relation
    filter: str | None
    is_root: bool
    not_null: frozenset[str]
    is_unique: bool = False
    partitions: tuple[Relation, ...] = ()


@dataclass(frozen=True, slots=True)
class Catalog:
    """known: OIDs of all tables in the database, published or not, if tables that are created later are published;
    otherwise None."""

    version: int
    tables: tuple[CatalogTable, ...]
    types: tuple[Type, ...]
    known: frozenset[int] | None = None

    @property
    def partitions(self) -> dict[int, tuple[Relation, ...]]:
        """The partitions, by the root's OID."""
        return {table.relation.oid: table.partitions for table in self.tables if table.is_root}


def read_catalog(text: str, publications: Collection[str], wanted: Callable[[str], bool]) -> Catalog:
    """text: the result of QUERY. publications: names; all if empty. wanted: filters tables by schema.table.

    Raises ConfigError for any other text, and for a table whose columns or rows differ between publications.
    """
    try:
        catalog = json.loads(text)
        version, tables, types = int(catalog["version"]), catalog["tables"], catalog["types"]
    except (ValueError, KeyError, TypeError):
        raise ConfigError("--catalog: expected the result of the query of jobs/snapshot.py --catalog-query") from None
    known = {p["name"] for row in tables for p in row["publications"]}
    missing = sorted(set(publications) - known)
    if missing:
        raise ConfigError(f"--publications: no publication {missing[0]!r} has tables")
    described = []
    for row in tables:
        chosen = [p for p in row["publications"] if not publications or p["name"] in publications]
        if wanted(f"{row['schema']}.{row['table']}") and chosen:
            described.append(_table(row, chosen))
    is_for_all = any(not publications or name in publications for name in catalog.get("for_all_tables", ()))
    oids = frozenset(catalog["oids"]) if is_for_all else None
    described_types = tuple(Type(None, t["oid"], t["schema"], t["name"]) for t in types)
    return Catalog(version, tuple(described), described_types, oids)


def _table(row: Mapping[str, Any], publications: list[Mapping[str, Any]]) -> CatalogTable:
    # Before PostgreSQL 15, all columns except generated ones are published.
    plain = frozenset(c["name"] for c in row["columns"] if not c["generated"])
    names = _same(row, "columns", {plain if p["columns"] is None else frozenset(p["columns"]) for p in publications})
    row_filter = _same(row, "rows", {p["filter"] for p in publications})
    identity = ReplicaIdentity(row["identity"])
    columns = tuple(
        RelationColumn(identity is ReplicaIdentity.FULL or c["identity"], c["name"], c["type"], c["modifier"])
        for c in row["columns"]
        if c["name"] in names
    )
    relation = Relation(None, row["oid"], row["schema"], row["table"], identity, columns)
    not_null = frozenset(c["name"] for c in row["columns"] if c["not_null"])
    described = described_relations(row.get("described") or ())  # missing in files from an older query
    key = {c["name"] for c in row["columns"] if c["identity"]}
    is_unique = identity is not ReplicaIdentity.FULL and bool(key) and key <= names & not_null
    return CatalogTable(relation, row_filter, row["kind"] == "p", not_null, is_unique, described[1:])


def _same(row: Mapping[str, Any], part: str, values: set[T]) -> T:
    """The single value that all publications have. Raises ConfigError if they differ."""
    if len(values) > 1:
        names = ", ".join(sorted(p["name"] for p in row["publications"]))
        raise ConfigError(
            f"the publications {names} have different {part} of {row['schema']}.{row['table']}: name those that the "
            "slot's receiver uses, with --publications"
        )
    return values.pop()


def relation_row(relation: Relation) -> dict[str, Any]:
    """The relation as JSON values."""
    row = {**asdict(relation), "replica_identity": relation.replica_identity.value}
    for column in row["columns"]:
        del column["types"]  # they are in the archive
    return row


def relation_of(row: Mapping[str, Any]) -> Relation:
    columns = tuple(RelationColumn(**column) for column in row["columns"])
    return Relation(**{**row, "replica_identity": ReplicaIdentity(row["replica_identity"]), "columns": columns})
