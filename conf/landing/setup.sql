-- psql -d shop -f setup.sql, as a superuser: creates the landing role, the publication, and the slot. What exists is
-- kept. If landing needs a change of it, the script names the change and fails.
-- -v slot=etl_shop: another name than etl, because a server's databases can't have slots of the same name.
-- -v two_phase=true: prepared transactions are sent when they are prepared (PostgreSQL 15 and newer).
-- -v failover=true: standbys have the slot too (PostgreSQL 17 and newer; both options together from 18 on).
-- -v catalog=false: without catalog.sql, which writes changes of tables' definitions into the slot (PostgreSQL 14 and
-- newer).
-- -v keyless=accept: creates the publication also if it makes PostgreSQL reject UPDATEs and DELETEs that work today.
\set ON_ERROR_STOP on
set search_path = '';
\if :{?slot} \else \set slot etl \endif
-- An option that isn't given is false for a new slot, and isn't checked for an existing one.
\if :{?two_phase} \else \set two_phase '' \endif
\if :{?failover} \else \set failover '' \endif
\if :{?catalog} \else \set catalog true \endif
\if :{?keyless} \else \set keyless stop \endif
\set is_ready true
select current_setting('server_version_num')::int >= 180000 as is_18,
       current_setting('server_version_num')::int >= 170000 as is_17,
       current_setting('server_version_num')::int >= 150000 as is_15,
       current_setting('server_version_num')::int >= 140000 and :'catalog'::boolean as has_catalog,
       current_setting('server_version_num')::int >= 120000 as is_12,
       exists (select from pg_roles where rolname = 'landing') as has_role,
       exists (select from pg_publication where pubname = 'etl') as has_publication,
       exists (select from pg_replication_slots where slot_name = :'slot') as has_slot,
       coalesce(nullif(:'two_phase', '')::boolean, false) as new_two_phase,
       coalesce(nullif(:'failover', '')::boolean, false) as new_failover \gset

\if :has_publication
\else
-- An UPDATE or DELETE of a published table without a key fails, and with it the application.
create temporary view keyless as
    select c.oid::regclass as "without a key"
    from pg_catalog.pg_class c join pg_catalog.pg_namespace n on n.oid = c.relnamespace
    where c.relkind = 'r' and c.relpersistence = 'p' and n.nspname !~ '^pg_'
      and n.nspname not in ('information_schema', 'pgoutput_etl')
      and not exists (select from pg_catalog.pg_publication_tables p
                      where p.schemaname = n.nspname and p.tablename = c.relname)
      and (c.relreplident = 'n' or c.relreplident <> 'f' and not exists (
          select from pg_catalog.pg_index i where i.indrelid = c.oid and i.indisvalid
             and case c.relreplident when 'd' then i.indisprimary else i.indisreplident end));
select :'keyless' <> 'accept' and exists (select from pg_temp.keyless) as is_stopped \gset
\if :is_stopped
select * from pg_temp.keyless order by 1;
do $$ begin
    raise exception 'nothing was created: PostgreSQL would reject UPDATEs and DELETEs of the tables that are listed above'
    using hint = 'Give them a primary key or a REPLICA IDENTITY, or publish listed tables only, or go on with '
        '-v keyless=accept';
end $$;
\endif
drop view pg_temp.keyless;
create publication etl for all tables;
\endif

\if :has_role
\else
create role landing login replication;
\endif

\if :has_slot
\elif :is_17
select pg_create_logical_replication_slot(:'slot', 'pgoutput', false, :'new_two_phase', :'new_failover');
\elif :is_15
select pg_create_logical_replication_slot(:'slot', 'pgoutput', false, :'new_two_phase');
\else
select pg_create_logical_replication_slot(:'slot', 'pgoutput');
\endif

-- Who may create event triggers differs by provider, so one is tried, and rolled back.
\if :has_catalog
do $try$ begin
    create function pg_temp.pgoutput_etl_try() returns event_trigger language plpgsql as $$ begin end $$;
    create event trigger pgoutput_etl_try on sql_drop execute function pg_temp.pgoutput_etl_try();
    raise exception using errcode = 'PE001';
exception when sqlstate 'PE001' then perform pg_catalog.set_config('pgoutput_etl.can_watch', 'true', false);
    when others then perform pg_catalog.set_config('pgoutput_etl.can_watch', 'false', false);
end $try$;
select current_setting('pgoutput_etl.can_watch')::boolean as can_watch \gset
\if :can_watch
\ir catalog.sql
\else
\echo 'catalog.sql is not installed, because this user may not create event triggers: some changes of columns then need'
\echo 'a declaration or a snapshot (docs/schema-changes.md)'
\endif
\endif

