"""Differences that docs/schema-changes.md documents, found in the server's catalog and not by a list of tables.

A limit excuses the columns that it concerns: all other columns must have the server's values in as many rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tests.support.servers.judged_database import JudgedDatabase
from tests.support.verdicts import (
    AppliedNight,
    AppliedTable,
    Judgment,
    ServerTable,
    Verdict,
    difference_in,
    difference_of,
    is_unknown,
)

# Event triggers record the columns that the server changed without sending rows. Each table without a primary key gets
# REPLICA IDENTITY FULL. The tables are unlogged, and so in no archive.
WATCH = """
create schema limits;
create unlogged table limits.older as select oid from pg_class;
create unlogged table limits.columns
  (attrelid oid, attnum int, atttypid oid, atttypmod int, attgenerated "char", primary key (attrelid, attnum));
create unlogged table limits.found (attrelid oid, attnum int, kind text);
create function limits.record(relation oid) returns void language plpgsql as $$
begin
  insert into limits.found select relation, a.attnum, 'type' from pg_attribute a join limits.columns c
    using (attrelid, attnum) where attrelid = relation and (a.atttypid, a.atttypmod) <> (c.atttypid, c.atttypmod);
  insert into limits.found select relation, a.attnum, 'expression' from pg_attribute a join limits.columns c
    using (attrelid, attnum) where attrelid = relation and a.attgenerated <> c.attgenerated;
  insert into limits.found select relation, a.attnum, 'default' from pg_attribute a
    where attrelid = relation and (atthasdef or atthasmissing or attidentity <> '')
    and exists (select from limits.columns c where c.attrelid = relation)
    and not exists (select from limits.columns c where c.attrelid = relation and c.attnum = a.attnum);
  insert into limits.columns select attrelid, attnum, atttypid, atttypmod, attgenerated from pg_attribute
    where attrelid = relation and attnum > 0 and not attisdropped
    on conflict (attrelid, attnum) do update
    set atttypid = excluded.atttypid, atttypmod = excluded.atttypmod, attgenerated = excluded.attgenerated;
end $$;
create function limits.watch() returns event_trigger language plpgsql security definer as $$
declare made record;
begin
  for made in select * from pg_event_trigger_ddl_commands()
      where classid in ('pg_class'::regclass, 'pg_type'::regclass) and schema_name is distinct from 'pg_temp' loop
    if made.command_tag like 'ALTER%' then
      insert into limits.found select attrelid, attnum, 'value' from pg_attribute a join pg_type t on t.oid = atttypid
        left join pg_type e on e.oid = t.typelem left join pg_type b on b.oid = t.typbasetype
        where attnum > 0 and made.objid in (t.oid, t.typrelid, e.oid, e.typrelid, b.oid, b.typrelid);
    end if;
    perform limits.record(below.relation) from (
      with recursive tree as (select made.objid as relation
        union select inhrelid from pg_inherits join tree on inhparent = tree.relation) select relation from tree) below;
    if exists (select from pg_class c where c.oid = made.objid and relkind in ('r', 'p') and relreplident = 'd'
        and not exists (select from pg_index where indrelid = c.oid and indisprimary)) then
      execute format('alter table only %s replica identity full', made.objid::regclass);
    end if;
  end loop;
exception when others then null; -- a limit that is not recorded excuses nothing
end $$;
create event trigger limits_watch on ddl_command_end execute function limits.watch();
"""
_FOUND = b"""
select distinct f.attrelid, a.attname, f.kind from limits.found f
join pg_attribute a on (a.attrelid, a.attnum) = (f.attrelid, f.attnum) where not a.attisdropped
"""

_OLDER = b"select oid from limits.older"

# The words of docs/schema-changes.md
OLDER = "rows older than the slot"
RENAMED = "table renamed and never written again"
NO_ROW_SINCE = "with the first committed row after it"
KINDS: Mapping[str, str] = {
    "default": "ADD COLUMN … DEFAULT",
    "expression": "ALTER COLUMN … DROP EXPRESSION",
    "type": "other type change",
    "value": "ALTER TYPE … RENAME VALUE",
}
LIMITS = (OLDER, RENAMED, NO_ROW_SINCE, *KINDS.values())


@dataclass(frozen=True, slots=True)
class Limits:
    """older: OIDs of tables that are older than the slot. changed: by OID, the kinds of changes by column."""

    older: frozenset[int]
    changed: Mapping[int, Mapping[str, str]]

    @classmethod
    def found_in(cls, database: JudgedDatabase) -> Limits:
        changed: dict[int, dict[str, str]] = {}
        for oid, name, kind in database.query(_FOUND, 3):
            changed.setdefault(int(oid or 0), {})[name or ""] = kind or ""
        return cls(frozenset(int(oid or 0) for (oid,) in database.query(_OLDER, 1)), changed)

    def applied(
        self, judgments: Mapping[str, Judgment], night: AppliedNight, tables: Iterable[ServerTable]
    ) -> dict[str, Judgment]:
        """The judgments, with differences that a documented limit explains as reported."""
        judged = dict(judgments)
        for table in tables:
            judgment = judged[table.full_name]
            if judgment.verdict is Verdict.OTHER and night.is_finished and (limit := self.of(table, night)):
                judged[table.full_name] = replace(judgment, verdict=Verdict.REPORTED, limit=limit)
        return judged

    def of(self, server: ServerTable, night: AppliedNight) -> str:
        """The documented limit that explains the whole difference; empty if there is none."""
        if server.oid in self.older or is_unknown(night, server):
            return OLDER
        by_oid = {table.relation.oid: table for table in night.tables.values()}
        table = by_oid.get(server.oid)
        if table is None:
            return ""
        if not difference_of(server, table):
            return RENAMED
        changed = self.changed.get(server.oid, {})
        same = _same_columns(server, table)
        if difference_in(server, table, [name for name in same if name not in changed]):
            return ""
        kinds = {KINDS[kind] for name, kind in changed.items() if name in same}
        return ", ".join(sorted(kinds)) or NO_ROW_SINCE


def _same_columns(server: ServerTable, table: AppliedTable) -> list[str]:
    """The columns whose name and type are those of the archive's last Relation message."""
    known = {column.name: column.type_oid for column in table.relation.columns}
    return [name for name, type_oid in zip(server.columns, server.types, strict=True) if known.get(name) == type_oid]
