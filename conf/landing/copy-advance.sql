-- The slot has been landed this far.
select pg_replication_slot_advance(:'slot', :'upto') is not null as "moved on" \g /dev/null
