"""Archives of several files, read on several nights: resends, open transactions, gaps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import pytest

from pgoutput_etl.errors import SequenceError
from pgoutput_etl.protocol.messages import PgoutputMessage, Prepare, StreamAbort
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.schema.definitions import Definitions
from pgoutput_etl.schema.relation_history import RelationHistory
from pgoutput_etl.transactions.assembly import Assembly, open_messages
from pgoutput_etl.transactions.outcome import TransactionStatus, UnknownPrepared
from tests.support.captures import DATA
from tests.support.scan_parts import scan_file
from tests.support.small_archives import (
    Messages,
    Rows,
    commit_prepared,
    copydata,
    in_subtransaction,
    insert,
    prepared,
    replayed,
    rollback_prepared,
    rows_of,
    segment,
    stream_abort,
    stream_commit,
    stream_prepare,
    table,
    tables,
    transaction,
    truncate,
    update,
)

BAG = table(key=())  # shows transactions that are applied twice
ONE = transaction(3, 10, BAG, insert("1", "a"), insert("1", "a"))
TWO = transaction(4, 20, BAG, insert("2", "b"))
THREE = transaction(5, 30, BAG, insert("3", "c"))
STREAM = [*segment(6, BAG, insert("4", "d"), first=True), *segment(6, insert("5", "e"))]
PREPARED = prepared(7, BAG, insert("6", "f"))


def through_the_night(assembly: Assembly) -> Assembly:
    """The assembly as the ledger restores it; the rows of ended transactions are in the tables by then."""
    state = json.loads(json.dumps(assembly.state()))
    entries = reversed(assembly.relations.entries)
    relations, known = RelationHistory.of(entries), assembly.relations.definitions
    relations.definitions = Definitions.of([*known._committed.values(), *known.to_store()], open_messages(state))
    relations.definitions.refused.update(known.refused)
    again = Assembly(relations, state, assembly.types)
    again.outcomes.extend(assembly.outcomes)
    again.watermarks = assembly.watermarks
    return again


def over_nights(contents: Iterable[bytes]) -> Replay:
    replay = Replay()
    for number, content in enumerate(contents):
        replay.add_file(f"{number:03}.gz" if content.startswith(b"\x1f\x8b") else f"{number:03}", content)
        replay.assembly = through_the_night(replay.assembly)
    return replay


def rows_however_landed(messages: Messages) -> Rows:
    """The rows of table t, equal for one file, for a file per message, and for a file and a night per message."""
    at_once = rows_of(messages)
    assert rows_of(*([message] for message in messages)) == at_once
    nightly = over_nights(copydata([message]) for message in messages)
    assert tables(nightly).get("t", []) == at_once
    return at_once


def statuses(replay: Replay) -> list[tuple[int | None, TransactionStatus]]:
    return [(o.xid, o.status) for o in (*replay.assembly.outcomes, *replay.assembly.open_outcomes())]


ONCE = [("1", "a"), ("1", "a"), ("2", "b")]


@pytest.mark.parametrize(
    "messages",
    [
        [*ONE, *TWO, *ONE, *TWO],
        [*ONE, *TWO, *TWO],
        [*ONE, *ONE, *TWO],
        [*ONE, *ONE[:3], *ONE, *TWO],
        [*ONE, *TWO[:3], *TWO],
        [*ONE[:3], *ONE, *TWO],
        [*ONE[:1], *ONE[:2], *ONE[:3], *ONE[:4], *ONE, *TWO],
        [*ONE, *TWO[:2], *ONE, *TWO],
        [*ONE, *TWO, *ONE[:2]],
        [*ONE, *TWO, *ONE, *TWO[:2], *ONE[:3], *TWO],
    ],
)
def test_a_transaction_that_is_sent_again_counts_once(messages: Messages) -> None:
    assert rows_however_landed(messages) == ONCE


def test_new_transactions_after_a_resend_count() -> None:
    assert rows_however_landed([*ONE, *TWO, *ONE, *TWO, *THREE]) == [*ONCE, ("3", "c")]
    assert rows_however_landed([*ONE, *TWO[:3], *ONE, *TWO, *THREE]) == [*ONCE, ("3", "c")]


STREAMED = [("4", "d"), ("5", "e")]


@pytest.mark.parametrize(
    "messages",
    [
        [*STREAM, *STREAM, *stream_commit(6, 10)],
        [*STREAM[:2], *STREAM, *stream_commit(6, 10)],
        [*STREAM[:5], *STREAM, *stream_commit(6, 10)],
        [*STREAM, *stream_commit(6, 10), *STREAM, *stream_commit(6, 10)],
        [*STREAM, *stream_commit(6, 10), *STREAM[:3]],
        [*STREAM, *stream_commit(6, 10), *transaction(6, 10, BAG, insert("4", "d"), insert("5", "e"))],
        [*transaction(6, 10, BAG, insert("4", "d"), insert("5", "e")), *STREAM, *stream_commit(6, 10)],
        [*STREAM, *stream_prepare(6), *STREAM, *stream_prepare(6), *commit_prepared(6, 10)],
        [*STREAM, *stream_prepare(6), *commit_prepared(6, 10), *STREAM, *stream_prepare(6), *commit_prepared(6, 10)],
        [*STREAM, *prepared(6, BAG, insert("4", "d"), insert("5", "e")), *commit_prepared(6, 10)],
    ],
)
def test_a_streamed_transaction_that_is_sent_again_counts_once(messages: Messages) -> None:
    assert rows_however_landed(messages) == STREAMED


def test_a_subtransaction_may_be_aborted_only_in_the_second_sending() -> None:
    """The first sending ended before the Stream Abort; xids don't change."""
    first = segment(6, BAG, insert("1", "kept"), in_subtransaction(8, insert("2", "dropped")), first=True)
    assert rows_however_landed([*first, *first, *stream_abort(6, 8), *stream_commit(6, 10)]) == [("1", "kept")]


