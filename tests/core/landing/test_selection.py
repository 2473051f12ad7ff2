"""Realistic landed files, run after run: grown, renamed, compressed, landed again, cut off, empty."""

from __future__ import annotations

import gzip
import hashlib
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache

import pytest

from pgoutput_etl.compression import decompress
from pgoutput_etl.errors import ArchiveError, FramingError, RunError
from pgoutput_etl.landing.file_index import FileIndex, Listing
from pgoutput_etl.landing.fingerprint import FilePart, FileStatus
from pgoutput_etl.landing.selection import LEFT_UNREAD, FileSelection
from pgoutput_etl.protocol.framing import Framing, detect, frames
from pgoutput_etl.protocol.messages import PgoutputMessage
from tests.support import encoder
from tests.support.captures import DATA
from tests.support.landing_folder import MOST_BYTES, LandingFolder, every_known_file
from tests.support.small_archives import (
    Messages,
    Rows,
    commit_prepared,
    in_subtransaction,
    insert,
    prepared,
    segment,
    stream_abort,
    stream_commit,
    table,
    transaction,
    update,
)

FRAMINGS: dict[str, Callable[[list[encoder.Row]], bytes]] = {
    "copydata": lambda rows: encoder.copydata(rows, keepalives=range(0, len(rows) + 1, 3)),
    "recvlogical": lambda rows: encoder.recvlogical(row.data for row in rows),
    "length_prefixed": lambda rows: encoder.length_prefixed(row.data for row in rows),
    "pgcopy": encoder.pgcopy,
}


def landed(messages: Iterable[PgoutputMessage | bytes], framing: str = "copydata") -> bytes:
    encoded = [m if isinstance(m, bytes) else encoder.encode(m) for m in messages]
    return FRAMINGS[framing]([encoder.Row(0x1000000 + i, 0, m) for i, m in enumerate(encoded)])


def one(number: int, *, first: bool = False) -> Messages:
    described = [table()] if first else []
    return transaction(number, number * 100, *described, insert(str(number), "v"))


def rows_to(number: int) -> Rows:
    return sorted((str(n), "v") for n in range(1, number + 1))


def paths(found: FileSelection, status: FileStatus) -> list[str]:
    return sorted(part.path for part in found.with_status(status).values())


def read(found: FileSelection) -> list[str]:
    return [part.path for _, part in sorted(found.to_read.items())]


ONE, TWO, THREE, FOUR = one(1, first=True), one(2), one(3), one(4)


def test_a_part_is_known_by_all_of_its_file_up_to_its_end() -> None:
    folder = LandingFolder()
    whole = landed([*ONE, *TWO])
    for size in (len(landed(ONE)) + 5, len(whole)):
        folder.put("a.bin", whole[:size])
        folder.run()
    assert [part.consumed for part in folder.known.values()] == [len(landed(ONE)), len(whole)]
    for part in folder.known.values():
        assert part.prefix_hash == hashlib.sha256(whole[: part.consumed]).hexdigest()


def test_a_file_that_grows_is_read_on_from_where_it_ended() -> None:
    folder = LandingFolder()
    whole = landed([*ONE, *TWO, *THREE])
    for size in (len(landed([*ONE])), len(landed([*ONE, *TWO])) + 7, len(whole)):
        folder.put("a.bin", whole[:size])
        folder.run()
    assert folder.rows() == rows_to(3)
    first, second, third = folder.known.values()
    assert (first.consumed, second.consumed, third.consumed) == (second.offset, third.offset, len(whole))
    assert (first.unfinished, second.unfinished, third.unfinished) == (False, True, False)
    assert folder.run().parts == {}


@pytest.mark.parametrize(
    "framing",
    [pytest.param(name, marks=[pytest.mark.soak] * (name in ("copydata", "pgcopy"))) for name in sorted(FRAMINGS)],
)
def test_a_small_file_may_grow_byte_by_byte(framing: str) -> None:
    messages = [
        *ONE,
        *segment(5, insert("3", "streamed"), in_subtransaction(6, insert("9", "dropped")), first=True),
        *TWO,
        *stream_abort(5, 6),
        *stream_commit(5, 300),
    ]
    whole = landed(messages, framing)
    folder = LandingFolder()
    for size in range(len(whole) + 1):
        folder.put("a.bin", whole[:size])
        folder.run()
    assert folder.rows() == [("1", "v"), ("2", "v"), ("3", "streamed")]
    assert max(part.consumed for part in folder.known.values()) == len(whole)


HISTORY: Messages = [
    *ONE,
    *segment(5, table(), insert("3", "c"), in_subtransaction(6, insert("4", "dropped")), first=True),
    *transaction(8, 200, insert("5", "x" * 300), update("1", "B")),
    *stream_abort(5, 6),
    *segment(5, insert("6", "f")),
    *prepared(9, insert("7", "g")),
    *stream_commit(5, 300),
    *commit_prepared(9, 400),
]
OUTCOME = [("1", "B"), ("3", "c"), ("5", "x" * 300), ("6", "f"), ("7", "g")]


