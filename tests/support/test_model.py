"""The model server: its truth, its messages, and histories as data."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import get_args

from pgoutput_etl.protocol import messages
from pgoutput_etl.protocol.messages import (
    Begin,
    BeginPrepare,
    Message,
    PgoutputMessage,
    Prepare,
    Relation,
    ReplicaIdentity,
    StreamAbort,
    StreamStart,
    Truncate,
)
from tests.support import small_archives
from tests.support.model import ddl, dml
from tests.support.model import statements as do
from tests.support.model.catalog import INT4, TEXT
from tests.support.model.history import History, Options, random_history, random_options
from tests.support.model.receiver import TwoPhase, are_possible
from tests.support.model.shrinker import shrink
from tests.support.model.slot import Connection, Eviction, Streaming
from tests.support.model.source import source_of
from tests.support.model.workload import Action, RunsOnServer

T, U = 16384, 16385
EVER = 1 << 62


def create(oid: int, name: str) -> ddl.CreateTable:
    return ddl.CreateTable(oid, "public", name, (("i1", INT4), ("t2", TEXT)), ("i1",))


def insert(oid: int, number: int, text: str | None = None) -> dml.InsertRow:
    return dml.InsertRow(oid, (("i1", b"%d" % number), ("t2", None if text is None else text.encode())))


def history_of(*statements: RunsOnServer, options: Options | None = None, session: int = 0) -> History:
    actions = [(number, Action(session, statement)) for number, statement in enumerate(statements, 1)]
    return History(options or Options(), 700, actions, [Connection()])


BEGUN = (do.Begin(), create(T, "t"), insert(T, 1, "one"), do.Commit())


def rows_of(history: History, oid: int = T) -> list[tuple[str | None, ...]]:
    return history.archived_at(EVER)[oid].rows


# The truth


def test_rolled_back_changes_leave_no_trace() -> None:
    history = history_of(
        *BEGUN,
        do.Begin(),
        insert(T, 2, "kept"),
        do.Savepoint(),
        ddl.AddColumn(T, "i3", INT4),
        dml.UpdateRow(T, 3, (("t2", b"dropped"),)),
        do.RollBackToSavepoint(),
        insert(T, 4, "kept"),
        do.Commit(),
        do.Begin(),
        dml.DeleteRow(T, 3),
        do.RollBack(),
    )
    table = history.tables_at(EVER)[T]
    assert (table.columns, table.key) == (("i1", "t2"), ("i1",))
    assert table.rows == rows_of(history) == [("1", "one"), ("2", "kept"), ("4", "kept")]


def test_the_tables_are_as_of_a_commit() -> None:
    history = history_of(
        *BEGUN, do.Begin(), dml.UpdateRow(T, 3, (("i1", b"7"),)), do.Commit(), do.Begin(), insert(T, 8)
    )
    first, second = history.commit_lsns
    assert history.tables_at(first - 1) == {}
    assert history.tables_at(second)[T].rows == [("7", "one")]
    assert history.tables_at(first)[T].rows == [("1", "one")]


def test_an_archive_knows_a_table_only_from_its_rows() -> None:
    history = history_of(
        *BEGUN,
        do.Begin(),
        ddl.RenameTable(T, "other", "renamed"),
        ddl.AddColumn(T, "i3", INT4),
        do.Commit(),
    )
    table, archived = history.tables_at(EVER)[T], history.archived_at(EVER)[T]
    assert (table.namespace, table.name, table.columns, table.rows) == (
        *("other", "renamed", ("i1", "t2", "i3")),
        [("1", "one", None)],
    )
    assert (archived.namespace, archived.name, archived.columns, archived.rows) == (
        *("public", "t", ("i1", "t2")),
        [("1", "one")],
    )


def test_a_name_belongs_to_the_table_of_its_last_row() -> None:
    swapped = history_of(
        *(do.Begin(), create(T, "t"), create(U, "u"), insert(T, 1), insert(U, 1), do.Commit(), do.Begin()),
        *(ddl.RenameTable(T, "public", "x"), ddl.RenameTable(U, "public", "t"), ddl.RenameTable(T, "public", "u")),
        *(insert(T, 2), do.Commit()),
    )
    first, last = swapped.commit_lsns
    assert swapped.holders_at(first) == {("public", "t"): T, ("public", "u"): U}
    assert swapped.names_at(last) == {T: ("public", "u"), U: ("public", "u")}
    assert swapped.holders_at(last) == {("public", "u"): T}


def test_a_renamed_column_is_identified_by_its_number() -> None:
    history = history_of(
        *BEGUN, do.Begin(), ddl.RenameColumn(T, "t2", "t3"), ddl.RenameColumn(T, "t3", "t4"), insert(T, 2), do.Commit()
    )
    assert history.archived_at(EVER)[T].renamed == {"t4": "t2"}


def test_reasons_why_an_archive_can_not_know_a_table() -> None:
    def reason(*statements: RunsOnServer, **options: bool) -> str | None:
        history = history_of(*BEGUN, do.Begin(), *statements, do.Commit(), options=Options(**options))  # type: ignore[arg-type]
        return history.archived_at(EVER)[T].unknowable

    only_inserts = ddl.SetOperations(frozenset("I"))
    assert reason(insert(T, 2)) is None
    assert reason(only_inserts, dml.DeleteRow(T, 3)) == "rows changed by operation D, which was not published"
    again = (do.Commit(), do.Begin(), ddl.SetOperations(frozenset("IUDT")), do.Commit(), do.Begin())
    assert reason(only_inserts, dml.DeleteRow(T, 3), *again, insert(T, 2)) is not None
    assert reason(only_inserts, dml.DeleteRow(T, 3), *again, dml.Truncate((T,))) is None
    assert reason(ddl.AddColumn(T, "i3", INT4, b"3")) == "ADD COLUMN gave its DEFAULT to rows"
    assert reason(ddl.AddColumn(T, "i3", INT4)) is None
    other = history_of(*BEGUN[:-1], do.Commit(), do.Begin("elsewhere"), insert(T, 2), do.Commit())
    assert other.archived_at(EVER)[T].knowable
    refused = replace(other, options=Options(publishes_origins=False))
    assert refused.archived_at(EVER)[T].unknowable == "rows changed by another server, which were not published"
    assert rows_of(refused) == rows_of(other)


def test_locks() -> None:
    history = history_of(*BEGUN)
    server = history.server

    def run(session: int, statement: RunsOnServer) -> bool:
        server.begin_statement(server.statement + 1)
        return statement.run(server, session)

    assert run(0, do.Begin())
    assert run(1, do.Begin())
    assert run(0, do.Savepoint())
    assert run(0, dml.UpdateRow(T, 3, ()))
    assert not run(1, dml.DeleteRow(T, 3))
    assert not run(1, ddl.AddColumn(T, "i3", INT4))
    assert run(1, insert(T, 2))
    assert not run(0, insert(T, 2))
    assert run(0, do.PrepareTransaction("one"))
    assert not run(1, dml.DeleteRow(T, 3))
    assert run(0, do.RollBackPrepared("one"))
    assert run(1, dml.DeleteRow(T, 3))
    assert run(1, ddl.AddColumn(T, "i3", INT4))
    assert run(0, do.Begin())
    assert not run(0, insert(T, 9))
    assert run(1, do.RollBack())
    assert run(0, insert(T, 9))


# The messages


def names_of(history: History) -> list[str]:
    return [type(message).__name__ for message in history.messages]


def test_a_transaction_without_published_rows() -> None:
    nothing = (do.Begin(), ddl.AddColumn(T, "i3", INT4), do.Commit(), do.Begin(), dml.LockRow(T, 3), do.Commit())
    for version, expected in ((18, 0), (15, 0), (14, 1), (11, 1)):
        options = Options(version, protocol=1, messages=False)
        sent = names_of(history_of(*BEGUN, *nothing, options=options))
        assert sent[4:] == ["Begin", "Commit"] * expected, version


def test_an_empty_prepared_transaction() -> None:
    empty = (do.Begin(), dml.LockRow(T, 3), do.PrepareTransaction("one"), do.CommitPrepared("one"))
    for version, expected in ((18, ["Prepare", "CommitPrepared"]), (17, ["CommitPrepared"])):
        history = history_of(*BEGUN, *empty, options=Options(version, two_phase=TwoPhase.ON))
        two_phase = replace(history, connections=[Connection(two_phase_at=0)])
        assert names_of(two_phase)[4:] == expected
        assert names_of(history)[4:] == []


def test_truncate_is_not_decoded_before_11() -> None:
    truncated = (*BEGUN, do.Begin(), dml.Truncate((T,)), do.Commit())
    old = history_of(*truncated, options=Options(10, protocol=1, messages=False))
    assert "Truncate" not in names_of(old)
    assert not old.archived_at(EVER)[T].knowable
    new = history_of(*truncated)
    assert "Truncate" in names_of(new)
    assert (new.archived_at(EVER)[T].knowable, rows_of(new)) == (True, [])


def test_old_tuples_by_replica_identity() -> None:
    def old_kinds(identity: ReplicaIdentity, *statements: RunsOnServer) -> list[str]:
        history = history_of(*BEGUN, do.Begin(), ddl.SetIdentity(T, identity), *statements, do.Commit())
        return [m.old_kind.value if m.old_kind else "-" for m in history.messages if hasattr(m, "old_kind")]

    new_key, same_key = dml.UpdateRow(T, 3, (("i1", b"2"),)), dml.UpdateRow(T, 3, (("t2", None),))
    assert old_kinds(ReplicaIdentity.DEFAULT, same_key, new_key, dml.DeleteRow(T, 3)) == ["-", "K", "K"]
    assert old_kinds(ReplicaIdentity.FULL, same_key, new_key, dml.DeleteRow(T, 3)) == ["O", "O", "O"]
    assert old_kinds(ReplicaIdentity.NOTHING, same_key, new_key, dml.DeleteRow(T, 3)) == []


def test_xids_wrap_around() -> None:
    statements = [statement for _ in range(3) for statement in (do.Begin(), insert(T, _ + 2), do.Commit())]
    history = replace(history_of(*BEGUN, *statements), first_xid=(1 << 32) - 2)
    assert [m.xid for m in history.messages if isinstance(m, Begin)] == [(1 << 32) - 2, (1 << 32) - 1, 3, 4]


def test_random_histories_contain_everything() -> None:
    counts: Counter[str] = Counter()
    for seed in range(400):
        chance = random.Random(seed)
        history = random_history(chance, random_options(chance))
        last: object = None
        for message in history.messages:
            counts[type(message).__name__] += 1
            counts["stray Prepare"] += isinstance(message, Prepare) and not isinstance(last, Relation | BeginPrepare)
            counts["subtransaction aborted"] += isinstance(message, StreamAbort) and message.xid != message.subxid
            counts["cascade"] += isinstance(message, Truncate) and message.options & 1
            counts["not transactional"] += isinstance(message, Message) and not message.transactional
            counts["next segment"] += isinstance(message, StreamStart) and not message.first_segment
            last = message
        tables = history.archived_at(EVER).values()
        counts["knowable"] += sum(table.knowable for table in tables)
        counts["renamed columns"] += sum(bool(table.renamed) for table in tables)
        counts["names that others had"] += len(history.names_at(EVER)) > len(history.holders_at(EVER))
        assert are_possible(history.connections), seed
    assert {kind.__name__ for kind in get_args(PgoutputMessage)} <= counts.keys()
    assert min(counts.values()) > 10, counts
    assert counts["knowable"] > 500


# Histories as data


def test_the_same_data_gives_the_same_messages() -> None:
    for seed in range(60):
        chance = random.Random(seed)
        history = random_history(chance, random_options(chance))
        again = History(history.options, history.first_xid, history.actions, history.connections)
        assert again.server.wal is not history.server.wal
        assert again.messages == history.messages
        assert again.archived_at(EVER) == history.archived_at(EVER)


def test_nights_contain_the_messages_in_order() -> None:
    chance = random.Random(1)
    history = random_history(chance, Options())
    for _ in range(20):
        nights = history.nights(chance)
        assert [message for night in nights for file in night for message in file] == history.messages


def test_a_shrunk_history_still_fails() -> None:
    def aborts_a_subtransaction(history: History) -> bool:
        aborts = [message for message in history.messages if isinstance(message, StreamAbort)]
        return any(message.xid != message.subxid for message in aborts)

    chance = random.Random(0)
    while True:
        history = random_history(chance, Options(16, 4, Streaming.ON, actions=120))
        if aborts_a_subtransaction(history):
            break
    small = shrink(history, aborts_a_subtransaction)
    assert aborts_a_subtransaction(small)
    assert len(small.actions) <= 7
    assert len(small.connections) == 1


def test_messages_become_source_for_small_archives() -> None:
    words = {**vars(messages), **vars(small_archives), "replace": replace}
    for seed in range(100):
        chance = random.Random(seed)
        history = random_history(chance, random_options(chance))
        nights = history.nights(chance)
        source = source_of(nights)
        files = [file for night in eval(source, words) for file in night]
        assert [[type(m) for m in file] for file in files] == [[type(m) for m in f] for night in nights for f in night]
        assert source_of([files]) == source_of([[file for night in nights for file in night]])


def test_evictions_stream_open_transactions() -> None:
    lsns = {record.lsn: Eviction(0) for record in history_of(*BEGUN).server.wal}
    streamed = replace(
        history_of(*BEGUN, options=Options(streaming=Streaming.ON)), connections=[Connection(evictions=lsns)]
    )
    assert names_of(streamed)[-1] == "StreamCommit"
    assert sum(isinstance(message, StreamStart) for message in streamed.messages) == 3
