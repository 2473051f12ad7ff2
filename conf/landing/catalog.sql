-- psql -d shop -f catalog.sql, as a superuser: from now on every change of a table's definition is written into the
-- slot, as a logical decoding Message between the rows, so that the archive shows which column is which, what a new
-- column's older rows got, and which values only the server has. Can be run again. catalog-remove.sql removes it.
--
-- Prints the key of its Messages once, for `source.catalog_key`: any user of the database can write Messages, but
-- nobody else can sign one.
\set ON_ERROR_STOP on
set search_path = '';
set client_min_messages = warning;
begin;

create schema if not exists pgoutput_etl;
revoke all on schema pgoutput_etl from public;

-- A materialized view, as no publication sends one.
select to_regclass('pgoutput_etl.catalog_key') is null as is_new \gset
\if :is_new
create materialized view pgoutput_etl.catalog_key as
    select pg_catalog.sha256(pg_catalog.convert_to(pg_catalog.string_agg(pg_catalog.gen_random_uuid()::text, ''), 'UTF8')) as key
    from pg_catalog.generate_series(1, 4);
\endif
revoke all on pgoutput_etl.catalog_key from public;

create sequence if not exists pgoutput_etl.catalog_number;
revoke all on sequence pgoutput_etl.catalog_number from public;

-- Unlogged, so it is never published. send_catalog() waits for transactions that have changed definitions, and they for
-- it. A row shows the xid of the subtransaction that inserts it: in a streamed transaction, a Message only has that of
-- the whole, and would count after ROLLBACK TO SAVEPOINT.
--
-- The rows are the numbers of committed Messages that no later one has in `after`, so that a lost Message is noticed.
create unlogged table if not exists pgoutput_etl.catalog_lock (number bigint);
revoke all on pgoutput_etl.catalog_lock from public;

-- `transaction` and `number` keep others from sending a signed Message again.
-- The second, empty Message keeps the first one in front of the rows that follow it (docs/catalog.md).
create or replace function pgoutput_etl.send(body jsonb) returns void language plpgsql
set search_path = pg_catalog, pg_temp as $$
declare
    secret bytea := (select k.key from pgoutput_etl.catalog_key k);
    own bigint;
    whole text := pg_current_xact_id()::text;
    next bigint := nextval('pgoutput_etl.catalog_number');
    earlier bigint[];
    content bytea;
begin
    -- Once per transaction, which may have thousands of rows. Never waits, and never ends in a serialization failure.
    if current_setting('transaction_isolation') = 'read committed'
        and current_setting('pgoutput_etl.sent', true) is distinct from whole then
        perform set_config('pgoutput_etl.sent', whole, true);
        with sent as (select ctid from pgoutput_etl.catalog_lock for update skip locked),
             gone as (delete from pgoutput_etl.catalog_lock l using sent s where l.ctid = s.ctid returning l.number)
        select array_agg(g.number order by g.number) into earlier from gone g;
    end if;
    insert into pgoutput_etl.catalog_lock values (next) returning xmin::text::bigint into own;
    content := convert_to((body || jsonb_build_object('version', 1, 'xid', own, 'number', next,
        'transaction', whole::bigint, 'after', coalesce(earlier, '{}')))::text, 'UTF8');
    perform pg_logical_emit_message(true, 'pgoutput_etl.catalog',
        convert_to(encode(sha256(secret || sha256(secret || content)), 'hex'), 'UTF8') || content);
    perform pg_logical_emit_message(true, 'pgoutput_etl.catalog', ''::bytea);
end $$;