def grown_and_renamed(
    messages: Sequence[PgoutputMessage | bytes],
    framing: str,
    seed: int,
    folder: LandingFolder | None = None,
    often: float = 0.3,
) -> LandingFolder:
    """A receiver is rotated while it writes, with runs of the job at any moment."""
    chance = random.Random(seed)
    folder, now, rotated, compressing = folder or LandingFolder(), b"", 0, ""
    done, parts = 0, []
    while done < len(messages):
        size = chance.choice((1, 2, 5, 20, len(messages)))
        parts.append(landed(messages[done : done + size], framing))
        done += size
    for i, part in enumerate(parts):
        position = 0
        while position < len(part):
            step = chance.choice((1, 10, 100, len(part)))
            now, position = part[: position + step], position + step
            folder.put("current.bin", now)
            if chance.random() < often:
                folder.run()
        if compressing:
            folder.put(f"{compressing}.gz", gzip.compress(folder.remove(compressing)))
        compressing = ""
        if i + 1 < len(parts):
            rotated += 1
            folder.rename("current.bin", f"2026-{rotated}.bin")
            if chance.random() < 0.5:
                compressing = f"2026-{rotated}.bin"
            if chance.random() < 0.3:
                run_as_told(folder, f"2026-{rotated}.bin")
    folder.run()
    return folder


def run_as_told(folder: LandingFolder, renamed: str) -> None:
    """A run between a rename and the first byte under the old name; one message alone does not show that."""
    try:
        folder.run()
    except RunError:
        folder.rename(renamed, "current.bin")
        folder.run()
        folder.rename("current.bin", renamed)


@pytest.mark.parametrize("seeds", [range(15), pytest.param(range(15, 1000), marks=pytest.mark.soak)], ids=str)
@pytest.mark.parametrize("framing", sorted(FRAMINGS))
def test_rotation_growth_and_compression_at_any_moment(framing: str, seeds: range) -> None:
    for seed in seeds:
        folder = grown_and_renamed(HISTORY, framing, seed)
        assert folder.rows() == OUTCOME, seed
        assert folder.run().parts == {}, seed


@cache
def real_messages(slot: str) -> list[bytes]:
    found = []
    for path in sorted((DATA / "random16" / slot).glob("*.gz")):
        data = decompress(path.read_bytes(), str(path))
        found += [data[frame.start : frame.end] for frame in frames(data, detect(data))]
    return found


def grown(content: bytes, sizes: Iterable[int]) -> LandingFolder:
    folder = LandingFolder()
    for size in sizes:
        folder.put("a.bin", content[:size])
        folder.run()
    return folder


@pytest.mark.parametrize("framing", sorted(FRAMINGS))
def test_a_real_archive_as_one_file_that_grows(framing: str) -> None:
    whole = landed(real_messages("v3"), framing)
    expected = grown(whole, [len(whole)]).tables()
    cuts = random.Random(framing).sample(range(len(whole)), 2)
    assert grown(whole, [*sorted(cuts), len(whole)]).tables() == expected


@pytest.mark.soak
@pytest.mark.parametrize("slot", ["v1", "v2", "v3", "v4b"])
@pytest.mark.parametrize("framing", sorted(FRAMINGS))
def test_real_archives_grow_and_rotate(framing: str, slot: str) -> None:
    messages = real_messages(slot)
    expected = grown_tables(messages, framing)
    for seed in range(5):
        assert grown_and_renamed(messages, framing, seed).tables() == expected, seed


def grown_tables(messages: list[bytes], framing: str) -> dict[str, Rows]:
    whole = landed(messages, framing)
    return grown(whole, [len(whole)]).tables()


# Names


def test_renamed_and_grown_and_a_new_file_under_the_old_name() -> None:
    folder = LandingFolder()
    folder.put("current.bin", landed(ONE))
    folder.run()
    folder.rename("current.bin", "2026-01-01.bin")
    folder.put("2026-01-01.bin", landed([*ONE, *TWO]))
    folder.put("current.bin", landed(THREE))
    assert read(folder.run()) == ["2026-01-01.bin", "current.bin"]
    folder.rename("current.bin", "2026-01-02.bin")
    folder.put("2026-01-03.bin", landed(FOUR))
    folder.put("current.bin", landed(one(5)))
    found = folder.run()
    assert read(found) == ["2026-01-03.bin", "current.bin"]
    assert paths(found, FileStatus.MOVED) == ["2026-01-02.bin"]
    assert folder.rows() == rows_to(5)


def test_numbers_that_grow_with_age() -> None:
    """current.bin.1 is older than current.bin and sorts after it, which is recognized if there was one rotation."""
    folder = LandingFolder()
    for night in range(1, 5):
        for old in range(night - 1, 0, -1):
            name = f"current.bin.{old - 1}" if old > 1 else "current.bin"
            folder.rename(name, f"current.bin.{old}")
        if night > 1:
            folder.put("current.bin.1", landed([*one(2 * night - 3, first=night == 2), *one(2 * night - 2)]))
        folder.put("current.bin", landed(one(2 * night - 1, first=night == 1)))
        folder.run()
    assert folder.rows() == rows_to(7)
    folder.rename("current.bin", "current.bin.0")
    folder.put("current.bin", landed(one(9)))
    folder.put("current.bin.", landed(one(8)))
    with pytest.raises(RunError, match=r"current\.bin\. is new, but sorts before current\.bin"):
        folder.run()


def test_a_new_file_that_belongs_before_one_read_is_refused_and_a_copy_there_is_not() -> None:
    folder = LandingFolder()
    folder.put("5.bin", landed([*ONE, *TWO]))
    folder.run()
    folder.put("4.bin", landed([*ONE, *TWO]))
    folder.put("3.bin", b"")
    assert paths(folder.run(), FileStatus.DUPLICATE) == ["4.bin"]
    folder.put("1.bin", landed(THREE))
    with pytest.raises(RunError, match=r"1\.bin is new, but sorts before 5\.bin"):
        folder.run()
    assert folder.rows() == rows_to(2)


