"""The fast path and the readable scanner give the same rows, summary and errors for any bytes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
import pytest

from pgoutput_etl import jit
from pgoutput_etl.compression import decompress
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.protocol.framing import Framing, detect
from pgoutput_etl.protocol.messages import (
    Begin,
    Commit,
    Insert,
    Message,
    Origin,
    PgoutputMessage,
    StreamCommit,
    StreamStart,
    StreamStop,
    TupleData,
    Update,
)
from pgoutput_etl.scan.fast import rows as bulk
from pgoutput_etl.scan.fast.handoff import FastPath
from pgoutput_etl.scan.fast.rows import FastRows
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.scan.request import ScanRequest
from pgoutput_etl.scan.scan_file import scan_either_way
from tests.support import encoder
from tests.support.captures import DATA, files_of
from tests.support.model.history import random_history, random_options
from tests.support.mutations import SLOTS, Tell
from tests.support.scan_parts import FRAMINGS, landed, messages_of, parts
from tests.support.small_archives import (
    Messages,
    insert,
    segment,
    stream_abort,
    stream_commit,
    table,
    transaction,
    update,
)

pytestmark = pytest.mark.skipif(not jit.AVAILABLE, reason=f"no kernels: {jit.WHY_NOT}")


@dataclass(slots=True)
class Both:
    """Scans both ways. taken: the number of messages that the fast path read."""

    monkeypatch: pytest.MonkeyPatch
    taken: int = 0

    def check(self, part: ScanRequest) -> str:
        """The result, which has to be the same both ways."""
        with self._counting():
            at_once = outcome(part)
        with self.monkeypatch.context() as patch:
            patch.setattr(jit, "AVAILABLE", False, raising=False)
            one_by_one = outcome(part)
        assert at_once[0] == one_by_one[0]
        ours, theirs = at_once[1], one_by_one[1]
        if isinstance(ours, pa.Table) and isinstance(theirs, pa.Table):
            ours.validate(full=True)
            assert [name for name in MESSAGE_SCHEMA.names if ours.column(name) != theirs.column(name)] == []
        else:
            assert ours == theirs
        return at_once[0] if isinstance(at_once[1], str) else "scanned"

    @contextmanager
    def _counting(self) -> Iterator[None]:
        advance = FastPath._advance

        def counted(path: FastPath, rows: FastRows) -> None:
            self.taken += rows.messages
            advance(path, rows)

        with self.monkeypatch.context() as patch:
            patch.setattr(FastPath, "_advance", counted)
            yield


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch) -> Both:
    return Both(monkeypatch)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepts any number of messages."""
    monkeypatch.setattr(bulk, "_FEWEST_MESSAGES", 2)
    monkeypatch.setattr(bulk, "_FIRST_LIMIT", 5)
    monkeypatch.setattr(bulk, "_GROWTH", 3)


def outcome(part: ScanRequest) -> tuple[str, pa.Table | str]:
    try:
        scanned = scan_either_way(part)
    except ArchiveError as error:
        return f"{type(error).__name__} {getattr(error, 'short', None)}", str(error)
    summary = scanned.summary.to_json().decode()
    return f"{summary} {scanned.left}", pa.Table.from_batches(scanned.batches).combine_chunks()


@pytest.mark.parametrize("slot", [pytest.param(s, marks=() if s in SLOTS[2:] else pytest.mark.soak) for s in SLOTS])
def test_a_capture_is_the_same_both_ways(both: Both, slot: str) -> None:
    chance = random.Random(slot)
    framings = chance.sample(FRAMINGS, 2)
    for path in files_of(DATA / slot):
        data = decompress(path.read_bytes(), path.name)
        both.check(ScanRequest(data, 3, detect(data), False))
    for framing in framings:
        assert both.check(ScanRequest(landed(messages_of(slot), framing, chance), 3, framing, False)) == "scanned"
    assert both.taken > 0.9 * len(messages_of(slot)) * len(framings)


def spoilt_both_ways(both: Both, seed: int, count: int, most: int) -> Counter[str]:
    found: Counter[str] = Counter()
    for slot in SLOTS:
        for part in parts(slot, random.Random(f"{slot} {seed}"), count, most):
            found[both.check(part)] += 1
    return found


@pytest.mark.usefixtures("eager")
def test_what_is_cut_spoilt_or_in_no_order_is_the_same_both_ways(both: Both) -> None:
    found = spoilt_both_ways(both, 1, 40, 100)
    assert found["scanned"] > 100
    assert found["SequenceError None"] > 10
    assert found["FramingError False"] > 10
    assert both.taken > 3_000


