"""Hostile files are read, refused, or read except for their damage, in bounded memory and time."""

from __future__ import annotations

import bz2
import gzip
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from struct import pack

import pytest

from pgoutput_etl.compression import MAX_SIZE, decompress, read_content
from pgoutput_etl.errors import FramingError, PgoutputEtlError
from pgoutput_etl.protocol.framing import Framing
from pgoutput_etl.protocol.messages import (
    Begin,
    BeginPrepare,
    Commit,
    Insert,
    Message,
    PgoutputMessage,
    Prepare,
    Relation,
    ReplicaIdentity,
    StreamStart,
    StreamStop,
    Truncate,
    TupleData,
    Update,
)
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.scan.request import ScanResult
from pgoutput_etl.transactions.outcome import TransactionStatus
from tests.support.encoder import Row, copydata, encode, length_prefixed, recvlogical
from tests.support.mutations import CODECS, Tell, compress, mutated_files, no_hang, real_files
from tests.support.scan_parts import scan_file

# The memory of a scan beyond the file's own bytes, in Python's and Arrow's objects: `docs/guarantees.md`.
MOST_PER_BYTE = 80
MOST_BESIDE = 64_000_000


def check_scan(scanned: ScanResult) -> None:
    """Every byte is in one row, and all damage is inside the file."""
    sizes = [
        row["end"] - row["begin"] for batch in scanned.batches for row in batch.select(["begin", "end"]).to_pylist()
    ]
    assert sum(sizes) == scanned.summary.size
    end = 0
    for damage in scanned.summary.damages:
        assert damage.offset >= end
        end = damage.offset + damage.size
    assert end <= scanned.summary.size


def read_or_refused(seed: int, count: int) -> Counter[str]:
    """Reads each file with and without salvage, up to the tables."""
    found: Counter[str] = Counter()
    for path, data in mutated_files(seed, count, real_files()):
        for salvages in (False, True):
            way = "salvaged" if salvages else "strict"
            try:
                scanned = scan_file(path, 0, data, salvages=salvages)
            except PgoutputEtlError:
                found[f"{way}: refused"] += 1
                continue
            check_scan(scanned)
            found[f"{way}: {'damaged' if scanned.summary.damages else 'whole'}"] += 1
            try:
                replay = Replay(salvages=salvages)
                replay.add_file(path, data)
                replay.tables()
            except PgoutputEtlError:
                found[f"{way}: no tables"] += 1
    return found


def test_a_mutated_file_is_read_or_refused() -> None:
    with no_hang(120):
        found = read_or_refused(1, 90)
    assert found["strict: refused"] > 60
    assert found["salvaged: damaged"] > 30
    assert found["strict: damaged"] == 0


@pytest.mark.soak
def test_ten_thousand_mutated_files(tell: Tell) -> None:
    with no_hang(3000):
        found = read_or_refused(2, 10_000)
    tell("files", dict(found))