def test_a_file_that_grows_when_another_was_read_after_it_is_refused() -> None:
    folder = LandingFolder()
    folder.put("1.bin", landed(ONE))
    folder.put("2.bin", landed(TWO))
    folder.run()
    folder.put("1.bin", landed([*ONE, *THREE]))
    with pytest.raises(RunError, match=r"1\.bin has grown since it was read, but 2\.bin was read after it"):
        folder.run()


def test_read_files_may_be_removed() -> None:
    folder = LandingFolder()
    folder.put("1.bin", landed(ONE))
    folder.run()
    folder.remove("1.bin")
    folder.put("2.bin", landed(TWO))
    folder.run()
    assert folder.rows() == rows_to(2)


# Sent again


@pytest.mark.parametrize("framing", sorted(FRAMINGS))
@pytest.mark.parametrize("seeds", [range(6), pytest.param(range(6, 400), marks=pytest.mark.soak)], ids=str)
def test_a_receiver_that_is_started_again_with_a_new_file_each_time(framing: str, seeds: range) -> None:
    """The server starts over each time with the same bytes that it sent before; runs of the job at any moment."""
    for seed in seeds:
        assert sessions(HISTORY, framing, seed).rows() == OUTCOME, seed


def sessions(messages: Messages, framing: str, seed: int) -> LandingFolder:
    """The last one is not interrupted."""
    chance = random.Random(seed)
    folder = LandingFolder()
    for session in range(6):
        sent = chance.randrange(1, len(messages)) if session < 5 else len(messages)
        folder.put(f"{session}.bin", landed(messages[:sent], framing))
        if chance.random() < 0.5:
            folder.run()
    folder.run()
    return folder


def test_a_session_that_is_sent_the_same_bytes_and_grows_past_those_of_the_one_before() -> None:
    """It is the same file, not another one that took its name."""
    for framing in ("recvlogical", "length_prefixed"):
        folder = LandingFolder()
        folder.put("1.bin", landed([*ONE, *TWO], framing))
        folder.put("2.bin", landed(ONE, framing))
        folder.run()
        folder.put("2.bin", landed([*ONE, *TWO, *THREE], framing))
        assert read(folder.run()) == ["2.bin"]
        assert folder.rows() == rows_to(3)


# Landed again


def test_a_file_that_is_being_compressed_has_grown_since_it_was_read() -> None:
    """Both it and its compressed copy are there, and the new part has a single message, which doesn't identify it."""
    folder = LandingFolder()
    folder.put("1.bin", landed(ONE[:-1]))
    folder.run()
    folder.put("1.bin", landed(ONE))
    folder.put("1.bin.gz", gzip.compress(landed(ONE)))
    found = folder.run()
    assert (paths(found, FileStatus.DUPLICATE), read(found)) == (["1.bin.gz"], ["1.bin"])
    folder.remove("1.bin")
    assert read(folder.run()) == []


def test_the_next_file_begins_with_the_row_read_last_of_a_file_that_was_compressed() -> None:
    """A row alone doesn't tell which file has it; the compressed file's name does."""
    folder = LandingFolder()
    bag = [table("v", key=())]
    folder.put("1.bin", landed([ONE[0], *bag], "recvlogical"))
    folder.put("2.bin", landed([insert("a")], "recvlogical"))
    folder.run()
    folder.remove("2.bin")
    folder.put("2.bin.gz", gzip.compress(landed([insert("a"), insert("b")], "recvlogical")))
    folder.put("3.bin", landed([insert("a"), ONE[-1]], "recvlogical"))
    assert read(folder.run()) == ["2.bin.gz", "3.bin"]
    assert folder.rows() == [("a",), ("a",), ("b",)]


def test_landed_again_under_another_name_or_compressed() -> None:
    folder = LandingFolder()
    content = landed([*ONE, *TWO])
    folder.put("1.bin", content)
    folder.run()
    folder.put("2.bin", content)
    folder.put("3.bin.gz", gzip.compress(content))
    found = folder.run()
    assert (paths(found, FileStatus.DUPLICATE), read(found)) == (["2.bin", "3.bin.gz"], [])
    assert folder.run().parts == {}, "known from now on"
    folder.put("1.bin", content)
    assert folder.run().parts == {}, "written again, as it was"
    folder.put("2.bin", content)
    folder.put("0.bin", landed(ONE))
    with pytest.raises(RunError, match=r"0\.bin is new"):
        folder.run()
    folder.remove("0.bin")
    folder.put("4.bin", landed(THREE))
    folder.put("5.bin", landed(THREE))
    found = folder.run()
    assert (read(found), paths(found, FileStatus.DUPLICATE)) == (["4.bin"], ["2.bin", "5.bin"])
    assert paths(found, FileStatus.SAME) == ["1.bin"]
    assert folder.rows() == rows_to(3)


def test_the_same_few_bytes_in_two_files_are_no_copy_without_a_commits_lsn() -> None:
    folder = LandingFolder()
    bag = [table("v", key=())]
    begin, described, row, end = landed([ONE[0]]), landed(bag), landed([insert("a")]), landed([ONE[-1]])
    for number, content in enumerate([begin, described, row, row, row, end]):
        folder.put(f"{number}.bin", content)
    folder.run()
    assert folder.rows() == [("a",)] * 3


