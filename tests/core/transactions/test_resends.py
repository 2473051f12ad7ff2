"""Transactions that a server resends to a reconnected receiver count once, for every division into files and nights."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise

import pytest

from pgoutput_etl.protocol.messages import Commit, CommitPrepared, StreamAbort, StreamCommit
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.transactions.outcome import TransactionStatus
from tests.core.transactions.test_assembly import over_nights
from tests.support.archived_tables import assert_archived, assert_nothing_waits_for_what_came, replayed_nightly
from tests.support.model.history import History, random_history, random_options
from tests.support.model.weights import WITHOUT_DDL
from tests.support.small_archives import (
    Messages,
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
)

EVER = 1 << 62
COMMITS = (Commit, StreamCommit, CommitPrepared)
BAG = table(key=())  # shows changes that are applied twice or lost
ONE = transaction(3, 10, BAG, insert("1", "a"))
TWO = transaction(4, 20, BAG, insert("2", "b"))
# Each transaction as the server may send it: streamed in one segmentation or another, in one piece, prepared.
STREAMED = [*segment(6, BAG, insert("6", "a"), first=True), *segment(6, insert("6", "b"), insert("6", "c"))]
OTHERWISE = [
    *segment(6, BAG, insert("6", "a"), insert("6", "b"), first=True),
    *segment(6),
    *segment(6, insert("6", "c")),
]
IN_ONE_PIECE = transaction(6, 30, BAG, insert("6", "a"), insert("6", "b"), insert("6", "c"))
COMMITTED = [*STREAMED, *stream_commit(6, 30)]
PREPARED = prepared(7, BAG, insert("7", "a"), lsn=25)
STREAMED_PREPARED = [*segment(7, BAG, insert("7", "a"), first=True), *stream_prepare(7, 25)]
WITH_A_SAVEPOINT = segment(8, BAG, insert("8", "kept"), in_subtransaction(9, insert("8", "dropped")), first=True)
WITHOUT_IT = segment(8, BAG, insert("8", "kept"), first=True)  # the server knows by now that it was rolled back
KEPT = [*WITHOUT_IT, *stream_commit(8, 40)]

SENT: dict[str, tuple[Messages, Messages]] = {
    "a whole transaction again": ([*ONE, *TWO, *ONE, *TWO], [*ONE, *TWO]),
    "the beginning of a transaction, then all of it": ([*ONE, *TWO[:3], *TWO], [*ONE, *TWO]),
    "a Begin alone, the transaction before it, then all of it": ([*ONE, *TWO[:1], *ONE, *TWO], [*ONE, *TWO]),
    "beginnings of growing length": ([*ONE[:1], *ONE[:2], *ONE[:3], *ONE, *TWO], [*ONE, *TWO]),
    "nothing new at the end": ([*ONE, *TWO, *ONE, *TWO[:2]], [*ONE, *TWO]),
    "a stream, begun again": ([*STREAMED, *COMMITTED], COMMITTED),
    "a stream, begun again inside a segment": ([*STREAMED[:5], *COMMITTED], COMMITTED),
    "a stream in other segments": ([*STREAMED[:5], *OTHERWISE, *stream_commit(6, 30)], COMMITTED),
    "a stream in other segments, after its commit": ([*COMMITTED, *OTHERWISE, *stream_commit(6, 30)], COMMITTED),
    "a stream after its commit, in part": ([*COMMITTED, *OTHERWISE[:6]], COMMITTED),
    "streamed first, then in one piece": ([*STREAMED[:6], *IN_ONE_PIECE], COMMITTED),
    "streamed and committed first, then in one piece": ([*COMMITTED, *IN_ONE_PIECE], COMMITTED),
    "in one piece first, then streamed": ([*IN_ONE_PIECE, *COMMITTED], COMMITTED),
    "the beginning of the one piece, then streamed": ([*ONE, *IN_ONE_PIECE[:3], *COMMITTED], [*ONE, *COMMITTED]),
    "streams side by side, one of them begun again": (
        [*WITH_A_SAVEPOINT, *STREAMED[:4], *OTHERWISE, *stream_commit(6, 30), *KEPT],
        [*COMMITTED, *KEPT],
    ),
    "a savepoint that was rolled back meanwhile": ([*WITH_A_SAVEPOINT, *KEPT], KEPT),
    "a savepoint, and its Stream Abort in the second sending alone": (
        [*WITH_A_SAVEPOINT, *WITH_A_SAVEPOINT, *stream_abort(8, 9), *stream_commit(8, 40)],
        KEPT,
    ),
    "a stream that was rolled back meanwhile, never sent again": ([*STREAMED[:5], *ONE, *TWO], [*ONE, *TWO]),
    "a stream that was rolled back meanwhile, only its Stream Abort": (
        [*STREAMED[:5], *ONE, *stream_abort(6), *TWO],
        [*ONE, *TWO],
    ),
    "a whole stream that was rolled back, again": (
        [*STREAMED, *stream_abort(6), *ONE, *STREAMED, *stream_abort(6), *ONE, *TWO],
        [*ONE, *TWO],
    ),
    "Prepare again before Commit Prepared": (
        [*PREPARED, *PREPARED, *commit_prepared(7, 30)],
        [*PREPARED, *commit_prepared(7, 30)],
    ),
    "Prepare again, cut off, before Commit Prepared": (
        [*PREPARED, *PREPARED[:3], *PREPARED, *commit_prepared(7, 30)],
        [*PREPARED, *commit_prepared(7, 30)],
    ),
    "Prepare and Commit Prepared again": (
        [*PREPARED, *commit_prepared(7, 30), *PREPARED, *commit_prepared(7, 30)],
        [*PREPARED, *commit_prepared(7, 30)],
    ),
    "Commit Prepared again": (
        [*PREPARED, *commit_prepared(7, 30), *commit_prepared(7, 30)],
        [*PREPARED, *commit_prepared(7, 30)],
    ),
    "Prepare again, in part, then Commit Prepared again": (
        [*PREPARED, *commit_prepared(7, 30), *PREPARED[:3], *commit_prepared(7, 30)],
        [*PREPARED, *commit_prepared(7, 30)],
    ),
    "prepared in one piece, then streamed": (
        [*PREPARED, *STREAMED_PREPARED, *commit_prepared(7, 30)],
        [*PREPARED, *commit_prepared(7, 30)],
    ),
    "streamed and prepared, then in one piece": (
        [*STREAMED_PREPARED[:3], *PREPARED, *commit_prepared(7, 30), *STREAMED_PREPARED, *commit_prepared(7, 30)],
        [*PREPARED, *commit_prepared(7, 30)],
    ),
    "Rollback Prepared again": ([*PREPARED, *rollback_prepared(7), *ONE, *PREPARED, *rollback_prepared(7), *ONE], ONE),
    "stray Stream Aborts": (
        [*ONE, StreamAbort(99, 99, None, None), *ONE, *stream_abort(99, 98), StreamAbort(97, 97, 15, 0), *TWO],
        [*ONE, *TWO],
    ),
    "Commit Prepared and Rollback Prepared of transactions never sent": (
        [*ONE, *commit_prepared(99, 15), *rollback_prepared(98), *ONE, *commit_prepared(99, 15), *TWO],
        [*ONE, *TWO],
    ),
    "an xid used again after a stream whose rollback was never sent": (
        [*STREAMED[:3], *ONE, *segment(6, BAG, insert("6", "new"), first=True), *stream_commit(6, 30)],
        [*ONE, *transaction(6, 30, BAG, insert("6", "new"))],
    ),
    "an xid used again after a transaction": (
        [
            *(*IN_ONE_PIECE, *segment(6, BAG, insert("6", "new"), first=True), *IN_ONE_PIECE[:2], *IN_ONE_PIECE),
            *(*segment(6, BAG, insert("6", "new"), first=True), *stream_commit(6, 50)),
        ],
        [*IN_ONE_PIECE, *transaction(6, 50, BAG, insert("6", "new"))],
    ),
}


LEFT_OPEN = {"nothing new at the end", "a stream after its commit, in part"}


def cuts(count: int, files: int) -> Iterator[list[tuple[int, int]]]:
    """Every way to divide `count` messages into files."""
    for inner in combinations(range(1, count), files - 1):
        ends = (0, *inner, count)
        yield list(pairwise(ends))


@pytest.mark.parametrize("files", [1, 2, pytest.param(3, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", SENT)
def test_resends_count_once_for_every_division_into_files(name: str, files: int) -> None:
    messages, plain = SENT[name]
    expected = rows_of(plain)
    assert expected

    @cache
    def landed(begin: int, end: int) -> bytes:
        return copydata(messages[begin:end], 0x1000000 + begin)

    for pieces in cuts(len(messages), files):
        contents = [landed(*piece) for piece in pieces]
        for schedule, replay in (("at once", at_once(contents)), ("night by night", over_nights(contents))):
            assert tables(replay).get("t", []) == expected, f"{schedule}: {pieces}"
            assert bool(replay.assembly.open_outcomes()) == (name in LEFT_OPEN), f"{schedule}: {pieces}"


def at_once(contents: Iterable[bytes]) -> Replay:
    replay = Replay()
    for number, content in enumerate(contents):
        replay.add_file(f"{number:03}", content)
    return replay


SEEDS = [pytest.param(range(n, n + 50), marks=() if n < 50 else pytest.mark.soak) for n in range(0, 10_000, 50)]


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_a_receiver_killed_at_random_gets_what_the_server_holds(seeds: range) -> None:
    """The model server resends from random positions and streams random transactions; see tests.support.model."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        rng = random.Random(seed)
        history = killed_history(rng)
        replay = replayed_nightly(history, rng)
        assert_archived(history, replay)
        assert_nothing_waits_for_what_came(history, replay)
        counts["kills"] += len(history.connections) - 1
        commits = [message.commit_lsn for message in history.messages if isinstance(message, COMMITS)]
        counts["sent again"] += len(commits) - len(set(commits))
        counts["resent"] += sum(outcome.status is TransactionStatus.RESENT for outcome in replay.assembly.outcomes)
        counts["knowable"] += sum(table.knowable for table in history.archived_at(EVER).values())
    assert min(counts.values()) > len(seeds) / 5, counts