-- The definitions of a user type and of the types that it is made of. Kind a is an array, others are as in pg_type.
create or replace function pgoutput_etl.types(wanted oid) returns jsonb language sql stable
set search_path = pg_catalog, pg_temp as $$
with recursive made (oid) as (
    select wanted
    union
    select n.oid from made m join pg_type t on t.oid = m.oid, lateral (
        select t.typbasetype as oid
        union all select t.typelem where t.typsubscript = 'array_subscript_handler'::regproc
        union all select r.rngsubtype from pg_range r where r.rngtypid = t.oid or r.rngmultitypid = t.oid
        union all select a.atttypid from pg_attribute a
        where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped) n
    where n.oid >= 10000
)
select jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
    'oid', t.oid::bigint, 'schema', n.nspname, 'name', t.typname,
    'kind', case when t.typsubscript = 'array_subscript_handler'::regproc then 'a' else t.typtype end,
    'of', case when t.typtype = 'd' then t.typbasetype::bigint
               when t.typsubscript = 'array_subscript_handler'::regproc then t.typelem::bigint
               else (select r.rngsubtype::bigint from pg_range r where r.rngtypid = t.oid or r.rngmultitypid = t.oid) end,
    'modifier', case when t.typtype = 'd' then t.typtypmod end,
    'attributes', (select jsonb_agg(jsonb_build_array(a.attname, a.atttypid::bigint, a.atttypmod) order by a.attnum)
                   from pg_attribute a where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped))) order by t.oid)
from made m join pg_type t on t.oid = m.oid join pg_namespace n on n.oid = t.typnamespace
$$;

-- What a user type's values look like: the labels of an enum, the numbers of a composite's attributes, a domain's
-- modifier. Through arrays and domains; `nested` stands for the enums and composites inside of composites and ranges.
create or replace function pgoutput_etl.form(wanted oid) returns jsonb language sql stable
set search_path = pg_catalog, pg_temp as $$
with recursive chain (oid, depth) as (
    select wanted, 0
    union all
    select case when t.typtype = 'd' then t.typbasetype else t.typelem end, c.depth + 1
    from chain c join pg_type t on t.oid = c.oid
    where t.typtype = 'd' or (t.typcategory = 'A' and t.typelem <> 0)
), last as (
    select t.* from chain c join pg_type t on t.oid = c.oid order by c.depth desc limit 1
), inner_types (oid) as (
    select i.oid from last t, lateral (
        select a.atttypid as oid from pg_attribute a
        where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped
        union all select r.rngsubtype from pg_range r where r.rngtypid = t.oid or r.rngmultitypid = t.oid) i
    union
    select n.oid from inner_types i join pg_type t on t.oid = i.oid, lateral (
        select t.typbasetype as oid where t.typtype = 'd'
        union all select t.typelem where t.typcategory = 'A'
        union all select r.rngsubtype from pg_range r where r.rngtypid = t.oid or r.rngmultitypid = t.oid
        union all select a.atttypid from pg_attribute a
        where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped) n
    where n.oid >= 16384
)
select jsonb_strip_nulls(jsonb_build_object(
    'labels', (select jsonb_agg(jsonb_build_array(e.oid::bigint, e.enumlabel) order by e.oid)
               from last t join pg_enum e on e.enumtypid = t.oid),
    'attributes', (select (select coalesce(jsonb_agg(a.attnum order by a.attnum), '[]') from pg_attribute a
                           where a.attrelid = t.typrelid and a.attnum > 0 and not a.attisdropped)
                   from last t where t.typtype = 'c'),
    'modifier', (select t.typtypmod from pg_type t where t.oid = wanted and t.typtype = 'd' and t.typtypmod >= 0),
    'nested', (select encode(sha256(convert_to(string_agg(n.text, ',' order by n.text), 'UTF8')), 'hex')
               from inner_types i, lateral (
                   select e.oid || ':' || e.enumlabel as text from pg_enum e where e.enumtypid = i.oid
                   union all select a.attrelid || '.' || a.attnum from pg_type t join pg_attribute a on a.attrelid = t.typrelid
                   where t.oid = i.oid and a.attnum > 0 and not a.attisdropped) n),
    'types', pgoutput_etl.types(wanted)))
$$;