def test_a_file_of_rows_alone_is_known_again_under_its_own_name_only() -> None:
    folder = LandingFolder()
    bag = [table("v", key=())]
    folder.put("1.bin", landed([ONE[0], *bag], "recvlogical"))
    folder.put("2.bin", landed([insert("a")], "recvlogical"))
    folder.run()
    folder.put("2.bin", landed([insert("a"), insert("b")], "recvlogical"))
    folder.run()
    folder.remove("2.bin")
    more = landed([insert("a"), insert("b"), ONE[-1]], "recvlogical")
    folder.put("3.bin", more)
    with pytest.raises(RunError, match=r"3\.bin begins with the content of 2\.bin.* rename it to 2\.bin for this run"):
        folder.run()
    folder.rename("3.bin", "2.bin")
    folder.run()
    assert folder.rows() == [("a",), ("b",)]


def test_a_renamed_file_and_the_next_of_its_name_begin_with_the_same_row() -> None:
    """Either file may have the bytes that were read; in the order of names, the numbered one has them."""
    folder = LandingFolder()
    bag = [table("v", key=())]
    folder.put("w-0001.bin", landed([ONE[0], *bag], "recvlogical"))
    folder.put("w-current.bin", landed([insert("a")], "recvlogical"))
    folder.run()
    folder.put("w-0002.bin.gz", gzip.compress(landed([insert("a"), insert("b")], "recvlogical")))
    folder.put("w-current.bin", landed([insert("a")], "recvlogical"))
    found = folder.run()
    assert read(found) == ["w-0002.bin.gz", "w-current.bin"]
    folder.put("w-current.bin", landed([insert("a"), insert("c"), ONE[-1]], "recvlogical"))
    assert read(folder.run()) == ["w-current.bin"]
    assert folder.rows() == [("a",), ("a",), ("b",), ("c",)]


def test_a_renamed_file_and_a_whole_file_with_the_same_row() -> None:
    """Only the first one has the bytes that were read."""
    folder = LandingFolder()
    folder.put("w-0001.bin", landed([ONE[0], table("v", key=())], "recvlogical"))
    folder.put("w-current.bin", landed([insert("a")], "recvlogical"))
    folder.run()
    folder.put("w-0002.bin", landed([insert("a"), insert("b")], "recvlogical"))
    folder.put("w-0003.bin", landed([insert("a")], "recvlogical"))
    folder.put("w-current.bin", landed([ONE[-1]], "recvlogical"))
    assert read(folder.run()) == ["w-0002.bin", "w-0003.bin", "w-current.bin"]
    assert folder.rows() == [("a",), ("a",), ("b",)]


def test_a_late_file_that_begins_with_the_row_read_last() -> None:
    folder = LandingFolder()
    folder.put("1.bin", landed([ONE[0], table("v", key=())], "recvlogical"))
    folder.put("3.bin", landed([ONE[-1], *TWO[:1]], "recvlogical"))
    folder.put("9.bin", landed([insert("a")], "recvlogical"))
    folder.run()
    folder.put("9.bin", landed([insert("a")], "recvlogical"))
    folder.put("2.bin", landed([insert("a"), insert("b")], "recvlogical"))
    with pytest.raises(RunError, match=r"2\.bin is new, but sorts before 9\.bin"):
        folder.run()


def test_other_bytes_under_the_name_of_a_file_that_was_read() -> None:
    folder = LandingFolder()
    folder.put("1.bin", landed([*ONE, *TWO]))
    folder.run()
    for other in (landed(ONE), landed([*ONE, *THREE]), b"no archive at all", b""):
        folder.put("1.bin", other)
        found = folder.run()
        [part] = found.with_status(FileStatus.REFUSED).values()
        assert part.reason is not None
        assert "1.bin was read before and has other content now" in part.reason
        assert folder.run().parts == {}, "said once"
    folder.put("1.bin", landed([*ONE, *THREE]))
    folder.put("2.bin", landed([*THREE, *FOUR]))
    folder.run()
    folder.put("1.bin", landed([*ONE, *TWO]))
    folder.run()
    folder.put("3.bin", landed(one(5)))
    folder.run()
    assert folder.rows() == rows_to(5)
    assert len(folder.known) == len(set(folder.known))


def test_refused_bytes_land_again_under_a_name_of_their_own() -> None:
    folder = LandingFolder()
    folder.put("1.bin", landed(ONE))
    folder.run()
    folder.put("1.bin", landed(TWO))
    folder.run()
    folder.clock += 1
    folder.put("1.bin", landed(TWO))
    assert folder.run().parts == {}, "the same other bytes"
    folder.rename("1.bin", "2.bin")
    assert read(folder.run()) == ["2.bin"]
    assert folder.rows() == rows_to(2)


# Tails


def test_only_the_newest_file_may_end_within_a_message() -> None:
    folder = LandingFolder()
    folder.put("1.bin", landed(ONE))
    folder.put("2.bin", landed(TWO)[:-30])
    folder.put("3.bin", b"")
    folder.run()
    assert folder.rows() == rows_to(1)
    folder.put("4.bin", landed(THREE))
    with pytest.raises(ArchiveError, match=r"2\.bin: offset \d+: expected"):
        folder.run()
    folder.remove("4.bin")
    folder.put("2.bin", landed(TWO))
    folder.run()
    folder.put("4.bin", landed(THREE))
    folder.run()
    assert folder.rows() == rows_to(3)


