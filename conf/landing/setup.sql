-- psql -d shop -f setup.sql, once, as a superuser: creates the landing role, the publication and the slot.
-- -v two_phase=true: prepared transactions are sent when they are prepared (PostgreSQL 15 and newer).
-- -v failover=true: standbys have the slot too (PostgreSQL 17 and newer; both options together from 18 on).
\set ON_ERROR_STOP on
\if :{?two_phase} \else \set two_phase false \endif
\if :{?failover} \else \set failover false \endif
select current_setting('server_version_num')::int >= 170000 as is_17,
       current_setting('server_version_num')::int >= 150000 as is_15 \gset

create role landing login replication;
create publication etl for all tables;

\if :is_17
select pg_create_logical_replication_slot('etl', 'pgoutput', false, :two_phase, :failover);
\elif :is_15
select pg_create_logical_replication_slot('etl', 'pgoutput', false, :two_phase);
\else
select pg_create_logical_replication_slot('etl', 'pgoutput');
\endif

-- Tables whose UPDATEs and DELETEs PostgreSQL now refuses, until they have a primary key or a REPLICA IDENTITY.
select c.oid::regclass as "without a key"
from pg_publication_tables p
join pg_namespace n on n.nspname = p.schemaname
join pg_class c on c.relnamespace = n.oid and c.relname = p.tablename
where p.pubname = 'etl' and (c.relreplident = 'n'
   or c.relreplident = 'd' and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary));
