-- What the slot has to say of transactions that were committed before :upto, without moving it on. Nothing is streamed
-- (proto_version 1): what is not committed yet would come again and again. Messages are sent from PostgreSQL 14 on.
copy (
    select lsn, xid, data
    from pg_logical_slot_peek_binary_changes(:'slot', :'upto', null, variadic
        array['proto_version', '1', 'publication_names', :'publication']
        || case when current_setting('server_version_num')::int >= 140000 then array['messages', 'true'] end)
) to stdout (format binary);