def test_a_copy_that_sorts_last_is_not_the_newest_file() -> None:
    folder = LandingFolder()
    folder.put("1.bin", landed(ONE))
    folder.run()
    folder.put("2.bin", landed(TWO)[:-30])
    folder.put("9.bin", landed(ONE))
    assert read(folder.run()) == ["2.bin"]
    folder.put("2.bin", landed(TWO))
    folder.run()
    assert folder.rows() == rows_to(2)


JUNK = b"\xff" + random.Random(1).randbytes(131)  # no message, no length and no frame begins with 0xFF


def quarantining(framing: Framing = Framing.AUTO) -> LandingFolder:
    return LandingFolder(salvages=True, framing=framing)


def account(folder: LandingFolder, path: str) -> dict[str, int]:
    """The budget is for all bytes of a file."""
    total: Counter[str] = Counter()
    for number, part in folder.known.items():
        if part.path == path:
            total.update(folder.accounts.get(number, {}))
    return {name: size for name, size in total.items() if size}


@pytest.mark.parametrize("framing", sorted(FRAMINGS))
def test_bytes_of_the_newest_file_that_no_message_begins_with_are_set_aside_at_once(framing: str) -> None:
    folder = quarantining(Framing(framing))
    folder.put("1.bin", landed(ONE, framing))
    folder.run()
    folder.put("2.bin", JUNK)
    folder.run()
    assert [line.partition(": ")[0] for line in folder.damages] == ["2.bin"]
    assert account(folder, "2.bin") == {"quarantined": len(JUNK)}
    assert folder.run().parts == {}
    assert folder.remarks == [], "nothing waits"


@pytest.mark.parametrize("framing", sorted(FRAMINGS))
def test_junk_behind_whole_messages_of_the_newest_file_is_set_aside_at_once(framing: str) -> None:
    content = landed(ONE, framing)
    folder = quarantining()
    folder.put("1.bin", content[:-2] + JUNK if framing == "pgcopy" else content + JUNK)
    folder.run()
    assert len(folder.damages) == 1
    assert account(folder, "1.bin")["quarantined"] >= len(JUNK)


@pytest.mark.parametrize("framing", sorted(FRAMINGS))
def test_the_first_part_of_a_message_is_left_until_a_later_file_is_there(framing: str) -> None:
    """Even if the file has nothing else, so nothing of it is known."""
    first = landed(TWO, framing)[: 30 if framing == "pgcopy" else 10]
    folder = quarantining()
    folder.put("1.bin", landed(ONE, framing))
    folder.run()
    folder.put("2.bin", first)
    for _ in range(3):
        folder.run()
        assert [line.partition(" are left")[0] for line in folder.remarks] == ["2.bin: the bytes after offset 0"]
    folder.put("3.bin", b"")
    folder.run()
    assert folder.damages == [], "an empty file is none"
    folder.put("4.bin", landed([*TWO, *THREE], framing))
    folder.run()
    assert [line.partition(": ")[0] for line in folder.damages] == ["2.bin"]
    assert account(folder, "2.bin") == {"quarantined": len(first)}
    assert folder.rows() == rows_to(3)


def test_two_files_that_begin_with_a_part_of_a_message() -> None:
    """The later file is the newest, although it is unreadable, too."""
    folder = quarantining()
    folder.put("1.bin", landed(ONE))
    folder.put("2.bin", landed(TWO)[:10])
    folder.run()
    folder.put("3.bin", landed(TWO)[:20])
    folder.run()
    assert account(folder, "2.bin") == {"quarantined": 10}
    assert [line.partition(":")[0] for line in folder.remarks] == ["3.bin"]
    folder.put("3.bin", landed(TWO))
    folder.run()
    assert folder.rows() == rows_to(2)


def test_a_renamed_file_takes_the_first_part_of_a_message_along() -> None:
    """Renamed in the night in which a later file lands: its torn end is not forgotten with the old name."""
    folder = quarantining()
    folder.put("current.bin", landed([*ONE, *TWO])[:-20])
    folder.run()
    folder.rename("current.bin", "2026-01.bin")
    folder.put("2026-02.bin", landed([*TWO, *THREE]))
    assert read(folder.run()) == ["2026-01.bin", "2026-02.bin"]
    assert [line.partition(": ")[0] for line in folder.damages] == ["2026-01.bin"]
    assert folder.rows() == rows_to(3)


def test_a_renamed_file_waits_under_its_new_name() -> None:
    folder = quarantining()
    folder.put("current.bin", landed([*ONE, *TWO])[:-20])
    folder.run()
    folder.rename("current.bin", "2026-01.bin")
    assert paths(folder.run(), FileStatus.MOVED) == ["2026-01.bin"]
    assert folder.remarks[0].startswith("2026-01.bin: the bytes after offset")
    folder.put("2026-01.bin", landed([*ONE, *TWO]))
    folder.run()
    assert folder.rows() == rows_to(2)


def test_a_session_that_sends_what_was_sent_and_dies_in_the_next_message() -> None:
    """Its whole messages are known, and the first part of another one follows them."""
    both, more = landed([*ONE, *TWO], "recvlogical"), landed(THREE, "recvlogical")
    for nights in ([1], [1, 2], [2]):
        folder = quarantining()
        folder.put("1.bin", both)
        if 1 in nights:
            folder.run()
        folder.put("2.bin", both + more[:10])
        if 2 in nights:
            folder.run()
            assert [line.partition(":")[0] for line in folder.remarks] == ["2.bin"]
        folder.put("3.bin", both + more)
        folder.run()
        assert account(folder, "2.bin") == {"resent": len(both), "quarantined": 10}
        assert folder.rows() == rows_to(3)


