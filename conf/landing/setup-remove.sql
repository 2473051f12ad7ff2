-- psql -d shop -f setup-remove.sql, as a superuser: drops the slot, the publication, and what catalog.sql has created.
-- The server then keeps nothing for the archive, which can't be continued. The role landing stays: other databases may
-- have it, too. -v slot=etl_shop: another name than etl.
\set ON_ERROR_STOP on
set search_path = '';
\if :{?slot} \else \set slot etl \endif
select pg_catalog.pg_drop_replication_slot(slot_name) from pg_catalog.pg_replication_slots
where slot_name = :'slot' and plugin = 'pgoutput' and database = current_database();
set client_min_messages = warning;
drop publication if exists etl;
\ir catalog-remove.sql
