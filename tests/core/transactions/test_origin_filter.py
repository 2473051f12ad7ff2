"""Origins are stored with their transactions, and transactions from refused origins are not applied: no loops."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest

from pgoutput_etl.protocol.messages import Message, Origin
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.scan.blocks import BLOCK_SCHEMA, BlockKind, Packer, unpacked
from pgoutput_etl.transactions.assembly import Assembly
from pgoutput_etl.transactions.origin_filter import ANY, Origins
from pgoutput_etl.transactions.outcome import TransactionStatus, control_rows
from pgoutput_etl.transactions.statistics import COUNTED_KINDS, BatchStatistics, transactions_by_status
from pgoutput_etl.transactions.status_lookup import STATUSES, StatusLookup
from tests.core.transactions.test_assembly import through_the_night
from tests.support.captures import DATA, files_of
from tests.support.scan_parts import scan_file
from tests.support.small_archives import (
    Messages,
    commit_prepared,
    copydata,
    insert,
    prepared,
    segment,
    stream_commit,
    stream_prepare,
    table,
    tables,
    transaction,
)

LOCAL_ONLY = Origins(accepted=frozenset())
SKIPS_A = Origins(skipped=frozenset({"a"}))
ACCEPTS_A = Origins(accepted=frozenset({"a"}))


def begun(messages: Messages, origin: str | None, lsn: int = 7) -> Messages:
    """The messages with an Origin after the first, which begins the transaction."""
    return messages if origin is None else [messages[0], Origin(lsn, origin), *messages[1:]]


def whole(xid: int, lsn: int, origin: str | None) -> Messages:
    return begun(transaction(xid, lsn, insert(str(xid), "v")), origin)


ARCHIVE: Messages = [
    *transaction(2, 5, table()),
    *whole(3, 10, None),
    *whole(4, 20, "a"),
    *whole(5, 30, "b"),
    *begun(segment(6, insert("6", "v"), first=True), "a"),
    *begun(segment(7, insert("7", "v"), first=True), "b"),
    *segment(6, insert("6b", "v")),
    *stream_commit(6, 40),
    *stream_commit(7, 50),
    *begun(prepared(8, insert("8", "v")), "a"),
    *begun(segment(9, insert("9", "v"), first=True), "a"),
    *stream_prepare(9),
    *commit_prepared(8, 60),
    *commit_prepared(9, 70),
    *whole(10, 80, None),
]
APPLIED: dict[str, tuple[Origins, set[str]]] = {
    "any": (ANY, {"3", "4", "5", "6", "6b", "7", "8", "9", "10"}),
    "none": (LOCAL_ONLY, {"3", "10"}),
    "skip a": (SKIPS_A, {"3", "5", "7", "10"}),
    "accept a": (ACCEPTS_A, {"3", "4", "6", "6b", "8", "9", "10"}),
}


def over_nights(contents: Iterable[bytes], origins: Origins) -> Replay:
    replay = Replay(origins=origins)
    for number, content in enumerate(contents):
        replay.add_file(f"{number:03}", content)
        replay.assembly = through_the_night(replay.assembly)
        replay.assembly.origins = origins
    return replay


def keys(replay: Replay) -> set[str]:
    return {row[0] for row in tables(replay).get("t", [])}


@pytest.mark.parametrize("name", APPLIED)
def test_the_same_rows_are_applied_for_every_division_into_files(name: str) -> None:
    origins, expected = APPLIED[name]
    for contents in ([copydata(ARCHIVE)], [copydata([message]) for message in ARCHIVE]):
        assert keys(over_nights(contents, origins)) == expected
    for at in range(1, len(ARCHIVE)):
        assert keys(over_nights([copydata(ARCHIVE[:at]), copydata(ARCHIVE[at:])], origins)) == expected, at


def counted(contents: Iterable[bytes], origins: Origins) -> tuple[BatchStatistics, Assembly, int, set[tuple[Any, ...]]]:
    """Also the number of bytes read, and xid, status, origin and origin LSN of each ordinary transaction."""
    assembly, packer, blocks, read = Assembly(), Packer(), list[pa.RecordBatch](), 0
    assembly.origins = origins
    for number, content in enumerate(contents):
        scanned = scan_file(f"{number:03}", number, content)
        assembly.add_file(scanned.summary, control_rows(scanned.batches))
        blocks += [block for batch in scanned.batches for block in packer.add(batch)]
        read += scanned.summary.consumed
    blocks += list(packer.rest())
    statuses = StatusLookup.of(
        (*assembly.outcomes, *assembly.open_outcomes()), assembly.watermarks, origins=assembly.origins
    )
    statistics, ended = BatchStatistics(), set()
    for block in pa.Table.from_batches(blocks, BLOCK_SCHEMA).to_pylist():
        statistics.add(BlockKind(block["kind"]), block["relation"], unpacked(block, COUNTED_KINDS), 0, statuses)
        if block["kind"] == BlockKind.COMMIT.value:
            rows = unpacked(block)
            listed = zip(rows.to_pylist(), statuses.decide(rows).status.tolist(), strict=True)
            ended |= {(r["top_xid"], STATUSES[status], r["origin"], r["origin_lsn"]) for r, status in listed}
    return statistics, assembly, read, ended


@pytest.mark.parametrize("name", APPLIED)
def test_refused_transactions_have_their_own_status_and_account_of_bytes(name: str) -> None:
    origins, expected = APPLIED[name]
    for contents in ([copydata(ARCHIVE)], [copydata(ARCHIVE[:20]), copydata(ARCHIVE[20:])]):
        statistics, assembly, read, _ = counted(contents, origins)
        by_status = transactions_by_status(assembly.outcomes, statistics)
        refused = {"3", "4", "5", "6", "7", "8", "9", "10"} - expected
        assert by_status["refused"] == len(refused)
        assert by_status["committed"] == 9 - len(refused)
        assert sum(statistics.sizes.values()) == read
        in_account = sum(size for (_, account), size in statistics.sizes.items() if account == "refused")
        assert (in_account > 0) == bool(refused)
        assert sum(relation.tags["I"] for relation in statistics.relations.values()) == len(expected)


def test_an_origin_is_stored_with_its_transaction() -> None:
    _, assembly, _, ended = counted([copydata(ARCHIVE)], SKIPS_A)
    assert {
        (3, TransactionStatus.COMMITTED, None, None),
        (4, TransactionStatus.REFUSED, "a", 7),
        (5, TransactionStatus.COMMITTED, "b", 7),
    } <= ended
    others = {(o.xid, o.status, o.origin, o.origin_lsn) for o in assembly.outcomes}
    assert others == {(6, TransactionStatus.REFUSED, "a", 7), (7, TransactionStatus.COMMITTED, "b", 7)} | {
        (x, TransactionStatus.REFUSED, "a", 7) for x in (8, 9)
    }


def test_an_origin_in_another_file_than_its_begin_counts() -> None:
    night = whole(4, 20, "a")
    replay = over_nights([copydata([*ARCHIVE[:3], *night[:1]]), copydata(night[1:2]), copydata(night[2:])], SKIPS_A)
    assert [(o.xid, o.status, o.origin) for o in replay.assembly.outcomes] == [(4, TransactionStatus.REFUSED, "a")]


def test_an_origin_lsn_of_zero_or_past_a_bigint_is_null() -> None:
    archive = [*begun(transaction(4, 20, table()), "a", 0), *begun(transaction(5, 30), "b", 2**64 - 1)]
    _, _, _, ended = counted([copydata(archive)], ANY)
    assert ended == {(4, TransactionStatus.COMMITTED, "a", None), (5, TransactionStatus.COMMITTED, "b", None)}


def test_a_relation_message_in_a_refused_transaction_counts() -> None:
    """The server doesn't send it again."""
    archive = [*begun(transaction(4, 20, table(), insert("4", "v")), "a"), *whole(5, 30, None)]
    assert keys(over_nights([copydata(archive)], SKIPS_A)) == {"5"}


