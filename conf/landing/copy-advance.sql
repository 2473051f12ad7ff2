-- Advances the slot to the end of the landed changes.
set search_path = '';
select pg_replication_slot_advance(:'slot', :'upto') is not null as "moved on" \g /dev/null