def killed_history(rng: random.Random) -> History:
    options = replace(random_options(rng), connections=rng.choice([2, 3, 6]), weights=WITHOUT_DDL)
    return random_history(rng, replace(options, evicts_prepared=False))


def test_every_form_of_a_transaction_has_the_same_rows() -> None:
    """Checks the expected values of the exhaustive test."""
    assert rows_of(COMMITTED) == rows_of(IN_ONE_PIECE) == [("6", "a"), ("6", "b"), ("6", "c")]
    assert rows_of([*PREPARED, *commit_prepared(7, 30)]) == rows_of([*STREAMED_PREPARED, *commit_prepared(7, 30)])
    assert rows_of(KEPT) == [("8", "kept")]


EMPTY = [*segment(5, first=True), *segment(5), *stream_commit(5, 15)]


@pytest.mark.parametrize("cut", range(len(EMPTY) + 1))
def test_an_empty_streamed_transaction_may_be_sent_for_the_first_time_after_later_ones(cut: int) -> None:
    """The server streams it if its memory is short, and otherwise doesn't send it. Nobody looks for an earlier one."""
    replay = replayed([*ONE, *TWO, *EMPTY[:cut]], EMPTY[cut:])
    [empty] = [outcome for outcome in replay.assembly.outcomes if outcome.xid == 5]
    assert (empty.status, empty.commit_lsn) == (TransactionStatus.RESENT, None)


@pytest.mark.parametrize("cut", range(6))
def test_a_streamed_transaction_with_changes_has_been_sent_before(cut: int) -> None:
    changed = [*segment(5, first=True), *segment(5, insert("5", "a")), *stream_commit(5, 15)]
    replay = replayed([*ONE, *TWO, *changed[:cut]], changed[cut:])
    [other] = [outcome for outcome in replay.assembly.outcomes if outcome.xid == 5]
    assert (other.status, other.commit_lsn) == (TransactionStatus.RESENT, 15)