@pytest.mark.parametrize(
    "messages",
    [
        [*PREPARED, *PREPARED, *commit_prepared(7, 10)],
        [*PREPARED[:3], *PREPARED, *commit_prepared(7, 10)],
        [*PREPARED, *commit_prepared(7, 10), *PREPARED, *commit_prepared(7, 10)],
        [*PREPARED, *commit_prepared(7, 10), *commit_prepared(7, 10)],
        [*PREPARED[:3], *PREPARED, *commit_prepared(7, 10), *commit_prepared(7, 10)],
    ],
)
def test_a_prepared_transaction_that_is_sent_again_counts_once(messages: Messages) -> None:
    assert rows_however_landed(messages) == [("6", "f")]


def test_a_transaction_cut_off_and_resent_is_accounted_for() -> None:
    replay = replayed([*ONE[:3]], [*ONE, *STREAM[:3]], [*STREAM, *stream_commit(6, 20), *PREPARED[:2]], PREPARED)
    assert statuses(replay) == [
        (3, TransactionStatus.RESENT),
        (6, TransactionStatus.RESENT),
        (6, TransactionStatus.COMMITTED),
        (7, TransactionStatus.RESENT),
        (7, TransactionStatus.OPEN),
    ]


def test_a_stream_resent_as_one_prepared_transaction_is_not_left_open() -> None:
    replay = replayed([*STREAM, *prepared(6, BAG, insert("4", "d")), *commit_prepared(6, 10)])
    assert statuses(replay) == [(6, TransactionStatus.RESENT), (6, TransactionStatus.COMMITTED)]


def test_a_stream_resent_as_an_ordinary_transaction_is_not_left_open() -> None:
    streamed, whole = segment(6, BAG, insert("4", "d"), first=True), transaction(6, 30, BAG, insert("4", "d"))
    for files in ([[*streamed, *whole]], [streamed, whole], [streamed, whole[:2], whole[2:]]):
        replay = over_nights(copydata(messages) for messages in files)
        assert tables(replay)["t"] == rows_of(whole)
        assert replay.assembly.open_outcomes() == []
        assert (6, TransactionStatus.RESENT) in statuses(replay)