-- Tables whose changes are not sent, if the publication lists tables or schemas.
select not puballtables as has_list from pg_publication where pubname = 'etl' \gset
\if :has_list
select c.oid::regclass as "not published"
from pg_class c
join pg_namespace n on n.oid = c.relnamespace
where c.relkind = 'r' and c.relpersistence = 'p' and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
  and not exists (select from pg_publication_tables p
                  where p.pubname = 'etl' and p.schemaname = n.nspname and p.tablename = c.relname);
\endif

-- Tables whose UPDATEs and DELETEs PostgreSQL now refuses, until they have a primary key or a REPLICA IDENTITY.
select c.oid::regclass as "without a key"
from pg_publication_tables p
join pg_namespace n on n.nspname = p.schemaname
join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename
where p.pubname = 'etl' and (c.relreplident = 'n'
   or c.relreplident = 'd' and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary));

-- Tables that UPDATE and DELETE hold, because a column of their key is generated, or in no column list. Versions without
-- column lists send all columns but generated ones. Columns that an index only includes identify nothing.
select c.oid::regclass as "key is not sent", string_agg(a.attname::text, ', ' order by a.attnum) as "columns"
from pg_publication_tables p
join pg_namespace n on n.nspname = p.schemaname
join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename
join pg_index i on i.indrelid = c.oid
    and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident else false end
join pg_attribute a on a.attrelid = c.oid
    and a.attnum = any ((i.indkey::int2[])[0:coalesce((to_jsonb(i) ->> 'indnkeyatts')::int, i.indnatts) - 1])
where p.pubname = 'etl'
  and case when to_jsonb(p) ? 'attnames' then not (to_jsonb(p) -> 'attnames') ? a.attname::text
           else coalesce(to_jsonb(a) ->> 'attgenerated', '') <> '' end
group by c.oid order by c.oid;

-- Partitions that are published through their root, and whose UPDATEs and DELETEs would hold the root's table: configure
-- a key that all partitions' replica identities have, or set REPLICA IDENTITY FULL for these.
with recursive parts (root, oid) as (
    select c.oid, c.oid
    from pg_publication_tables p
    join pg_namespace n on n.nspname = p.schemaname
    join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename
    where p.pubname = 'etl' and c.relkind = 'p'
    union select p.root, h.inhrelid from parts p join pg_inherits h on h.inhparent = p.oid
), identities (root, oid, kind, is_full, key) as (
    select p.root, c.oid, c.relkind, c.relreplident = 'f', array(
        select a.attname::text from pg_index i join pg_attribute a on a.attrelid = i.indrelid
        where i.indrelid = c.oid
          and a.attnum = any ((i.indkey::int2[])[0:coalesce((to_jsonb(i) ->> 'indnkeyatts')::int, i.indnatts) - 1])
          and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident else false end
        order by a.attnum)
    from parts p join pg_class c on c.oid = p.oid
)
select i.oid::regclass as "partition with another identity", array_to_string(i.key, ', ') as "identity",
       r.oid::regclass as "of"
from identities i
join identities r on r.oid = i.root and r.root = i.root
where i.kind = 'r' and not i.is_full and i.key <> '{}' and (r.is_full or r.key = '{}' or not i.key @> r.key)
order by i.oid;

-- On RDS and Aurora, membership in a role replaces the attribute REPLICATION.
select r.rolcanlogin as can_log_in,
       r.rolreplication or r.rolsuper or exists (
           select from pg_auth_members m join pg_roles g on g.oid = m.roleid
           where m.member = r.oid and g.rolname = 'rds_replication') as can_replicate
from pg_roles r where r.rolname = 'landing' \gset
\if :can_log_in
\else
\echo 'The role landing can''t log in: ALTER ROLE landing LOGIN'
\set is_ready false
\endif
\if :can_replicate
\else
\echo 'The role landing can''t replicate: ALTER ROLE landing REPLICATION'
\set is_ready false
\endif

