-- The end of the flushed WAL.
select pg_current_wal_flush_lsn();