@pytest.mark.soak
def test_much_that_is_cut_spoilt_or_in_no_order_is_the_same_both_ways(both: Both, tell: Tell) -> None:
    tell("parts", dict(spoilt_both_ways(both, 2, 400, 5000)))
    tell("messages at once", both.taken)


@pytest.mark.usefixtures("eager")
def test_what_is_sent_again_is_the_same_both_ways(both: Both) -> None:
    for seed in range(40):
        chance = random.Random(seed)
        messages = random_history(chance, replace(random_options(chance), connections=3)).messages
        framing = FRAMINGS[seed % len(FRAMINGS)]
        begin = chance.randrange(len(messages) or 1)
        data = landed([encoder.encode(message) for message in messages[begin:]], framing, chance)
        both.check(ScanRequest(data, 3, framing, False))
    assert both.taken > 1_000


LATE, EARLY = 252_455_616_000_000_000, -63_082_281_600_000_001
MANY = [insert(str(n), "é" * (n % 3)) for n in range(20)]
PLAIN: Messages = [
    *transaction(3, 10, table(), *MANY),
    *segment(5, table(), *MANY, first=True),
    *stream_commit(5, 20),
    *segment(6, *MANY, first=True),
    *stream_abort(6),
    Message(None, False, 25, "heartbeat", b""),
    Begin(30, 0, 7),
    Origin(1, "elsewhere"),
    *transaction(7, 30, *MANY, update("1", None, old=("0", "x")))[1:],
]
BREAKS: dict[str, Messages] = {
    "nothing": [],
    "a step back": transaction(8, 15, *MANY),
    "the same again": transaction(7, 30, *MANY),
    "a transaction that is begun anew": [*transaction(9, 40, *MANY)[:-1], *transaction(9, 40, *MANY)],
    "a transaction that a stream cuts off": [
        *transaction(9, 40, *MANY)[:-1],
        *segment(10, *MANY),
        *stream_commit(10, 50),
    ],
    "a segment that a transaction cuts off": [*segment(10, *MANY, first=True)[:-1], *transaction(11, 60, *MANY)],
    "a commit of another transaction": [Begin(40, 0, 9), *MANY, Commit(41, 49, 0)],
    "a time too late": [Begin(40, LATE, 9), *MANY, Commit(40, 49, 0)],
    "a time too early": [Begin(40, 0, 9), *MANY, Commit(40, 49, EARLY)],
    "a stream's time too late": [*segment(9, *MANY), StreamCommit(9, 40, 48, LATE)],
    "a commit LSN past a BIGINT": [Begin(1 << 63, 0, 9), *MANY],
    "a stream's commit LSN past a BIGINT": [*segment(9, *MANY), StreamCommit(9, 1 << 63, 0, 0)],
    "rows between transactions": [*MANY],
    "a Message between transactions": [Message(None, True, 1, "news", b"")],
    "the last time and LSN there are": [Begin((1 << 63) - 1, LATE - 1, 9), *MANY, Commit((1 << 63) - 1, 0, LATE - 1)],
}


@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda framing: framing.value)
@pytest.mark.parametrize("name", BREAKS)
def test_each_way_to_leave_the_plain_way(both: Both, name: str, framing: Framing) -> None:
    messages = [encoder.encode(m) for m in [*PLAIN, *BREAKS[name], *transaction(12, 70, *MANY)]]
    data = landed(messages, framing, random.Random(1))
    for salvages in (False, True):
        both.check(ScanRequest(data, 3, framing, salvages))
    assert both.taken > 50


def emitting(chance: random.Random, xid: int, in_stream: bool) -> Message:
    transactional = in_stream or chance.random() < 0.6
    subxid = chance.choice([xid, xid + 1]) if in_stream else None
    return Message(
        subxid, transactional, chance.randrange(1, 2**34), chance.choice(["", "outbox"]), b"\0" * chance.randrange(9)
    )


