"""The facts about a server that an initial load needs: settings, user, publications, slots, and tables.

A single query returns all of it as one JSON text. It only reads catalogs, without locks, and needs no privileges.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter

from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.postgres.partitions import described_relations, described_with_partitions
from pgoutput_etl.protocol.messages import Relation

# to_jsonb omits columns that a version of PostgreSQL doesn't have. The order in `sender_settings` is PostgreSQL's own:
# a role's settings override the database's, and those for this database override those for all.
QUERY = f"""
WITH published AS (
  SELECT p.schemaname, p.tablename, json_agg(json_build_object('name', p.pubname, 'columns', to_jsonb(p)->'attnames',
    'filter', to_jsonb(p)->>'rowfilter') ORDER BY p.pubname) AS publications
  FROM pg_catalog.pg_publication_tables p GROUP BY 1, 2
), receivers AS (
  SELECT current_user AS role UNION SELECT r.usename FROM pg_catalog.pg_stat_replication r
  JOIN pg_catalog.pg_replication_slots s ON s.active_pid = r.pid WHERE s.database = current_database()
), sender_settings AS (
  SELECT DISTINCT ON (r.rolname, lower(split_part(c.text, '=', 1))) r.rolname AS role,
    lower(split_part(c.text, '=', 1)) AS name, substr(c.text, strpos(c.text, '=') + 1) AS value
  FROM pg_catalog.pg_roles r JOIN receivers ON receivers.role = r.rolname
  JOIN pg_catalog.pg_db_role_setting s ON s.setrole IN (0, r.oid)
    AND s.setdatabase IN (0, (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database())),
  unnest(s.setconfig) AS c(text)
  ORDER BY r.rolname, lower(split_part(c.text, '=', 1)), s.setrole = 0, s.setdatabase = 0
)
SELECT json_build_object(
  'version', current_setting('server_version_num')::int,
  'database', current_database(),
  'user', current_user,
  'is_standby', pg_is_in_recovery(),
  'lsn', CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END::text,
  'wal_level', current_setting('wal_level'),
  'max_slots', current_setting('max_replication_slots')::int,
  'max_senders', current_setting('max_wal_senders')::int,
  'senders', (SELECT count(*) FROM pg_catalog.pg_stat_replication),
  'may_replicate', (SELECT rolsuper OR rolreplication FROM pg_catalog.pg_roles WHERE rolname = current_user)
    OR EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'rds_replication'
      AND pg_has_role(current_user, oid, 'member')),
  'encoding', getdatabaseencoding(),
  'sender_settings', (SELECT coalesce(json_object_agg(o.role, o.settings), '{{}}'::json) FROM (SELECT r.role,
    coalesce(json_object_agg(s.name, s.value) FILTER (WHERE s.name IS NOT NULL), '{{}}'::json) AS settings
    FROM receivers r LEFT JOIN sender_settings s ON s.role = r.role GROUP BY r.role) o),
  'slots', (SELECT coalesce(json_agg(to_jsonb(s) ORDER BY s.slot_name), '[]'::json)
    FROM pg_catalog.pg_replication_slots s),
  'publications', (SELECT coalesce(json_agg(to_jsonb(p) ORDER BY p.pubname), '[]'::json)
    FROM pg_catalog.pg_publication p),
  'tables', (SELECT coalesce(json_agg(json_build_object(
      'schema', n.nspname, 'table', c.relname, 'is_root', c.relkind = 'p', 'is_partition', c.relispartition,
      'is_logged', c.relpersistence = 'p', 'identity', c.relreplident,
      'has_key', EXISTS (SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = c.oid AND i.indisvalid
        AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END),
      'may_select', has_schema_privilege(n.oid, 'USAGE') AND has_any_column_privilege(c.oid, 'SELECT'),
      'rows_hidden', row_security_active(c.oid),
      'columns', (SELECT coalesce(json_agg(a.attname), '[]'::json) FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        AND coalesce(to_jsonb(a)->>'attgenerated', '') = ''),
      'publications', coalesce(p.publications, '[]'::json),
      'described', {described_with_partitions("c.oid")})
      ORDER BY n.nspname, c.relname), '[]'::json)
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN published p ON p.schemaname = n.nspname AND p.tablename = c.relname
    WHERE c.relkind IN ('r', 'p') AND n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'pgoutput_etl'))
)::text AS server
""".strip()


@dataclass(frozen=True, slots=True)
class ReplicationSlot:
    """A row of pg_replication_slots. confirmed: confirmed_flush_lsn, which is where decoding began until a receiver
    confirms more; None for a physical slot. why_lost: why the server no longer has all of its WAL."""

    name: str
    plugin: str | None
    database: str | None
    is_temporary: bool
    is_active: bool
    confirmed: int | None
    why_lost: str | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> ReplicationSlot:
        lsn = row.get("confirmed_flush_lsn")
        why_lost = row.get("invalidation_reason") or ("wal_removed" if row.get("wal_status") == "lost" else None)
        return cls(
            row["slot_name"],
            row["plugin"],
            row["database"],
            bool(row.get("temporary")),
            bool(row["active"]),
            None if lsn is None else parse_lsn(lsn),
            why_lost,
        )


@dataclass(frozen=True, slots=True)
class Publication:
    """A row of pg_publication. omitted: operations that it doesn't publish."""

    name: str
    omitted: tuple[str, ...]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Publication:
        operations = ("insert", "update", "delete", "truncate")
        return cls(row["pubname"], tuple(name.upper() for name in operations if not row.get(f"pub{name}", True)))


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as the user sees it. is_root: it is partitioned. has_key: its replica identity has an index. identity:
    pg_class.relreplident. rows_hidden: row-level security applies to the user. columns: except generated ones.
    publications: those that contain it, each with `name`, `columns` (None for all), and `filter`. described: the table
    and, if it is a root, its partitions."""

    schema: str
    table: str
    is_root: bool
    is_partition: bool
    is_logged: bool
    identity: str
    has_key: bool
    may_select: bool
    rows_hidden: bool
    columns: tuple[str, ...]
    publications: tuple[Mapping[str, Any], ...]
    described: Annotated[tuple[Relation, ...], BeforeValidator(described_relations)] = ()

    @property
    def name(self) -> str:
        return f"{self.schema}.{self.table}"

    @property
    def is_keyless(self) -> bool:
        """True if PostgreSQL rejects UPDATE and DELETE when the table is published, because it has no replica
        identity."""
        return self.identity != "f" and not (self.has_key and self.identity != "n")

    def published_by(self, names: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
        """names: publications; empty for all."""
        return tuple(p for p in self.publications if not names or p["name"] in names)


@dataclass(frozen=True, slots=True)
class SourceServer:
    """lsn: the end of its WAL. senders: connected WAL senders. may_replicate: the user may create a slot. encoding: the
    database's. sender_settings: settings by role and database for the user and the connected receivers, by role and
    then by name in lower case."""

    version: int
    database: str
    user: str
    is_standby: bool
    lsn: Annotated[int, BeforeValidator(parse_lsn)]
    wal_level: str
    max_slots: int
    max_senders: int
    senders: int
    may_replicate: bool
    encoding: str = "UTF8"
    sender_settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    slots: tuple[Annotated[ReplicationSlot, BeforeValidator(ReplicationSlot.of)], ...] = ()
    publications: tuple[Annotated[Publication, BeforeValidator(Publication.of)], ...] = ()
    tables: tuple[SourceTable, ...] = ()

    @classmethod
    def of(cls, text: str) -> SourceServer:
        """text: the result of QUERY."""
        return TypeAdapter(cls).validate_json(text)
