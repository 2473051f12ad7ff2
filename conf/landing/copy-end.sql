-- What is in the WAL, on the disk, now.
select pg_current_wal_flush_lsn();