@pytest.mark.parametrize("suffix", CODECS)
def test_a_bomb_is_refused_before_it_is_in_memory(suffix: str) -> None:
    bomb = compress(bytes(100_000_000), suffix)
    assert len(bomb) < 500_000
    tracemalloc.start()
    try:
        with pytest.raises(FramingError, match=r"expands to at most 1,000,000 bytes, found [0-9,]+ bytes"):
            decompress(bomb, f"x{suffix}", 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


# A zstd frame of blocks that repeat a zero 131,072 times, in four bytes each: 10 GB
_BLOCK = (131_072 << 3 | 1 << 1).to_bytes(3, "little") + b"\0"
_BOMB = b"\x28\xb5\x2f\xfd\x00\x58" + _BLOCK * 76_294

_REFUSE_BOMB = """
import resource, sys
from pgoutput_etl.compression import ExpansionError, decompress
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decompress(sys.stdin.buffer.read(), "x.bin")
except ExpansionError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def test_a_bomb_of_10_gb_takes_memory_in_proportion_to_its_bytes() -> None:
    done = subprocess.run([sys.executable, "-c", _REFUSE_BOMB], input=_BOMB, capture_output=True, check=True)
    refusal, megabytes = done.stdout.decode().splitlines()
    assert "expands to at most 2,147,483,647 bytes, found 305,182 bytes that expand to more" in refusal
    assert int(megabytes) < 200


def test_what_expands_a_lot_within_the_limit_is_read_in_full() -> None:
    size = 80_000_000
    content = read_content(compress(bytes(size), ".zst"), "x.zst")
    assert (len(content.data), content.data.count(0), content.cut_off) == (size, size, None)
    cut_off = read_content(gzip.compress(bytes(size))[:-1000], "x.gz")
    assert cut_off.cut_off is not None
    assert 70_000_000 < len(cut_off.data) < size
    assert cut_off.data.count(0) == len(cut_off.data)


@pytest.mark.parametrize("suffix", CODECS)
def test_what_expands_to_the_limit_is_read(suffix: str) -> None:
    data = bytes(range(256)) * 4000
    assert decompress(compress(data, suffix), f"x{suffix}", len(data)) == data
    with pytest.raises(FramingError, match="expand to more"):
        decompress(compress(data, suffix), f"x{suffix}", len(data) - 1)


def test_a_bomb_of_many_members_is_refused() -> None:
    for suffix, member in ((".gz", gzip.compress(bytes(1_000_000))), (".bz2", bz2.compress(bytes(1_000_000)))):
        assert decompress(member * 3, f"x{suffix}") == bytes(3_000_000)
        with pytest.raises(FramingError, match="expand to more"):
            decompress(member * 3, f"x{suffix}", 2_500_000)


def test_no_file_expands_to_more_than_arrow_and_spark_carry() -> None:
    assert MAX_SIZE == 2**31 - 1


ROW = TupleData(b"tn", (b"line\nline", None))
MESSAGES = [encode(Begin(0x100, 0, 1)), encode(Insert(None, 16384, ROW)), encode(Commit(0x100, 0x108, 0))]
PLAIN = recvlogical(MESSAGES) * 2
LIVE = copydata([Row(i, 1, message) for i, message in enumerate(MESSAGES, 1)]) * 2
PREFIXED = length_prefixed(MESSAGES) * 2


def long_insert(size: int) -> bytes:
    return b"I\0\0\x40\0N\0\1t" + pack(">i", size)


def prefixed(*messages: PgoutputMessage) -> bytes:
    return length_prefixed(encode(message) for message in messages)


# Files of n bytes or so, made to slow down the search for the next whole message, or to fill memory.
HOSTILE: dict[str, tuple[Framing, Callable[[int], bytes]]] = {
    "names without an end": (Framing.RECVLOGICAL, lambda n: PLAIN + b"\xff" + b"O\0" * (n // 2)),
    "relations without an end": (Framing.RECVLOGICAL, lambda n: PLAIN + b"\xff" + b"R" * n),
    "values to the end": (
        Framing.RECVLOGICAL,
        lambda n: PLAIN + b"\xff" + b"".join(long_insert(n - 13 * i - 13) for i in range(n // 13)),
    ),
    "values to the middle": (Framing.RECVLOGICAL, lambda n: PLAIN + b"\xff" + long_insert(n // 2) * (n // 13)),
    "truncates": (Framing.RECVLOGICAL, lambda n: PLAIN + b"\xff" + (b"T" + pack(">iB", n // 8, 0)) * (n // 6)),
    "columns": (Framing.RECVLOGICAL, lambda n: PLAIN + b"\xff" + b"R\0\0\0\1a\0b\0d\x06\x80" * (n // 12)),
    "frames that claim half": (
        Framing.COPYDATA,
        lambda n: LIVE + b"\xff" + (b"d" + pack(">i", n // 2) + b"w" + bytes(24) + long_insert(n // 3)) * (n // 43),
    ),
    "lengths that claim half": (Framing.LENGTH_PREFIXED, lambda n: PREFIXED + (pack(">i", n // 2) + b"B") * (n // 5)),
    "damage in every frame": (Framing.LENGTH_PREFIXED, lambda n: PREFIXED + (pack(">i", 1) + b"Z") * (n // 5)),
    "damage everywhere": (Framing.RECVLOGICAL, lambda n: (PLAIN + b"\xff\xff") * (n // 140)),
    "lost beginnings": (
        Framing.LENGTH_PREFIXED,
        lambda n: (
            PREFIXED + (pack(">i", 1) + b"Z" + prefixed(Insert(None, 1, ROW), Prepare(1, 2, 3, 4, "g"))) * (n // 80)
        ),
    ),
    "steps back": (Framing.LENGTH_PREFIXED, lambda n: PREFIXED * (n // 160)),
    "beginnings": (Framing.LENGTH_PREFIXED, lambda n: prefixed(Begin(0x100, 0, 1)) * (n // 25)),
    "segments": (Framing.LENGTH_PREFIXED, lambda n: prefixed(StreamStart(1, True)) * (n // 10)),
    "a truncate of all": (
        Framing.LENGTH_PREFIXED,
        lambda n: prefixed(Begin(0x100, 0, 1), Truncate(None, 0, tuple(range(n // 4))), Commit(0x100, 0x108, 0)),
    ),
    "wide and unchanged": (
        Framing.LENGTH_PREFIXED,
        lambda n: (
            prefixed(Begin(0x100, 0, 1))
            + prefixed(Update(None, 5, None, None, TupleData(b"u" * 1664, (None,) * 1664))) * (n // 1680)
        ),
    ),
    "empty rows": (
        Framing.LENGTH_PREFIXED,
        lambda n: prefixed(Begin(0x100, 0, 1)) + prefixed(Insert(None, 5, TupleData(b"", ()))) * (n // 12),
    ),
    "one value": (
        Framing.LENGTH_PREFIXED,
        lambda n: prefixed(Begin(0x100, 0, 1), Insert(None, 5, TupleData(b"t", (b"x" * n,)))),
    ),
    "relations": (
        Framing.LENGTH_PREFIXED,
        lambda n: prefixed(*(Relation(None, i, "p", f"t{i}", ReplicaIdentity.DEFAULT, ()) for i in range(n // 24))),
    ),
}


def scan_hostile(framing: Framing, data: bytes) -> None:
    """As the nightly job does, except for the head: one of our errors is fine, too."""
    try:
        check_scan(scan_file("x.bin", 0, data, framing, salvages=True))
    except PgoutputEtlError:
        return


@pytest.mark.parametrize(("framing", "make"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_file_made_to_slow_the_scan_is_read_soon(framing: Framing, make: Callable[[int], bytes]) -> None:
    with no_hang(30):
        scan_hostile(framing, make(60_000))


@pytest.mark.soak
@pytest.mark.parametrize(("framing", "make"), HOSTILE.values(), ids=HOSTILE.keys())
def test_time_grows_with_size_and_not_with_its_square(
    framing: Framing, make: Callable[[int], bytes], tell: Tell
) -> None:
    scan_hostile(framing, make(50_000))
    took = []
    for size in (1_000_000, 4_000_000):
        data = make(size)
        begin = time.perf_counter()
        scan_hostile(framing, data)
        took.append(time.perf_counter() - begin)
    tell("seconds", took)
    assert took[1] < 10 * took[0] + 1, "4 times as large"


@pytest.mark.soak
@pytest.mark.parametrize(("framing", "make"), HOSTILE.values(), ids=HOSTILE.keys())
def test_memory_is_bounded_by_size(framing: Framing, make: Callable[[int], bytes], tell: Tell) -> None:
    data = make(1_000_000)
    tracemalloc.start()
    try:
        scan_hostile(framing, data)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    tell("bytes per byte", round(most / len(data), 1))
    assert most < MOST_PER_BYTE * len(data) + MOST_BESIDE


def test_a_torn_value_of_megabytes_does_not_hide_what_follows() -> None:
    """Torn text in which every other letter could begin a message, with whole transactions after it."""
    text = b'{"Order": "Berlin, TBD", "IDs": [1, 2, 3]}, ' * 20_000
    torn = encode(Insert(None, 16384, TupleData(b"tn", (text, None))))[:-5]
    with no_hang(60):
        scanned = scan_file("x.bin", 0, PLAIN + torn + PLAIN * 3, Framing.RECVLOGICAL, salvages=True)
    assert [(damage.offset, damage.size) for damage in scanned.summary.damages] == [(len(PLAIN), len(torn))]
    assert scanned.summary.messages == {"B": 8, "I": 8, "C": 8}


@pytest.mark.parametrize("framing", [Framing.RECVLOGICAL, Framing.COPYDATA, Framing.LENGTH_PREFIXED])
def test_a_message_torn_before_a_connection_that_begins_with_a_logical_message(framing: Framing) -> None:
    """Found by killed receivers: the torn row claimed all of the Message and the first bytes of Begin, so that the
    search found Begin first, and the gap had more than a torn message."""
    row = encode(Insert(None, 16384, TupleData(b"tnt", (b"2", None, b"a value of some length"))))
    again = [encode(Message(None, False, 0x14EEB70, "m", b"content")), *MESSAGES]
    for size in range(1, len(_in_framing(framing, [row]))):
        torn = _in_framing(framing, [row])[:size]
        data = _in_framing(framing, MESSAGES[:-1]) + torn + _in_framing(framing, again)
        scanned = scan_file("x.bin", 0, data, framing, salvages=True)
        begin = len(data) - len(_in_framing(framing, again)) - size
        assert [(d.offset, d.size, d.cut_short) for d in scanned.summary.damages] == [(begin, size, True)], size
        assert scanned.summary.messages["M"] == 1


def _in_framing(framing: Framing, messages: Sequence[bytes]) -> bytes:
    if framing is Framing.COPYDATA:
        return copydata([Row(0x100, 7, message) for message in messages])
    return {Framing.RECVLOGICAL: recvlogical, Framing.LENGTH_PREFIXED: length_prefixed}[framing](messages)


def test_a_prepared_transaction_whose_end_is_lost_before_a_segment_whose_beginning_is() -> None:
    """Found by the mutated files: its rows were neither open nor ended, and so had no commit to be compared by."""
    gid = ("g", 0x300, 0x308)
    before = [*MESSAGES, encode(BeginPrepare(gid[1], gid[2], 0, 3, gid[0])), encode(Insert(None, 16384, ROW))]
    segment = [encode(Insert(7, 16384, ROW))] * 5
    for behind in (segment, [*segment, encode(StreamStop()), *MESSAGES]):
        replay = Replay(salvages=True)
        replay.add_file("x.bin", length_prefixed([*before, b"\xff" * 60, *behind]))
        fates = {outcome.gid: outcome.status for outcome in replay.assembly.open_outcomes()}
        assert fates == {"g": TransactionStatus.OPEN}
        assert {row["unit"] for row in replay.committed()} == {1}


def _ends_like_a_message(time: int, xid: int) -> list[tuple[str, list[bytes]]]:
    """Transactions whose Begin or Commit has the bytes M and 0 at the end of an LSN, and their second messages."""
    lsn = 0x5656_4D00
    begin, row = encode(Begin(lsn, time, xid)), encode(Insert(None, 16384, ROW))
    commit = encode(Commit(lsn, lsn + 48, time))
    other = lsn - 0x4D00 + 0x4CE0
    late = [encode(Begin(other, time, xid)), row, encode(Commit(other, lsn, time))]
    return [("Begin", [begin, b"?" + row[1:], row, commit]), ("Commit", [begin, row, commit]), ("end", late)]


@pytest.mark.parametrize("framing", [Framing.RECVLOGICAL, Framing.COPYDATA, Framing.LENGTH_PREFIXED])
@pytest.mark.parametrize("xid", [741, 0x6D_6E_6F_00, 0x6D_00_00_00])
def test_an_lsn_that_ends_like_a_logical_message_is_no_torn_connection(framing: Framing, xid: int) -> None:
    """The message is whole: only the next one is unreadable, wherever its file ends."""
    time = 845_000_000_000_000
    for name, messages in _ends_like_a_message(time, xid):
        bad = 1 if name == "Begin" else len(messages)
        if name != "Begin":
            messages.append(b"?" + encode(Begin(0x5656_5000, time, 742))[1:])
        for behind in ([], MESSAGES, MESSAGES * 3):
            data = _in_framing(framing, [*messages, *behind])
            begin = len(_in_framing(framing, messages[:bad]))
            end = len(_in_framing(framing, messages[: bad + 1]))
            scanned = scan_file("x.bin", 0, data, framing, salvages=True)
            found = [(damage.offset, damage.size, damage.cut_short) for damage in scanned.summary.damages]
            assert found == [(begin, end - begin, False)], (name, len(behind))
