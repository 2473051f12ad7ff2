"""Damaged archives: every table is correct up to some commit, or the replay is refused."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product

import pytest

from pgoutput_etl.compression import decompress
from pgoutput_etl.errors import PgoutputEtlError
from pgoutput_etl.protocol.framing import Framing, detect, frames
from pgoutput_etl.protocol.messages import PgoutputMessage
from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.transactions.cutoff import Cutoff
from tests.support.captures import DATA, files_of
from tests.support.catalog_messages import CatalogSender, definition
from tests.support.encoder import Row, copydata, encode, length_prefixed, pgcopy, recvlogical
from tests.support.small_archives import T, insert, rows_of, segment, stream_commit, table, tables, transaction
from tests.support.small_archives import copydata as small_copydata

SLOTS = ["pg14/v1", "pg16/v4_parallel", "random16/v1", "random16/v2"]
LAND: dict[str, Callable[[list[Row]], bytes]] = {
    "copydata": copydata,
    "recvlogical": lambda rows: recvlogical([row.data for row in rows]),
    "length_prefixed": lambda rows: length_prefixed([row.data for row in rows]),
    "pgcopy": pgcopy,
}


@cache
def messages(slot: str) -> list[Row]:
    found = []
    for path in files_of(DATA / slot):
        data = decompress(path.read_bytes(), path.name)
        found += [Row(f.lsn or 0, 0, data[f.start : f.end]) for f in frames(data, detect(data))]
    return found


@cache
def file_of(slot: str, framing: str) -> bytes:
    return LAND[framing](messages(slot))


@dataclass(slots=True)
class UpTo(Replay):
    """An undamaged archive's replay, with each table up to a commit."""

    up_to: dict[int, Cutoff] = field(default_factory=dict)

    def cutoffs(self) -> dict[int, Cutoff]:
        return self.up_to


@cache
def whole(slot: str) -> Replay:
    replay = Replay()
    replay.add_file("whole", file_of(slot, "copydata"))
    return replay


def contents(replay: Replay) -> dict[int, list[str]]:
    found = {}
    for oid, held in replay.tables().items():
        rows = ({k: v for k, v in row.items() if k not in ("_pg_commit_ts", "_pg_xid")} for row in held.rows)
        found[oid] = sorted(map(repr, rows))
    return {oid: rows for oid, rows in found.items() if rows}


def spoilt(data: bytes, chance: random.Random) -> bytes:
    """Replaces some bytes with zeros or ones, or removes them, as a bad disk or an incomplete copy does."""
    begin = chance.randrange(len(data) // 50, len(data))
    end = min(begin + chance.choice([64, 300, 4096, 20_000]), len(data))
    filling = chance.choice([b"\0", b"\xff", b""])
    return data[:begin] + filling * (end - begin) + data[end:]


def outcome(slot: str, framing: str, seed: int) -> str:
    chance = random.Random(seed)
    replay = Replay(salvages=True)
    try:
        scan = replay.add_file("spoilt", spoilt(file_of(slot, framing), chance))
        found = contents(replay)
    except PgoutputEtlError:
        return "refused"
    if not scan.damages:
        return "unnoticed"  # the rest of two rows of equal widths is a valid row
    clean = whole(slot)
    cuts = replay.cutoffs()
    is_held = bool(cuts)
    end = Cutoff(replay.assembly.last_commit_lsn + 1, "the last commit that was read")
    if replay.assembly.unreliable_from is not None:
        end = Cutoff(*replay.assembly.unreliable_from)
    for oid in clean.assembly.relations.oids():
        cuts.setdefault(oid, end)
    as_of = UpTo(clean.assembly, False, clean._messages, clean._files, up_to=cuts)
    assert found == contents(as_of), (
        f"{slot} {framing} {seed}: {sorted((o, c.lsn) for o, c in cuts.items())} "
        f"{replay.assembly.unreadable_ranges[:1]}"
    )
    return "held" if is_held else "whole"


@pytest.mark.parametrize("framing", LAND)
def test_rows_around_one_hole_are_correct(framing: str) -> None:
    found = Counter(outcome(slot, framing, seed) for slot in ("pg14/v1", "random16/v2") for seed in range(2))
    assert found["held"]


@pytest.mark.soak
@pytest.mark.parametrize("framing", LAND)
@pytest.mark.parametrize("slot", SLOTS)
def test_rows_around_several_holes_are_correct(slot: str, framing: str) -> None:
    found = Counter(outcome(slot, framing, seed) for seed in range(100, 160))
    assert found["held"], found


def test_a_file_torn_within_a_segment_holds_no_table_once_the_transaction_is_resent() -> None:
    first = [
        *transaction(1, 100, table(), insert("1", "a")),
        *segment(5, insert("2", "b"), insert("3", "c"), first=True),
    ]
    again = [*segment(5, table(), insert("2", "b"), insert("3", "c"), first=True), *stream_commit(5, 200)]
    replay = Replay(salvages=True)
    replay.add_file("0", small_copydata(first)[:-40])
    replay.add_file("1", small_copydata(again))
    assert replay.cutoffs() == {}
    assert tables(replay) == {"t": [("1", "a"), ("2", "b"), ("3", "c")]}


@pytest.mark.parametrize("framing", ["copydata", "length_prefixed"])
def test_only_resent_bytes_are_missing_after_several_receivers_died(framing: str) -> None:
    """Each dies within its first messages, and the second writes the bytes that the first one's message lacks."""
    rows = (insert("1", "committed"), insert("2", "interrupted"), insert("3", "later"))
    first, second = (transaction(n, 10 * n, table(), rows[n]) for n in (1, 2))
    land = partial(_landed, framing)
    whole, again = land([*first, *second]), land(second)
    end, most, torn = len(land([*first, *second[:3]])), len(land(second[2:3])), len(land(second[:1]))
    for lacks, writes, later in product(range(1, most, 7), range(8, torn + 1, 3), (b"", again)):
        replay = Replay(salvages=True)
        replay.add_file("0", whole[: end - lacks] + again[:writes] + later)
        replay.add_file("1", again)
        said = f"{lacks} bytes missing, {writes} behind them, {len(later)} later: {replay.assembly.unreadable_ranges}"
        assert replay.assembly.unreadable_ranges == [], said
        assert tables(replay) == {"t": rows_of([*first, *second])}, said


def _landed(framing: str, messages: list[PgoutputMessage]) -> bytes:
    return LAND[framing]([Row(0x1000000 + i, 0, encode(message)) for i, message in enumerate(messages)])


def test_the_framing_of_each_file_is_detected() -> None:
    for framing in LAND:
        assert detect(file_of("pg14/v1", framing)) is Framing(framing)


def test_a_table_is_not_renamed_after_unreadable_bytes() -> None:
    sender, known, renamed = CatalogSender(), table(), table(name="later")
    described, moved = (sender.message(n, definition(each, (1, 2))) for n, each in ((1, known), (2, renamed)))
    changes = [*transaction(1, 10, described, known, insert("1", "a")), *transaction(2, 30, moved)]
    replay = UpTo()
    replay.add_file("renamed", small_copydata(changes))
    assert replay.name_holders() == {("public", "later"): T}
    replay.up_to = {T: Cutoff(20, "unreadable bytes")}
    assert replay.name_holders() == {("public", "t"): T}
