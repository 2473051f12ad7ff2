"""A model of a PostgreSQL server: random histories of a catalog and its rows, the messages of a walsender, the truth.

    history.py        options, and everything below together
    catalog.py        tables, the publication, and the messages about both
    wal.py            WAL records
    transaction.py    an open transaction, and the log of its changes
    server.py         catalog and rows, sessions, locks; writes the WAL and the log of committed changes
    statements.py, dml.py, ddl.py
                      the statements that the server runs
    workload.py, weights.py, values.py
                      random statements in several sessions
    slot.py           a replication slot and its connections
    walsender.py      WAL records to messages: logical decoding
    reorder.py        a transaction in the reorder buffer
    output_plugin.py  the callbacks of pgoutput
    relation_sync.py  pgoutput's memory of the Relation messages that it sent
    receiver.py       connections that end at random, files and nights
    truth.py          the tables as of a commit: on the server, and as an archive can know them
    shrinker.py       a smaller history that fails in the same way
    source.py         messages as Python source, in the words of tests/support/small_archives.py

A history is data: statements, and the connections in which their WAL was received. The same data gives the same
messages: parts of a history can be left out to find the few that matter.

    history = random_history(random.Random(seed), Options(server_version=16, protocol=2, streaming=Streaming.ON))
    history.messages, history.tables_at(lsn), history.archived_at(lsn), history.holders_at(lsn)
    for night in history.nights(chance): ...
    print(source_of([[shrink(history, fails).messages]]))

tests/servers/test_model.py compares the messages with those of real servers, tests/support/archived_tables.py the truth
with a replay.
"""
