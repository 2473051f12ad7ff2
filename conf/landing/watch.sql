-- One row about the slot :slot, or none if it doesn't exist. Columns that a version doesn't have are empty.
set search_path = '';
select
    s.active,
    coalesce(to_jsonb(s) ->> 'wal_status', '') as wal_status,
    coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::bigint as retained_bytes,
    coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.confirmed_flush_lsn), 0)::bigint as behind_bytes,
    coalesce(to_jsonb(s) ->> 'safe_wal_size', '') as safe_wal_size,
    coalesce(age(s.catalog_xmin), 0) as catalog_age,
    coalesce(to_jsonb(s) ->> 'invalidation_reason', '') as invalidation_reason,
    coalesce(to_jsonb(s) ->> 'inactive_since', '') as inactive_since
from pg_replication_slots s
where s.slot_name = :'slot';