def test_messages_of_a_refused_transaction_do_not_count() -> None:
    emitted, standalone = Message(None, True, 5, "p", b"t"), Message(None, False, 6, "p", b"n")
    archive = begun(transaction(4, 20, emitted, standalone), "a")
    assert [m["content"] for m in over_nights([copydata(archive)], SKIPS_A).logical_messages()] == [b"n"]
    assert [m["content"] for m in over_nights([copydata(archive)], ANY).logical_messages()] == [b"t", b"n"]


@pytest.mark.parametrize("slot", ["pg10/v1", "pg14/v2_stream", "pg16/v1_binary", "pg16/v4_twophase_parallel_binary"])
def test_an_origin_from_a_real_server(slot: str) -> None:
    """One transaction has the origin `elsewhere`."""
    contents = [path.read_bytes() for path in files_of(DATA / slot)]
    _, _, _, ended = counted(contents, LOCAL_ONLY)
    assert [(status, name, lsn) for _, status, name, lsn in ended if name] == [
        (TransactionStatus.REFUSED, "elsewhere", 0xABCDEF)
    ]
    everything, local = (list(over_nights(contents, origins).committed()) for origins in (ANY, LOCAL_ONLY))
    assert [row["origin"] for row in everything if row not in local] == ["elsewhere"]
