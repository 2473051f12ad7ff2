-- psql -d shop -f catalog-remove.sql, as a superuser: removes what catalog.sql has created.
\set ON_ERROR_STOP on
set search_path = '';
begin;
drop event trigger if exists pgoutput_etl_ddl_command_end;
drop event trigger if exists pgoutput_etl_sql_drop;
drop event trigger if exists pgoutput_etl_table_rewrite;
drop schema if exists pgoutput_etl cascade;
commit;