def test_a_copy_of_a_file_that_is_still_being_written_is_one() -> None:
    folder = quarantining()
    content = landed([*ONE, *TWO])[:-20]
    folder.put("1.bin", content)
    folder.run()
    folder.put("2.bin", content)
    found = folder.run()
    assert (paths(found, FileStatus.DUPLICATE), read(found)) == (["2.bin"], [])
    assert folder.remarks[0].startswith("1.bin: the bytes after offset"), "said also where nothing else is new"


def test_an_older_copy_with_an_end_of_its_own_is_set_aside() -> None:
    folder = quarantining()
    folder.put("2.bin", landed([*ONE, *TWO]))
    folder.run()
    folder.put("1.bin", landed([*ONE, *TWO]) + landed(THREE)[:10])
    assert paths(folder.run(), FileStatus.REFUSED) == ["1.bin"]
    assert "1.bin begins with content that was read before, and ends with an incomplete message" in folder.remarks[0]
    assert folder.run().parts == {}


def test_an_older_file_that_grows_by_less_than_a_message_is_refused() -> None:
    folder = quarantining()
    folder.put("1.bin", landed(ONE))
    folder.put("2.bin", landed(TWO))
    folder.run()
    folder.put("1.bin", landed(ONE) + landed(THREE)[:10])
    with pytest.raises(RunError, match=r"1\.bin has grown since it was read, but 2\.bin was read after it"):
        folder.run()


def test_an_end_that_is_gone_when_a_later_file_lands_is_said() -> None:
    folder = quarantining()
    folder.put("1.bin", landed([*ONE, *TWO])[:-20])
    folder.run()
    folder.remove("1.bin")
    folder.put("2.bin", landed([*TWO, *THREE]))
    folder.run()
    assert any(line.startswith("1.bin: the bytes after offset") for line in folder.remarks)
    assert folder.rows() == rows_to(3)


def test_on_error_fail_leaves_no_whole_messages_behind_a_torn_one() -> None:
    torn = landed(TWO)[:60]
    folder = LandingFolder()
    folder.put("1.bin", landed(ONE) + torn)
    folder.run()
    assert "left for the next run" in folder.remarks[0]
    folder.put("1.bin", landed(ONE) + torn + landed([*TWO, *THREE]))
    with pytest.raises(ArchiveError, match=r"1\.bin: offset \d+"):
        folder.run()


@pytest.mark.parametrize("framing", sorted(FRAMINGS))
def test_on_error_fail_waits_for_the_rest_of_a_row_inside_a_stream_segment(framing: str) -> None:
    """Read as if outside a segment, the bytes are not the first part of a row."""
    whole = landed(segment(5, insert("1", "v"), insert("2", "v"))[1:], framing)
    folder = LandingFolder(framing=Framing(framing))
    before = [*ONE, *segment(5, insert("0", "v"), first=True)[:-1]]
    folder.put("1.bin", landed(before, framing))
    folder.run()
    for size in range(1, len(whole) + 1):
        folder.put("2.bin", whole[:size])
        folder.run()


def test_a_message_that_claims_the_first_one_of_the_next_connection() -> None:
    """Killed after the length and the type of a Commit: the length claims exactly the Begin that follows. A run that
    continues one that died must not read the two as a Commit."""
    begun = landed(ONE, "length_prefixed")
    torn, again = landed([ONE[-1]], "length_prefixed")[:5], landed(TWO, "length_prefixed")
    assert len(torn) + len(landed([TWO[0]], "length_prefixed")) == len(landed([ONE[-1]], "length_prefixed"))
    folder = quarantining()
    folder.put("1.bin", begun)
    folder.run()
    folder.put("1.bin", begun + torn + again[:30])
    [(number, part)] = folder.run().to_read.items()
    assert part.consumed == len(begun) + len(torn) + 25
    assert folder.scans[number].messages == {"B": 1}
    assert folder.scanned_again(number).messages == {"B": 1}
    assert folder.scanned_again(number).consumed == part.consumed


def test_a_run_that_goes_on_reads_a_torn_end_before_a_file_of_which_nothing_was_read() -> None:
    folder = quarantining()
    folder.put("1.bin", landed(ONE) + landed(TWO)[:20])
    folder.put("2.bin", landed(TWO)[:20])
    found = folder.run()
    for number, part in found.to_read.items():
        if part.was_read:
            assert folder.scanned_again(number).damages == folder.scans[number].damages
    assert account(folder, "1.bin")["quarantined"] == 20


# Files that a run of an older version passed over


def passed_over(*, reason: str | None = None) -> LandingFolder:
    """The second of three files was recorded without anything read, and the third one was read nevertheless."""
    folder = quarantining(Framing.RECVLOGICAL)
    for number, messages in enumerate((ONE, TWO, THREE), start=1):
        folder.put(f"{number}.bin", landed(messages, "recvlogical"))
    content = folder.content.pop("2.bin")
    kept = folder.files.pop("2.bin")
    folder.run()
    folder.files["2.bin"], folder.content["2.bin"] = kept, content
    third = folder.known.pop(1)
    left = FilePart(
        "2.bin", kept.size, kept.modified, prefix_hash=hashlib.sha256().hexdigest(), framing="pgcopy", unfinished=True
    )
    folder.known |= {1: replace(left, reason=reason), 2: third}
    return folder


