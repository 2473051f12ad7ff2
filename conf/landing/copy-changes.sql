-- The slot's changes of transactions committed before :upto; doesn't advance the slot. proto_version 1, without streaming,
-- as uncommitted changes would be sent again each time. PostgreSQL sends logical messages from version 14 on.
set search_path = '';
copy (
    select lsn, xid, data
    from pg_logical_slot_peek_binary_changes(:'slot', :'upto', null, variadic
        array['proto_version', '1', 'publication_names', :'publication']
        || case when current_setting('server_version_num')::int >= 140000 then array['messages', 'true'] end)
) to stdout (format binary);
