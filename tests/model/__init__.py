"""A model of a PostgreSQL server: random histories of a catalog and its rows, the messages of a walsender, the truth.

    catalog.py      tables, their columns and keys, the publication, and what of a table a walsender sends
    wal.py          WAL records
    server.py       sessions, transactions, subtransactions, locks; writes the WAL and the log of committed changes
    statements.py   the statements that change rows and end transactions
    ddl.py          the statements that change the catalog
    workload.py     random statements in several sessions
    reorder.py      the reorder buffer's transactions
    relation_sync.py  pgoutput's memory of the Relation messages that it sent
    walsender.py    WAL records to pgoutput messages, for one connection
    receiver.py     connections that end at random; files and nights
    truth.py        the tables as of a commit, on the server and as an archive can know them
    history.py      options, and all of these together
    shrinker.py     a smaller history that fails in the same way
    source.py       messages as Python source, in the words of tests/small_archives.py

A history is data: statements, and the connections in which their WAL was received. The same data gives the same
messages, so that parts of a history can be left out to find the few that matter.

    history = random_history(random.Random(seed), Options(server_version=16, protocol=2, streaming=Streaming.ON))
    history.messages, history.tables_at(lsn), history.archived_at(lsn), history.holders_at(lsn)
    for night in history.nights(chance): ...
"""