@pytest.mark.parametrize("reason", [None, "as a version says it that gives reasons"])
def test_a_file_that_was_passed_over_is_set_aside_with_the_way_to_read_it(reason: str | None) -> None:
    folder = passed_over(reason=reason)
    assert every_known_file(folder.known).left_unread == {"2.bin": 1}
    assert paths(folder.run(), FileStatus.REFUSED) == ["2.bin"]
    assert folder.remarks[0].endswith(LEFT_UNREAD)
    assert folder.run().parts == {}, "said once by a batch"
    assert every_known_file(folder.known).left_unread == {"2.bin": 1}, "which is what the backfill asks for"
    folder.put("4.bin", landed(FOUR, "recvlogical"))
    assert read(folder.run()) == ["4.bin"]
    folder.append("2.bin", landed(one(9), "recvlogical"))
    assert paths(folder.run(), FileStatus.REFUSED) == ["2.bin"], "no later run is stopped by it"


def test_a_file_that_an_older_version_left_last_is_looked_at_again_at_once() -> None:
    """That version left any bytes at the end, even those that can't become a message, and recorded no reason."""
    for content, status in ((JUNK, "quarantined"), (landed(TWO, "recvlogical"), "applied")):
        folder = quarantining(Framing.RECVLOGICAL)
        folder.put("1.bin", landed(ONE, "recvlogical"))
        folder.run()
        folder.put("2.bin", content)
        folder.known[1] = FilePart("2.bin", len(content), folder.files["2.bin"].modified, unfinished=True)
        folder.run()
        assert account(folder, "2.bin") == {status: len(content)}


# The configured framing


def test_a_framing_that_fits_no_file_stops_the_run_and_names_the_one_that_does() -> None:
    for salvages in (True, False):
        folder = LandingFolder(salvages=salvages, framing=Framing.PGCOPY)
        for number, messages in enumerate((ONE, TWO, THREE), start=1):
            folder.put(f"{number}.bin", landed(messages, "recvlogical"))
        with pytest.raises(ArchiveError, match=r"1\.bin: .*recvlogical"):
            folder.run()
        assert folder.known == {}
        folder.framing = Framing.RECVLOGICAL
        folder.run()
        assert folder.rows() == rows_to(3)


def test_of_several_framings_those_that_the_configuration_does_not_name_are_set_aside() -> None:
    folder = quarantining(Framing.RECVLOGICAL)
    folder.put("1.bin", landed(ONE, "recvlogical"))
    folder.put("2.bin", landed(TWO, "copydata"))
    folder.put("3.bin", b"")
    folder.run()
    [line] = folder.damages
    assert line.startswith("2.bin: ")
    assert line.endswith("it can be read as copydata, but source.framing has another value")
    folder.put("4.bin", landed(THREE, "length_prefixed"))
    with pytest.raises(FramingError, match=r"4\.bin: expected messages in the framing recvlogical.*length_prefixed"):
        folder.run()


def test_where_no_framing_fits_it_is_damage() -> None:
    folder = quarantining(Framing.PGCOPY)
    folder.put("1.bin", JUNK)
    folder.run()
    assert account(folder, "1.bin") == {"quarantined": len(JUNK)}


def test_a_run_that_goes_on_reads_in_the_framing_in_which_it_began() -> None:
    folder = quarantining(Framing.RECVLOGICAL)
    folder.put("1.bin", landed(ONE, "recvlogical"))
    folder.run()
    folder.framing = Framing.LENGTH_PREFIXED
    assert folder.scanned_again(0).messages == folder.scans[0].messages