def with_messages_and_origins(chance: random.Random, count: int) -> list[PgoutputMessage]:
    """Many transactions, most of them ordinary, with Messages and Origins."""
    found: list[PgoutputMessage] = [table()]
    for number in range(count):
        xid, lsn = 700 + 2 * number, 1000 * (number + 1)
        origins = [Origin(chance.choice([0, 77, 2**64 - 1]), chance.choice(["a", "b"]))] * chance.choice([0, 1, 1, 2])
        changes = [emitting(chance, xid, False) if chance.random() < 0.4 else insert("1", "a") for _ in range(4)]
        match chance.randrange(8):
            case 0:
                streamed = [emitting(chance, xid, True), *segment(xid, insert("1", "a"))[1:-1]]
                found += [StreamStart(xid, True), *origins, *streamed, StreamStop(), *stream_commit(xid, lsn)]
            case 1:  # cut off
                found += [Begin(lsn, 0, xid), *origins, *changes]
                found += [Begin(lsn, 0, xid), *origins, *changes, Commit(lsn, lsn, 0)]
            case 2:
                found += [Message(None, False, lsn, "of none", b"") for _ in range(3)]
            case _:
                found += [Begin(lsn, 0, xid), *origins, *changes, Commit(lsn, lsn, 0)]
    return found


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("framing", FRAMINGS)
def test_messages_and_origins_are_the_same_both_ways(both: Both, framing: Framing) -> None:
    done: Counter[str] = Counter()
    for seed in range(25):
        chance = random.Random(seed)
        messages = [encoder.encode(message) for message in with_messages_and_origins(chance, 30)]
        first = chance.choice([0, chance.randrange(len(messages))])
        done[both.check(ScanRequest(landed(messages[first:], framing, chance), 0, framing, chance.random() < 0.5))] += 1
    assert done["scanned"] > 15
    assert both.taken > 500


def test_messages_and_origins_are_no_reason_to_read_one_by_one(both: Both) -> None:
    messages: list[PgoutputMessage] = [table()]
    for lsn in range(1000, 1_001_000, 1000):
        named, emitted = Origin(lsn, f"o{lsn % 7}"), Message(None, True, lsn, "outbox", b"x")
        messages += [Begin(lsn, 0, lsn), named, insert("1", "a"), emitted, Commit(lsn, lsn, 0)]
    content = landed([encoder.encode(m) for m in messages], Framing.COPYDATA, random.Random(5))
    assert both.check(ScanRequest(content, 0, Framing.COPYDATA, True)) == "scanned"
    assert both.taken > 4_900


def test_a_frame_s_lsn_past_a_bigint_is_refused_in_the_same_words(both: Both) -> None:
    messages = [encoder.encode(message) for message in PLAIN]
    rows = [encoder.Row((1 << 63) - 30 + i, 1, message) for i, message in enumerate(messages)]
    assert both.check(ScanRequest(encoder.copydata(rows), 3, Framing.COPYDATA, False)) == "SequenceError None"
    rows = [replace(row, lsn=0) for row in rows]
    assert both.check(ScanRequest(encoder.copydata(rows), 3, Framing.COPYDATA, False)) == "scanned"


def test_more_than_fits_at_once(both: Both) -> None:
    """Relations, messages, bytes, unchanged columns."""
    wide = Update(None, 7, None, None, TupleData(b"tu" * 800, (b"x", None) * 800))
    for changes in (
        [insert("1", "a", oid=16384 + n % 1200) for n in range(3000)],
        [insert(str(n), None) for n in range(30_000)],
        [Insert(None, 7, TupleData(b"tb", (b"%d" % n, bytes([n]) * 700_000))) for n in range(20)],
        [wide] * 100,
    ):
        messages = [encoder.encode(message) for message in transaction(3, 10, table(), *changes)]
        before = both.taken
        data = encoder.length_prefixed(messages)
        assert both.check(ScanRequest(data, 3, Framing.LENGTH_PREFIXED, False)) == "scanned"
        assert both.taken - before > 0.9 * len(messages) - 5


@pytest.mark.parametrize("framing", FRAMINGS, ids=lambda framing: framing.value)
def test_a_file_of_one_message_over_and_over(both: Both, framing: Framing) -> None:
    """By which it is not known again."""
    message: PgoutputMessage = insert("1", "a")
    both.check(ScanRequest(landed([encoder.encode(message)] * 50, framing, random.Random(1)), 3, framing, False))


def test_without_kernels_all_is_read_one_by_one(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoder.length_prefixed(map(encoder.encode, PLAIN))
    monkeypatch.setattr(jit, "AVAILABLE", False, raising=False)
    both.check(ScanRequest(data, 3, Framing.LENGTH_PREFIXED, False))
    assert both.taken == 0
