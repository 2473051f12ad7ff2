-- The end of the flushed WAL.
set search_path = '';
select pg_current_wal_flush_lsn();