@pytest.mark.parametrize("framing", sorted(FRAMINGS))
def test_a_compressed_file_that_is_still_being_written(framing: str) -> None:
    content = gzip.compress(landed([*ONE, *[m for n in range(2, 300) for m in one(n)]], framing), 1)
    folder = LandingFolder()
    for size in (0, 1, 11, len(content) // 2, len(content) - 1, len(content)):
        folder.put("1.bin.gz", content[:size])
        folder.run()
    assert len(folder.rows()) == 299
    assert len([part for part in folder.known.values() if part.was_read]) > 1


@pytest.mark.parametrize("messages", [[*ONE, *TWO], [ONE[0], table(), insert("1", "v")]])
def test_a_compressed_file_is_left_while_it_is_being_written(messages: Messages) -> None:
    folder = LandingFolder()
    content = landed(messages, "recvlogical")
    folder.put("1.bin", content)
    found = FileSelection({}, False)
    for size in (0, 1, 20, len(content)):
        folder.put("1.bin.gz", gzip.compress(content)[:size])
        found = folder.run()
        assert read(found) == ["1.bin"] * (size == 0)
        assert any("1.bin.gz: left for the next run" in remark for remark in found.remarks) == (size < len(content))
    assert paths(found, FileStatus.DUPLICATE) == ["1.bin.gz"]
    folder.put("2.bin", landed(messages, "length_prefixed"))
    folder.put("2.bin.gz", gzip.compress(folder.content["2.bin"]))
    found = folder.run()
    assert (read(found), paths(found, FileStatus.DUPLICATE)) == (["2.bin"], ["2.bin.gz"])
    folder.remove("1.bin")
    assert folder.run().parts == {}


def test_a_compressed_file_beside_another_one_is_a_file_of_its_own() -> None:
    folder = LandingFolder()
    folder.put("1", landed(ONE))
    folder.put("1.gz", gzip.compress(landed(TWO)))
    assert read(folder.run()) == ["1", "1.gz"]
    assert folder.rows() == rows_to(2)


def test_each_file_has_the_framing_and_compression_that_it_has() -> None:
    folder = LandingFolder()
    messages = [ONE, TWO, THREE, FOUR]
    for number, framing in enumerate(sorted(FRAMINGS)):
        folder.put(f"{number}.bin", landed(messages[number], framing))
    folder.put("5.gz", landed(one(5)))
    folder.put("6.bin", gzip.compress(landed(one(6))))
    found = folder.run()
    assert folder.rows() == rows_to(6)
    assert {part.framing for part in found.parts.values()} >= {framing.value for framing in list(Framing)[1:]}
    assert [remark.partition(":")[0] for remark in found.remarks] == ["5.gz", "6.bin"]


def test_what_can_not_be_read_is_named_with_what_to_do() -> None:
    folder = LandingFolder()
    for name in ("1.bin", "2.bin"):
        folder.put(name, b"LOG:  starting PostgreSQL 18.0\n")
    with pytest.raises(ArchiveError, match=r"1\.bin: offset 0: expected one of the known framings.*\n2\.bin: offset 0"):
        folder.run()


# Files in which nothing can be read

BOMB = gzip.compress(bytes(2 * MOST_BYTES))


def test_a_bomb_holds_what_follows_and_is_not_scanned_again() -> None:
    folder = LandingFolder(salvages=True)
    folder.put("2026-01-01.bin", landed(one(1, first=True)))
    folder.put("2026-01-02.bin", BOMB)
    folder.put("2026-01-03.bin", landed(one(2)))
    found = folder.run()
    assert (found.in_order[1].status, found.in_order[1].size) == ("unreadable", len(BOMB))
    [damage] = folder.replay.assembly.unreadable_ranges
    assert (damage.lsn, damage.relations) == (101, None)
    assert folder.run().parts == {}
    assert [part.path for part in FileIndex.of(folder.known).refused(Listing.of(folder.files.values()))] == [
        "2026-01-02.bin"
    ]
    folder.put("2026-01-02.bin", landed(one(3)))
    [late] = folder.run().with_status(FileStatus.REFUSED).values()
    assert (late.reason or "").endswith(LEFT_UNREAD), "backfill --from-quarantine reads it"


def test_a_bomb_stops_the_run_if_damage_does() -> None:
    folder = LandingFolder()
    folder.put("1.bin", BOMB)
    with pytest.raises(ArchiveError, match=r"1\.bin: offset 0: expected gzip data(.|\n)*no files are applied") as e:
        folder.run()
    assert e.value.next_job == ("apply", "--set", 'source.ignore=["1.bin"]')


@pytest.mark.parametrize(("name", "is_needless"), [("shop-2b.bin", True), ("shop-4.bin", False)])
def test_consecutive_numbers_prove_that_a_bomb_is_no_part_of_the_archive(name: str, is_needless: bool) -> None:
    folder = LandingFolder(salvages=True)
    for number in (1, 2, 3):
        folder.put(f"shop-{number}.bin", landed(one(number, first=number == 1)))
    folder.put(name, BOMB)
    [part] = [part for part in folder.run().parts.values() if part.path == name]
    assert (part.status, part.is_needless) == ("unreadable", is_needless)
    assert bool(folder.replay.assembly.unreadable_ranges) != is_needless
    if is_needless:
        assert folder.run().parts == {}
        assert every_known_file(folder.known).left_unread == {}
        folder.put(name, landed(one(9)))
        [late] = folder.run().with_status(FileStatus.REFUSED).values()
        assert (late.reason or "").endswith(LEFT_UNREAD), "the right content stops nobody"
        assert every_known_file(folder.known).left_unread.keys() == {name}


def test_many_unreadable_files_have_no_command_that_ignores_them_all() -> None:
    folder = LandingFolder()
    for number in range(6):
        folder.put(f"{number}.bin", b"LOG:  starting PostgreSQL 18.0\n")
    with pytest.raises(ArchiveError, match="6 new files can't be read, all for the same reason") as stopped:
        folder.run()
    assert stopped.value.next_job == ()
    assert "check its output plugin" in str(stopped.value)


@pytest.mark.parametrize("framing", Framing)
@pytest.mark.parametrize("text", [b"hello", b"remember to rotate the files\n"])
def test_a_text_file_among_read_files_is_to_be_removed_and_not_renamed(framing: Framing, text: bytes) -> None:
    folder = LandingFolder(salvages=True)
    folder.put("1.bin", landed(one(1, first=True)))
    folder.put("5.bin", landed(one(3)))
    folder.run()
    folder.framing = framing
    folder.put("3.txt", text)
    with pytest.raises(ArchiveError, match=r"3\.txt: (?s:.*)Move the file out of the landing folder") as stopped:
        folder.run()
    assert stopped.value.next_job == ("apply", "--set", 'source.ignore=["3.txt"]')
    folder.remove("3.txt")
    folder.framing = Framing.AUTO
    folder.put("6.bin", landed(one(4)))
    assert folder.run().to_read


def test_a_hostile_last_name_does_not_make_the_good_file_the_one_to_ignore() -> None:
    folder = LandingFolder()
    folder.put("1.bin", landed(one(1, first=True)))
    folder.put("zzzz.bin", landed(one(3)))
    folder.run()
    folder.put("2.bin", landed(one(2)))
    with pytest.raises(RunError, match=r"2\.bin is new, but sorts before zzzz\.bin.*source\.ignore") as stopped:
        folder.run()
    assert stopped.value.next_job == ()