-- Settings of the database and the role that change the text of values for receivers without shop.env's PGOPTIONS and
-- PGCLIENTENCODING. A role's settings overrule the database's, and those for this database overrule those for all.
with inherited as (
    select distinct on (lower(split_part(c.text, '=', 1))) lower(split_part(c.text, '=', 1)) as name,
           substr(c.text, strpos(c.text, '=') + 1) as value
    from pg_db_role_setting s, unnest(s.setconfig) as c (text)
    where s.setrole in (0, (select r.oid from pg_roles r where r.rolname = 'landing'))
      and s.setdatabase in (0, (select d.oid from pg_database d where d.datname = current_database()))
    order by lower(split_part(c.text, '=', 1)), s.setrole = 0, s.setdatabase = 0
), rules (name, usual, pattern, suitable, harm) as (values
    ('extra_float_digits', case when :'is_12'::boolean then '1' else '0' end,
     case when :'is_12'::boolean then '[123]' else '3' end, '3',
     'floats are rounded, and keys that differ only in later digits become one row'),
    ('DateStyle', 'ISO', 'iso( *,.*)?', 'ISO', 'tables with dates or times are held'),
    ('IntervalStyle', 'postgres', 'postgres', 'postgres', 'tables with intervals are held'),
    ('bytea_output', 'hex', 'hex', 'hex', 'tables with bytea are held'),
    ('client_encoding', getdatabaseencoding()::text, 'utf-?8|unicode|sql_ascii', 'UTF8',
     'other characters than ASCII are misread, or their tables are held')
)
select count(*) > 0 as has_other_settings,
       coalesce(string_agg(format('Without the PGOPTIONS and PGCLIENTENCODING of shop.env, %s, because of %s = %s: '
           'ALTER ROLE landing IN DATABASE %s SET %s = %s', r.harm, r.name,
           regexp_replace(coalesce(i.value, r.usual), '[[:cntrl:]]', '?', 'g'),
           regexp_replace(quote_ident(current_database()), '[[:cntrl:]]', '?', 'g'), r.name, r.suitable), E'\n'), '')
           as other_settings
from rules r left join inherited i on i.name = lower(r.name)
where coalesce(i.value, r.usual) !~* ('^(' || r.pattern || ')$') \gset
\if :has_other_settings
\echo :other_settings
\endif

-- Columns that a version doesn't have are absent from the row's JSON.
select not to_jsonb(p) @> any (array['{"pubinsert": false}', '{"pubupdate": false}', '{"pubdelete": false}',
           '{"pubtruncate": false}']::jsonb[]) as has_operations
from pg_publication p where p.pubname = 'etl' \gset
\if :has_operations
\else
\echo 'The publication etl leaves out some operations: tables will differ from the server''s.'
\endif

select coalesce(s.plugin = 'pgoutput', false) as has_pgoutput,
       format('The slot %I has %s instead of pgoutput: drop it, or choose another name with -v slot= and SLOT=',
           s.slot_name, coalesce('the plugin ' || s.plugin, 'no plugin')) as other_plugin,
       coalesce(s.database = current_database(), true) as has_database,
       format('The slot %I is of the database %s: choose another name with -v slot= and SLOT=', s.slot_name,
           regexp_replace(s.database, '[[:cntrl:]]', '?', 'g')) as other_database,
       coalesce(to_jsonb(s) ->> 'wal_status', '') = 'lost'
           or coalesce(to_jsonb(s) ->> 'invalidation_reason', '') <> '' as is_lost,
       format('The slot %I is lost, with changes that were not received: see docs/landing.md, A lost slot', s.slot_name)
           as lost
from pg_replication_slots s where s.slot_name = :'slot' \gset
\if :has_pgoutput
\else
\echo :other_plugin
\set is_ready false
\endif
\if :has_database
\else
\echo :other_database
\set is_ready false
\endif
\if :is_lost
\echo :lost
\set is_ready false
\endif

-- Options that were given, and that the slot doesn't have. A name with other characters is left out of the printed
-- command, as a shell or libpq may read it in another way.
select coalesce(string_agg(format('%s=%s ', key, value), '' order by key), '') as server
from (values ('host', :'HOST'), ('port', :'PORT'), ('user', :'USER'), ('dbname', :'DBNAME')) p (key, value)
where value ~ '^[A-Za-z0-9_./:@-]+$' \gset
select count(*) > 0 as has_other_options,
       coalesce(string_agg(format('The slot %I needs %s %s: ', s.slot_name, o.name, o.wanted)
           || case when o.can_change then format('end the receiver, and run psql "%sreplication=database" -c '
               '"ALTER_REPLICATION_SLOT %I (%s %s)"', :'server', s.slot_name, upper(o.name), o.wanted)
           else 'this server can''t change it' end, E'\n'), '') as other_options
from pg_replication_slots s, lateral (values
    ('two_phase', to_jsonb(s) ->> 'two_phase', nullif(:'two_phase', '')::boolean::text, :'is_18'::boolean),
    ('failover', to_jsonb(s) ->> 'failover', nullif(:'failover', '')::boolean::text, :'is_17'::boolean)
) o (name, actual, wanted, can_change)
where s.slot_name = :'slot' and coalesce(o.actual, 'false') <> o.wanted \gset
\if :has_other_options
\echo :other_options
\set is_ready false
\endif

\if :is_ready
\else
do $$ begin raise exception 'landing needs the changes that are listed above'; end $$;
\endif