def test_an_open_transaction_waits_for_any_number_of_nights() -> None:
    nights: Sequence[Messages] = [
        [*STREAM, *PREPARED, *ONE[:3]],
        [],
        ONE[3:],
        TWO,
        [*commit_prepared(7, 30), *stream_commit(6, 40)],
    ]
    replay = over_nights(map(copydata, nights[:2]))
    assert statuses(replay) == [(6, TransactionStatus.OPEN), (7, TransactionStatus.OPEN), (3, TransactionStatus.OPEN)]
    assert tables(replay) == {}
    assert tables(over_nights(map(copydata, nights)))["t"] == [*ONCE, ("4", "d"), ("5", "e"), ("6", "f")]


def test_a_prepared_transaction_is_rolled_back_nights_later() -> None:
    replay = over_nights(map(copydata, [PREPARED, ONE, rollback_prepared(7)]))
    assert (tables(replay)["t"], statuses(replay)) == ([("1", "a"), ("1", "a")], [(7, TransactionStatus.ABORTED)])


def test_an_aborted_stream_is_dropped_whole() -> None:
    assert rows_however_landed([*STREAM, *ONE, *stream_abort(6), *TWO]) == ONCE


def test_stream_abort_of_a_transaction_never_streamed_is_ignored() -> None:
    """PostgreSQL 18 sends it even at protocol version 1; with LSN and time if streaming is parallel."""
    assert (
        rows_however_landed([*stream_abort(99), *ONE, *stream_abort(99, 98), StreamAbort(99, 99, 15, 0), *TWO]) == ONCE
    )


def test_commit_prepared_of_an_empty_transaction_never_sent_is_ignored() -> None:
    messages = [*ONE, *commit_prepared(99, 15), *rollback_prepared(98), *TWO]
    assert rows_however_landed(messages) == ONCE
    assert replayed(messages).assembly.unknown_prepared == [UnknownPrepared(99, "gid-99", 15)]
    assert replayed([*messages, *messages]).assembly.unknown_prepared == [UnknownPrepared(99, "gid-99", 15)]


def test_xids_after_a_wraparound_are_newer() -> None:
    """No file after the wraparound is compared with all of history, on any night."""
    late = [transaction(2**32 - 3 + n, 10 + n, BAG, insert(str(n), "v")) for n in range(3)]
    early = [transaction(3 + n, 20 + n, insert(str(n), "v")) for n in range(3)]
    replay = over_nights(copydata(messages) for messages in (*late, *early))
    assert not replay.assembly.needs_history
    assert len(rows_of(*late, *early)) == 6
    in_one_file = scan_file("0", 0, copydata([message for part in (*late, *early) for message in part])).summary
    assert in_one_file.xids == (2**32 - 3, 5)
    again = replayed([message for part in (*late, *early) for message in part], transaction(4, 40, insert("9", "v")))
    assert again.assembly.overlaps == {1: (4, 5)}, "an xid that is not newer than all before"


def prepare(xid: int) -> Messages:
    """Without a Begin Prepare, as PostgreSQL 18 sends it for a transaction with nothing to decode."""
    return [Prepare(1, 9, 0, xid, f"gid-{xid}")]


def test_prepare_without_begin_prepare_is_an_empty_transaction() -> None:
    """Also as a file's first message after a file that ends inside a transaction or segment, and when rolled back."""
    messages = [*prepare(99), *prepare(98), *ONE, *commit_prepared(99, 15), *rollback_prepared(98), *TWO]
    assert rows_however_landed(messages) == ONCE
    assert replayed(messages).assembly.unknown_prepared == []
    for begun in (ONE[:-1], segment(9, table(), insert("9", "z"), first=True)[:-1], prepared(9, table())[:-1]):
        assert rows_of(begun, messages) == ONCE
        assert rows_of([*begun, *messages]) == ONCE


def test_prepare_without_begin_prepare_is_committed_in_a_later_night() -> None:
    assembly = replayed([*ONE, *prepare(99)]).assembly
    again = Assembly(assembly.relations, assembly.state(), assembly.types)
    assert again.state() == assembly.state()
    later = Replay(again)
    later.add_scanned("1", scan_file("1", 1, copydata([*commit_prepared(99, 15), *TWO])))
    assert again.unknown_prepared == []