-- The tables whose columns have one of these types, or one that is made of it.
create or replace function pgoutput_etl.tables_with(types oid[]) returns setof oid language sql stable
set search_path = pg_catalog, pg_temp as $$
with recursive made (oid) as (
    select unnest(types)
    union
    select t.oid from made m, lateral (
        select t.oid from pg_type t where t.typelem = m.oid and t.typcategory = 'A' or t.typbasetype = m.oid
        union all select unnest(array[r.rngtypid, r.rngmultitypid]) from pg_range r where r.rngsubtype = m.oid
        union all select c.reltype from pg_attribute a join pg_class c on c.oid = a.attrelid
        where a.atttypid = m.oid and c.relkind = 'c' and not a.attisdropped) t
)
select distinct a.attrelid from made m join pg_attribute a on a.atttypid = m.oid join pg_class c on c.oid = a.attrelid
where c.relkind in ('r', 'p') and not a.attisdropped
$$;

-- What the bound of a partition is about: its parent, and the columns; no name is an expression. `is_plain`: a reader
-- finds the same values equal and, of ranges, in the same order.
create or replace function pgoutput_etl.partition_of(wanted oid) returns jsonb language sql stable
set search_path = pg_catalog, pg_temp as $$
select jsonb_build_object('parent', h.inhparent::bigint, 'columns', (
    select jsonb_agg(a.attname order by k.place)
    from unnest(p.partattrs::int2[]) with ordinality k (number, place)
    left join pg_attribute a on a.attrelid = p.partrelid and a.attnum = k.number and a.attnum > 0
), 'is_plain', (
    select bool_and(o.opcdefault and (k.sorting = 0 or case
        when p.partstrat = 'l' then coalesce((
            select n.collisdeterministic from pg_collation n where n.oid = k.sorting), false)
        else getdatabaseencoding() = 'UTF8' and (k.sorting in (950, 951) or k.sorting = 100 and (
            select d.datcollate in ('C', 'POSIX') and coalesce(to_jsonb(d) ->> 'datlocprovider', 'c') = 'c'
            from pg_database d where d.datname = current_database())) end))
    from unnest(p.partclass::oid[], p.partcollation::oid[]) k (operators, sorting)
    join pg_opclass o on o.oid = k.operators))
from pg_inherits h join pg_partitioned_table p on p.partrelid = h.inhparent where h.inhrelid = wanted
$$;

-- Whether a publication may send a generated column: before PostgreSQL 18, none does, and a virtual one never.
create or replace function pgoutput_etl.may_publish(wanted oid, wanted_number int2) returns boolean language sql stable
set search_path = pg_catalog, pg_temp as $$
select a.attgenerated = 's' and (
    exists (select from pg_publication p where to_jsonb(p) ->> 'pubgencols' = 's')
    or exists (select from pg_publication_rel r where to_jsonb(r) -> 'prattrs' @> to_jsonb(a.attnum)
               and r.prrelid in (wanted, pg_partition_root(wanted))))
from pg_attribute a where a.attrelid = wanted and a.attnum = wanted_number
$$;

