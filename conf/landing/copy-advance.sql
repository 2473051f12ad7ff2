-- Advances the slot to the end of the landed changes.
select pg_replication_slot_advance(:'slot', :'upto') is not null as "moved on" \g /dev/null