def test_a_relation_in_a_segment_is_known_to_the_next_night() -> None:
    wide = table("id", "v", "w")
    messages = [
        *transaction(3, 10, table(), insert("1", "a")),
        *segment(6, wide, insert("2", "b", "w"), first=True),
        *transaction(4, 20, insert("3", "c")),
        *segment(6, insert("4", "d", "w")),
        *stream_commit(6, 30),
        *transaction(5, 40, insert("5", "e", "w")),
    ]
    expected = [("1", "a", None), ("2", "b", "w"), ("3", "c", None), ("4", "d", "w"), ("5", "e", "w")]
    assert rows_however_landed(messages) == expected


def test_streams_of_several_nights_know_their_own_relations() -> None:
    wide = table("id", "v", "w")
    messages = [
        *segment(6, wide, insert("1", "a", "w"), first=True),
        *segment(8, table(), insert("2", "b"), first=True),
        *segment(6, insert("3", "c", "w")),
        *stream_commit(8, 20),
        *segment(6, insert("4", "d", "w")),
        *stream_commit(6, 30),
    ]
    assert [row[0] for row in rows_however_landed(messages)] == ["1", "2", "3", "4"]


def test_a_truncate_is_applied_at_its_commit() -> None:
    messages = [
        *transaction(3, 10, table(), insert("1", "a")),
        *segment(6, table(), truncate(), insert("2", "after"), first=True),
        *transaction(4, 20, insert("3", "before")),
        *stream_commit(6, 30),
        *transaction(5, 40, update("2", "later")),
    ]
    assert rows_however_landed(messages) == [("2", "later")]


@pytest.mark.parametrize("slot", ["v1", "v2", "v3"])
def test_ten_nights_give_the_same_result_as_one(slot: str) -> None:
    paths = sorted((DATA / "random16" / slot).glob("*.copydata.gz"))
    at_once = Replay()
    for path in paths:
        at_once.add_file(str(path), path.read_bytes())
    nightly = over_nights(path.read_bytes() for path in paths)
    assert tables(nightly) == tables(at_once)
    assert nightly.assembly.last_commit_lsn == at_once.assembly.last_commit_lsn


GAPS: dict[str, list[list[PgoutputMessage]]] = {
    "the archive begins inside a transaction": [ONE[2:]],
    "the archive begins inside a segment": [STREAM[1:]],
    "the end of a transaction, and the beginning of the next": [ONE[:3], TWO[2:]],
    "the end of a transaction": [ONE[:3], TWO],
    "the end of a transaction, before one that is open": [ONE[:3], TWO[:2]],
    "the end of a transaction, before a stream's commit": [[*STREAM, *ONE[:3]], stream_commit(6, 20)],
    "the end of a transaction, nights ago": [ONE[:3], STREAM, stream_abort(6), TWO],
    "a transaction that a segment continues": [ONE[:3], STREAM[1:]],
    "the first segment": [STREAM[4:]],
    "the end of a segment, and the beginning of a transaction": [STREAM[:2], ONE[2:]],
    "the end of a segment, and the beginning of the next": [STREAM[:2], STREAM[4:]],
    "the last part of a segment": [[*STREAM[:5]], stream_commit(6, 10)],
    "the last part of a segment, before Stream Prepare": [[*STREAM[:5]], stream_prepare(6)],
    "a streamed transaction, except for its end": [ONE, stream_commit(6, 20)],
    "a streamed transaction, except for Stream Prepare": [ONE, stream_prepare(6)],
    "the Prepare of a prepared transaction, nights ago": [PREPARED[:3], ONE, commit_prepared(7, 20)],
    "the Prepare of a prepared transaction": [PREPARED[:3], commit_prepared(7, 10)],
    "the messages between two prepared transactions": [
        PREPARED[:3],
        prepared(8, insert("7", "g"))[1:],
    ],
    "the end of a transaction, and the beginning of a prepared one": [ONE[:3], PREPARED[2:]],
}


@pytest.mark.parametrize("files", GAPS.values(), ids=GAPS.keys())
def test_a_missing_file_is_an_error(files: list[Messages]) -> None:
    *before, last = files
    replay = replayed(*before)
    replay.assembly = through_the_night(replay.assembly)
    with pytest.raises(SequenceError, match=r"^night/7\.copydata: .* is missing$"):
        replay.add_file("night/7.copydata", copydata(last))