-- The definitions of these tables. A partitioned table comes with all of its tree, which shows what was detached.
create or replace function pgoutput_etl.tables(wanted oid[]) returns jsonb language sql stable
set search_path = pg_catalog, pg_temp
set datestyle = 'ISO' set intervalstyle = 'postgres' set extra_float_digits = '3' set bytea_output = 'hex' as $$
with recursive tree (oid) as (
    select case when c.relkind = 'p' then coalesce(pg_partition_root(c.oid)::oid, c.oid) else c.oid end
    from pg_class c where c.oid = any (wanted)
    union select h.inhrelid from tree t join pg_inherits h on h.inhparent = t.oid
)
select jsonb_agg(jsonb_strip_nulls(jsonb_build_object(
    'oid', c.oid::bigint, 'schema', n.nspname, 'name', c.relname, 'kind', c.relkind, 'persistence', c.relpersistence,
    'identity', c.relreplident, 'bound', pg_get_expr(c.relpartbound, c.oid),
    'comment', case when getdatabaseencoding() <> 'SQL_ASCII' then obj_description(c.oid, 'pg_class') end,
    'keys', (
        select jsonb_agg(k.conkey order by k.contype, k.oid) from pg_constraint k join pg_index i on i.indexrelid = k.conindid
        where k.conrelid = c.oid and k.contype in ('p', 'u') and not k.condeferrable and i.indisvalid and not i.indisexclusion
          and not exists (select from pg_attribute n
                          where n.attrelid = c.oid and n.attnum = any (k.conkey) and not n.attnotnull)),
    'root', case when c.relispartition then pg_partition_root(c.oid)::oid::bigint end,
    'partitions', case when c.relkind = 'p' then (
        select coalesce(jsonb_agg(h.inhrelid::bigint order by h.inhrelid), '[]')
        from pg_inherits h where h.inhparent = c.oid) end,
    'partition', case when c.relispartition then pgoutput_etl.partition_of(c.oid) end,
    'columns', (
        select coalesce(jsonb_agg(jsonb_build_object(
            'number', a.attnum, 'name', a.attname, 'type', a.atttypid::bigint, 'modifier', a.atttypmod,
            'comment', case when getdatabaseencoding() <> 'SQL_ASCII' then col_description(c.oid, a.attnum) end,
            'omitted', case when a.attgenerated <> '' and not pgoutput_etl.may_publish(c.oid, a.attnum) then true end,
            'form', case when a.atttypid >= 16384 then nullif(pgoutput_etl.form(a.atttypid), '{}') end, 'initial', coalesce(
                case when a.atthasmissing then (a.attmissingval::text::text[])[1] end,
                case when c.relkind = 'p' then (
                    select (l.attmissingval::text::text[])[1]
                    from pg_partition_tree(c.oid) p join pg_attribute l on l.attrelid = p.relid
                    where p.isleaf and l.attname = a.attname and l.atthasmissing limit 1) end)) order by a.attnum), '[]')
        from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped))) order by c.oid)
from tree t
join pg_class c on c.oid = t.oid
join pg_namespace n on n.oid = c.relnamespace
where c.relkind in ('r', 'p') and c.relpersistence <> 't' and n.nspname !~ '^pg_'
  and n.nspname not in ('information_schema', 'pgoutput_etl')
$$;

create or replace function pgoutput_etl.send_tables(command text, wanted oid[], created oid[] default '{}')
returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
declare described jsonb := pgoutput_etl.tables(wanted);
begin
    if described is not null then
        perform pgoutput_etl.send(jsonb_build_object('command', command, 'tables', described, 'created', created::bigint[]));
    end if;
end $$;

-- Nothing here may end the user's command. A definition that can't be sent is unknown.
create or replace function pgoutput_etl.send_unknown(command text, state text) returns void language plpgsql
set search_path = pg_catalog, pg_temp as $$
begin
    perform pgoutput_etl.send(jsonb_build_object('command', command, 'unknown', state));
exception when others then null;
end $$;

-- Which of them the slot sends, only its client knows.
create or replace function pgoutput_etl.publications_of(wanted oid) returns bigint language sql stable
set search_path = pg_catalog, pg_temp as $$
select count(*) from pg_publication_tables p join pg_namespace n on n.nspname = p.schemaname
join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename where c.oid = wanted
$$;

create or replace function pgoutput_etl.on_ddl_command_end() returns event_trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    wanted oid[];
    created oid[];
    published jsonb;
