"""Transactional logical decoding Messages count as changes do; all others count once, however often they are sent."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_etl.errors import ArchiveError, SequenceError
from pgoutput_etl.protocol.messages import Message
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.scan.blocks import BLOCK_SCHEMA, BlockKind, Packer, unpacked
from pgoutput_etl.scan.message_row import LOGICAL_TAG
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.logical_messages import COUNTED_BY, messages_that_count
from pgoutput_etl.transactions.outcome import TransactionStatus, control_rows
from pgoutput_etl.transactions.statistics import COUNTED_KINDS, BatchStatistics
from pgoutput_etl.transactions.status_lookup import StatusLookup
from tests.core.transactions.test_assembly import over_nights
from tests.support import encoder
from tests.support.captures import DATA, files_of
from tests.support.model.history import History, random_history, random_options
from tests.support.model.receiver import divided
from tests.support.model.wal import Abort, LogicalMessage
from tests.support.model.wal import Commit as CommitRecord
from tests.support.scan_parts import scan_file
from tests.support.small_archives import (
    Messages,
    commit_prepared,
    copydata,
    in_subtransaction,
    insert,
    prepared,
    replayed,
    rollback_prepared,
    segment,
    stream_abort,
    stream_commit,
    stream_prepare,
    table,
    transaction,
)

BAG = table(key=())
Counted = list[tuple[str, int | None, int | None]]  # content, xid, commit LSN


def emitted(content: str, lsn: int = 5, xid: int | None = None) -> Message:
    return Message(xid, True, lsn, "outbox", content.encode())


def lone(content: str, lsn: int = 5) -> Message:
    return Message(None, False, lsn, "outbox", content.encode())


def counted(replay: Replay) -> Counted:
    return sorted(((m["content"].decode(), m["xid"], m["commit_lsn"]) for m in replay.logical_messages()), key=repr)


ONE = transaction(3, 10, BAG, insert("1", "a"), emitted("one"))
TWO = transaction(4, 20, emitted("two"), emitted("two"), insert("2", "b"))
STREAM = segment(6, BAG, emitted("kept"), in_subtransaction(7, emitted("dropped")), first=True)
LONE = lone("lone")

CASES: dict[str, tuple[Messages, Counted]] = {
    "committed transactions": ([*ONE, *TWO], [("one", 3, 10), ("two", 4, 20), ("two", 4, 20)]),
    "outside any transaction": ([LONE, *ONE, lone("b", 6)], [("b", None, None), ("lone", None, None), ("one", 3, 10)]),
    "not transactional, between Begin and Commit": ([ONE[0], LONE, *ONE[1:]], [("lone", None, None), ("one", 3, 10)]),
    "not transactional, in a transaction that is cut off": (
        [*ONE[:2], LONE, *ONE],
        [("lone", None, None), ("one", 3, 10)],
    ),
    "not transactional, in a resent transaction": (
        [*ONE, ONE[0], LONE, *ONE[1:]],
        [("lone", None, None), ("one", 3, 10)],
    ),
    "not transactional, resent": ([LONE, *ONE, LONE, *ONE], [("lone", None, None), ("one", 3, 10)]),
    "not transactional, two with equal content": ([LONE, lone("lone", 6)], [("lone", None, None)] * 2),
    "not transactional, two at one LSN": ([LONE, lone("other")], [("lone", None, None), ("other", None, None)]),
    "a resent transaction": ([*ONE, *TWO[:2], *ONE, *TWO], [("one", 3, 10), *[("two", 4, 20)] * 2]),
    "a transaction without its end": ([*ONE, *TWO[:3]], [("one", 3, 10)]),
    "a stream": (
        [*STREAM, *stream_commit(6, 30)],
        [("dropped", 6, 30), ("kept", 6, 30)],
    ),
    "a stream's subtransaction that is rolled back": (
        [*STREAM, *stream_abort(6, 7), *segment(6, emitted("more")), *stream_commit(6, 30)],
        [("kept", 6, 30), ("more", 6, 30)],
    ),
    "a stream that is rolled back": ([*STREAM, *stream_abort(6), *ONE], [("one", 3, 10)]),
    "a stream without its end": ([*STREAM, *ONE], [("one", 3, 10)]),
    "a stream that is begun again": ([*STREAM, *STREAM, *stream_commit(6, 30)], [("dropped", 6, 30), ("kept", 6, 30)]),
    "not transactional, after a segment that is cut off": (
        [*STREAM[:-1], LONE, *STREAM, *stream_abort(6)],
        [("lone", None, None)],
    ),
    "a prepared transaction": ([*prepared(7, emitted("p")), *commit_prepared(7, 50)], [("p", 7, 50)]),
    "a prepared transaction that is rolled back": (
        [*prepared(7, emitted("p")), *rollback_prepared(7), *ONE],
        [("one", 3, 10)],
    ),
    "a streamed and prepared transaction": (
        [*STREAM, *stream_prepare(6, 25), *commit_prepared(6, 40)],
        [("dropped", 6, 40), ("kept", 6, 40)],
    ),
}


def length_prefixed(messages: Iterable[Any]) -> bytes:
    return encoder.length_prefixed(map(encoder.encode, messages))


def with_own_lsns(messages: Iterable[Any]) -> bytes:
    """As a server sends them: a Message's frame has the Message's LSN."""
    lsns = (m.lsn if isinstance(m, Message) else 0x1000000 + i for i, m in enumerate(messages))
    listed = list(messages)
    return encoder.copydata(encoder.Row(lsn, 0, encoder.encode(m)) for lsn, m in zip(lsns, listed, strict=False))


@pytest.mark.parametrize("framed", [copydata, length_prefixed, with_own_lsns])
@pytest.mark.parametrize("name", CASES)
def test_the_same_messages_count_for_every_division_into_files(name: str, framed: Any) -> None:
    messages, expected = CASES[name]
    assert counted(over_nights([framed(messages)])) == sorted(expected, key=repr)
    assert counted(over_nights(framed([message]) for message in messages)) == sorted(expected, key=repr)
    for at in range(1, len(messages)):
        assert counted(over_nights([framed(messages[:at]), framed(messages[at:])])) == sorted(expected, key=repr), at


def counted_in_blocks(contents: Iterable[bytes]) -> tuple[list[dict[str, Any]], BatchStatistics, int]:
    """The Messages as the job counts them, from blocks; the statistics of all rows; and the number of bytes read."""
    assembly, packer, blocks, read = Assembly(), Packer(), list[pa.RecordBatch](), 0
    for number, content in enumerate(contents):
        scanned = scan_file(f"{number:03}", number, content)
        rows = [row for batch in scanned.batches for row in batch.to_pylist()]
        assembly.add_file(scanned.summary, control_rows(scanned.batches))
        ends = [(row["top_xid"], (row["file"], row["unit"])) for row in rows if row["tag"] == "C"]
        assembly.replace_streams((xid, unit) for xid, unit in ends if xid is not None)
        blocks += [block for batch in scanned.batches for block in packer.add(batch)]
        read += scanned.summary.consumed
    blocks += list(packer.rest())
    statuses = StatusLookup.of((*assembly.outcomes, *assembly.open_outcomes()), assembly.watermarks)
    found: list[dict[str, Any]] = []
    statistics = BatchStatistics()
    for block in pa.Table.from_batches(blocks, BLOCK_SCHEMA).to_pylist():
        kind = BlockKind(block["kind"])
        statistics.add(kind, block["relation"], unpacked(block, COUNTED_KINDS), 0, statuses)
        if kind is BlockKind.LOGICAL:
            found += messages_that_count(unpacked(block, COUNTED_BY), statuses).to_pylist()
    found.sort(key=lambda m: (m["file"], m["ordinal"]))
    seen: set[tuple[Any, ...]] = set()
    once = []
    for message in found:
        identity = (message["lsn"], message["prefix"], message["content"])
        if message["transactional"] or identity not in seen:
            once.append(message)
        seen.add(identity)
    return once, statistics, read


@pytest.mark.parametrize("name", CASES)
def test_blocks_give_the_same_messages_and_account_for_every_byte(name: str) -> None:
    messages, _ = CASES[name]
    for files in ([messages], [[message] for message in messages]):
        contents = [copydata(file) for file in files]
        replay = over_nights(contents)
        found, statistics, read = counted_in_blocks(contents)
        assert found == replay.logical_messages()
        assert sum(statistics.sizes.values()) == read
        of_transactions = sum(m["transactional"] for m in found)
        assert statistics.messages["transactional"] == of_transactions
        assert statistics.messages["others"] >= len(found) - of_transactions


def test_an_aborted_message_is_accounted_for_with_its_transaction() -> None:
    messages = [*ONE, *STREAM, *stream_abort(6)]
    _, statistics, read = counted_in_blocks([copydata(messages)])
    _, without, _ = counted_in_blocks([copydata(ONE)])
    assert statistics.sizes[0, "aborted"] == len(copydata(STREAM))
    assert statistics.sizes[0, "applied"] == read - statistics.sizes[0, "aborted"] > without.sizes[0, "applied"]


# Messages that can be parsed both as outside and as inside of a stream segment: an LSN past 1/0, an LSN of letters.
OUTSIDE_ALIKE = Message(None, True, 0x1_4142_4348, "outbox", b"odd")
INSIDE_ALIKE = Message(6, True, 0x4142_4348, "outbox", b"odd")


@pytest.mark.parametrize("framed", [length_prefixed, with_own_lsns, copydata])
def test_the_open_transaction_decides_how_an_ambiguous_head_is_parsed(framed: Any) -> None:
    ordinary = transaction(3, 10, OUTSIDE_ALIKE)
    assert counted(over_nights(framed([message]) for message in ordinary)) == [("odd", 3, 10)]
    streamed = [*segment(6, INSIDE_ALIKE, first=True), *stream_commit(6, 30)]
    assert counted(over_nights(framed([message]) for message in streamed)) == [("odd", 6, 30)]


def test_a_subtransactions_message_in_an_ambiguous_head_is_rolled_back() -> None:
    inside = segment(6, in_subtransaction(7, INSIDE_ALIKE), INSIDE_ALIKE, first=True)
    messages = [*inside, *stream_abort(6, 7), *stream_commit(6, 30)]
    contents = [length_prefixed([message]) for message in messages]
    assert counted(over_nights(contents)) == [("odd", 6, 30)]
    assert [m["content"] for m in counted_in_blocks(contents)[0]] == [b"odd"]


def test_a_transactional_message_outside_a_transaction_is_refused() -> None:
    with pytest.raises(SequenceError, match="nothing is open"):
        over_nights([copydata(ONE), copydata([emitted("lost")])])
    with pytest.raises(ArchiveError, match="Message outside any transaction"):
        replayed([*ONE, emitted("lost")])


def test_an_lsn_past_a_bigint_is_refused() -> None:
    with pytest.raises(ArchiveError, match="a Message's LSN FFFFFFFF/FFFFFFFF does not fit in a BIGINT"):
        replayed([*ONE, Message(None, False, 2**64 - 1, "p", b"")])


def test_content_is_any_bytes_and_may_be_empty() -> None:
    replay = replayed(
        transaction(3, 10, Message(None, True, 7, "", bytes(range(256))), Message(None, True, 8, "é", b""))
    )
    found = [(m["prefix"], m["content"], m["lsn"]) for m in replay.logical_messages()]
    assert found == [("", bytes(range(256)), 7), ("é", b"", 8)]


def test_a_message_needs_no_table() -> None:
    replay = replayed(TWO[:3] + TWO[4:])
    assert list(replay.committed()) == []
    assert counted(replay) == [("two", 4, 20)] * 2


REAL = ["pg14/v1_binary", "pg14/v2_stream", "pg16/v1_binary", "pg16/v2_stream", "pg16/v3_twophase", "pg16/v4_parallel"]


@pytest.mark.parametrize("slot", [*REAL, "pg16/v4_twophase_parallel_binary"])
def test_messages_from_a_real_server(slot: str) -> None:
    """The script emitted Messages outside any transaction, in a committed transaction (one transactional, one not), and
    in a transaction that was rolled back."""
    contents = [path.read_bytes() for path in files_of(DATA / slot)]
    replay = over_nights(contents)
    found = replay.logical_messages()
    assert [(m["prefix"], m["content"], m["transactional"]) for m in found] == [
        ("app", b"non-transactional", False),
        ("app", b"outside while inside", False),
        ("app", b"in txn", True),
    ]
    assert [m["xid"] is None for m in found] == [True, True, False]
    assert found[2]["lsn"] < found[1]["lsn"] <= found[2]["commit_lsn"]
    again = over_nights([*contents, *contents])
    assert [m["content"] for m in again.logical_messages()] == [m["content"] for m in found]
    assert len(counted_in_blocks(contents)[0]) == 3


def test_messages_from_a_real_server_with_random_transactions() -> None:
    contents = [path.read_bytes() for path in files_of(DATA / "random16" / "v2")]
    found, statistics, read = counted_in_blocks(contents)
    assert found == over_nights(contents).logical_messages()
    assert len({(m["lsn"], m["prefix"], m["content"]) for m in found}) == len(found) > 100
    assert sum(statistics.sizes.values()) == read


SEEDS = [pytest.param(range(n, n + 40), marks=() if n < 40 else pytest.mark.soak) for n in range(0, 2_000, 40)]


@pytest.mark.parametrize("seeds", SEEDS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_a_receiver_killed_at_random_gets_every_message_once(seeds: range) -> None:
    """The model server resends from random positions and streams random transactions; see tests.support.model."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        rng = random.Random(seed)
        history = history_with_messages(rng)
        files = divided(rng, history.messages, most=10)
        contents = [rng.choice([length_prefixed, copydata, with_own_lsns])(file) for file in files]
        replay = over_nights(contents)
        found = replay.logical_messages()
        certain, possible = emitted_by(history)
        contents_found = Counter(m["content"] for m in found)
        assert certain <= contents_found.keys() <= certain | possible, f"seed {seed}"
        assert set(contents_found.values()) <= {1}, f"seed {seed}"
        assert [m for m in found if m["transactional"] == (m["commit_lsn"] is None)] == []
        in_blocks, statistics, read = counted_in_blocks(contents)
        assert in_blocks == found, f"seed {seed}"
        assert sum(statistics.sizes.values()) == read
        sent = [message for message in history.messages if isinstance(message, Message)]
        counts["sent again"] += len(sent) - len({message.content for message in sent})
        counts["not transactional"] += sum(not message.transactional for message in sent)
        counts["certain"] += len(certain)
        counts["resent"] += sum(outcome.status is TransactionStatus.RESENT for outcome in replay.assembly.outcomes)
    assert min(counts.values()) > len(seeds) / 5, counts