begin
    lock table pgoutput_etl.catalog_lock in row share mode;
    -- Such a table has no rows, and all of those to come are sent. Whether another publication has it, nobody knows.
    select coalesce(array_agg(d.objid), '{}') into created
    from pg_event_trigger_ddl_commands() d
    where d.command_tag = 'CREATE TABLE' and d.classid = 'pg_class'::regclass
      and exists (select from pg_publication p where p.puballtables);
    select array_agg(distinct t.oid) into wanted
    from pg_event_trigger_ddl_commands() d, lateral (
        select d.objid as oid where d.classid = 'pg_class'::regclass
        union all select pgoutput_etl.tables_with(array[d.objid]) where d.classid = 'pg_type'::regclass
        union all select pgoutput_etl.tables_with(array[c.reltype]) from pg_class c
        where d.classid = 'pg_class'::regclass and c.oid = d.objid and c.relkind = 'c'
        union all select c.oid from pg_class c where d.object_type = 'schema' and c.relnamespace = d.objid
        union all select r.prrelid from pg_publication_rel r
        where d.classid = 'pg_publication_rel'::regclass and r.oid = d.objid) t
    where d.schema_name is distinct from 'pg_temp';
    if wanted is not null then
        perform pgoutput_etl.send_tables(tg_tag, wanted, created);
    end if;
    select jsonb_agg(distinct r.prrelid::bigint) into published
    from pg_event_trigger_ddl_commands() d join pg_publication_rel r on r.oid = d.objid
    where d.classid = 'pg_publication_rel'::regclass and pgoutput_etl.publications_of(r.prrelid) = 1;
    if published is not null then
        perform pgoutput_etl.send(jsonb_build_object('command', tg_tag, 'published', published));
    end if;
exception when others then
    perform pgoutput_etl.send_unknown(tg_tag, sqlstate);
end $$;

-- Tables whose columns DROP … CASCADE has dropped.
create or replace function pgoutput_etl.on_sql_drop() returns event_trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    wanted oid[];
    dropped jsonb;
    unpublished jsonb;
begin
    lock table pgoutput_etl.catalog_lock in row share mode;
    select array_agg(distinct d.objid) filter (where d.objsubid > 0),
           jsonb_agg(d.objid::bigint) filter (where d.objsubid = 0 and d.object_type = 'table')
    into wanted, dropped
    from pg_event_trigger_dropped_objects() d
    where d.classid = 'pg_class'::regclass and not d.is_temporary and d.schema_name is distinct from 'pgoutput_etl';
    if wanted is not null and tg_tag <> 'ALTER TABLE' then
        perform pgoutput_etl.send_tables(tg_tag, wanted);
    end if;
    if dropped is not null then
        perform pgoutput_etl.send(jsonb_build_object('command', tg_tag, 'dropped', dropped));
    end if;
    select jsonb_agg(distinct c.oid::bigint) into unpublished
    from pg_event_trigger_dropped_objects() d
    join pg_namespace n on n.nspname = d.address_names[1]
    join pg_class c on c.relnamespace = n.oid and c.relname = d.address_names[2]
    where d.object_type = 'publication relation' and pgoutput_etl.publications_of(c.oid) = 0;
    if unpublished is not null then
        perform pgoutput_etl.send(jsonb_build_object('command', tg_tag, 'unpublished', unpublished));
    end if;
exception when others then
    perform pgoutput_etl.send_unknown(tg_tag, sqlstate);
end $$;

-- PostgreSQL computes the values of every row anew, and sends none. They are a cast of the former ones if the client
-- sent one ALTER TABLE without USING or ADD, whose default the rewrite removes from the catalog, and no function runs
-- another command inside it. `is_cast` is that verdict. `is_filled`: only columns that the command adds were computed,
-- because without SET EXPRESSION, the others of a table that is rewritten for defaults keep their values. SET LOGGED and
-- SET UNLOGGED count, too: rows that are written in between are not sent.
create or replace function pgoutput_etl.on_table_rewrite() returns event_trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
declare
    rewritten oid := pg_event_trigger_table_rewrite_oid();
    reasons int := pg_event_trigger_table_rewrite_reason();
    stack text;
    is_cast boolean;
    is_filled boolean;