def history_with_messages(rng: random.Random) -> History:
    while not (options := random_options(rng)).messages:
        pass
    return random_history(rng, replace(options, weights={"message": 40}, connections=rng.choice([2, 3, 6])))


def emitted_by(history: History) -> tuple[set[bytes], set[bytes]]:
    """The contents that an archive certainly has, and the contents that it may have.

    A Message in a stream segment has the xid of its top-level transaction, so an archive can't reveal that the
    subtransaction which emitted it was rolled back.
    """
    wal = history.server.wal
    committed = {record.xid for record in wal if isinstance(record, CommitRecord)}
    aborted = {
        xid
        for record in wal
        if isinstance(record, Abort) and record.xid != record.top
        for xid in (record.xid, *record.subxids)
    }
    certain: set[bytes] = set()
    possible: set[bytes] = set()
    for record in wal:
        if not isinstance(record, LogicalMessage) or not (record.origin is None or history.options.publishes_origins):
            continue
        if not record.message.transactional:
            certain.add(record.message.content)
        elif record.top in committed:
            (possible if record.xid in aborted else certain).add(record.message.content)
    return certain, possible


def test_a_scan_without_messages_has_no_message_rows() -> None:
    scanned = scan_file("a", 0, copydata(transaction(3, 10, BAG, insert("1", "a"))))
    assert {row["tag"] for batch in scanned.batches for row in batch.to_pylist()} == {"R", "I", "C", "file"}
    assert LOGICAL_TAG in {r["tag"] for b in scan_file("a", 0, copydata(ONE)).batches for r in b.to_pylist()}