begin
    get diagnostics stack = pg_context;
    is_cast := reasons = 4 and current_query() ~* '^\s*alter\s+table\s[^;]*;?\s*$' and current_query() !~* 'using|\madd\M'
        and stack !~ '\n';
    is_filled := reasons = 2 and current_query() ~* '^\s*alter\s+table\s' and current_query() !~* 'expression'
        and stack !~ '\n';
    if exists (select from pg_class c where c.oid = rewritten and c.relpersistence <> 't') and reasons & 7 <> 0 then
        perform pgoutput_etl.send(jsonb_strip_nulls(jsonb_build_object('command', tg_tag, 'rewritten', jsonb_build_object(
            'oid', rewritten::bigint, 'root', pg_partition_root(rewritten)::oid::bigint, 'reasons', reasons,
            'is_cast', is_cast, 'is_filled', is_filled))));
    end if;
exception when others then
    perform pgoutput_etl.send_unknown(tg_tag, sqlstate);
end $$;

-- No event trigger fires for TRUNCATE, and pgoutput sends none of a partition whose root is published. The only dynamic
-- SQL: its names are those that the server prints for the partitions' OIDs. New partitions need another call. Without
-- triggers again: select pgoutput_etl.watch_truncate('r', false).
create or replace function pgoutput_etl.on_truncate() returns trigger language plpgsql security definer
set search_path = pg_catalog, pg_temp as $$
begin
    perform pgoutput_etl.send(jsonb_build_object('command', 'TRUNCATE', 'truncated', jsonb_build_array(tg_relid::bigint)));
    return null;
exception when others then
    perform pgoutput_etl.send_unknown('TRUNCATE', sqlstate);
    return null;
end $$;

create or replace function pgoutput_etl.watch_truncate(root regclass, is_watched boolean default true) returns bigint
language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    leaf regclass;
    watched bigint := 0;
begin
    for leaf in select p.relid from pg_partition_tree(root) p where p.isleaf and p.parentrelid is not null loop
        execute format('drop trigger if exists pgoutput_etl_truncate on %s', leaf);
        if is_watched then
            execute format('create trigger pgoutput_etl_truncate after truncate on %s execute function '
                'pgoutput_etl.on_truncate()', leaf);
            execute format('alter table %s enable always trigger pgoutput_etl_truncate', leaf);
            watched := watched + 1;
        end if;
    end loop;
    return watched;
end $$;

-- The definitions of all published tables, as of one moment. Returns the number of Messages: one per table, or tree of
-- partitions.
create or replace function pgoutput_etl.send_catalog() returns bigint language plpgsql
set search_path = pg_catalog, pg_temp as $$
declare
    described jsonb;
    sent bigint := 0;
begin
    lock table pgoutput_etl.catalog_lock in exclusive mode;
    for described in
        select jsonb_agg(d) from jsonb_array_elements(pgoutput_etl.tables(array(
            select coalesce(pg_partition_root(c.oid)::oid, c.oid) from pg_publication_tables p
            join pg_namespace n on n.nspname = p.schemaname
            join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename))) d
        group by coalesce(d -> 'root', d -> 'oid')
    loop
        perform pgoutput_etl.send(jsonb_build_object('command', 'send_catalog', 'tables', described));
        sent := sent + 1;
    end loop;
    return sent;
end $$;

revoke all on all functions in schema pgoutput_etl from public;

drop event trigger if exists pgoutput_etl_ddl_command_end;
drop event trigger if exists pgoutput_etl_sql_drop;
drop event trigger if exists pgoutput_etl_table_rewrite;
create event trigger pgoutput_etl_ddl_command_end on ddl_command_end
    execute function pgoutput_etl.on_ddl_command_end();
create event trigger pgoutput_etl_sql_drop on sql_drop execute function pgoutput_etl.on_sql_drop();
create event trigger pgoutput_etl_table_rewrite on table_rewrite execute function pgoutput_etl.on_table_rewrite();
alter event trigger pgoutput_etl_ddl_command_end enable always;
alter event trigger pgoutput_etl_sql_drop enable always;
alter event trigger pgoutput_etl_table_rewrite enable always;

select pgoutput_etl.send_catalog() as sent \gset
commit;
\if :is_new
select pg_catalog.encode(key, 'hex') as "source.catalog_key, shown once" from pgoutput_etl.catalog_key;
\endif
