"""The records that a run selects decide as all records would, and the cost does not grow with the archive.

Every run of a LandingFolder compares the two ways; here are nights that make it hard.
"""

from __future__ import annotations

import gzip
import pickle
import random
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.errors import PgoutputEtlError
from pgoutput_etl.landing.file_index import FileIndex, Listing
from pgoutput_etl.landing.fingerprint import FilePart, FileStatus, LandedFile, UnkeyedContents, head_of, heads_of
from pgoutput_etl.landing.known_files import natural_order
from pgoutput_etl.landing.sequence_gaps import missing_number
from tests.core.landing.test_selection import JUNK, landed, one
from tests.support.landing_folder import MOST_BYTES, LandingFolder, every_known_file

PIECES = ("a", "b.", "0", "00", "7", "07", "12", "é", "Z", "-", "9" * 130, "\u0661")
NAMES = st.lists(st.sampled_from(PIECES), max_size=6)
PATHS = NAMES.map("".join)


@given(st.sets(PATHS, min_size=1, max_size=30), PATHS)
def test_names_are_in_natural_order(names: set[str], new: str) -> None:
    in_order = sorted(names, key=natural_order)
    parts = {n: FilePart(name, 1, 1, consumed=1, prefix_hash=str(n)) for n, name in enumerate(names)}
    index = FileIndex.of(parts)
    behind = [name for name in in_order if natural_order(name) >= natural_order(new)]
    before = [name for name in in_order if name not in behind]
    assert index.around([new]) == [*before[-3:], *behind]
    assert index.known([new]).newest == in_order[-1] == every_known_file(parts).newest


@given(st.sets(st.integers(0, 40), min_size=1), st.sets(st.integers(0, 60), min_size=1))
def test_the_few_names_around_new_ones_tell_what_all_tell_of_gaps(known: set[int], new: set[int]) -> None:
    names = [f"shop-{number:03}.bin" for number in known]
    index = FileIndex.of({n: FilePart(name, 1, 1, consumed=1) for n, name in enumerate(names)})
    added = {f"shop-{number:03}.bin" for number in new - known}
    if added:
        few, all_of_them = ({*names, *added} for names in (index.around(added), names))
        said = []
        for paths in (few, all_of_them):
            in_order = sorted(paths, key=natural_order)
            said.append(missing_number(in_order, next(i for i, path in enumerate(in_order) if path in added)))
        assert said[0] == said[1]


# Nights

BOMB = gzip.compress(bytes(2 * MOST_BYTES))


class Chaos:
    """A person who changes a landing folder in many ways."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.folder = LandingFolder(salvages=True, keyed_from=self.chance.choice((0, 0, 2, 5)))
        self.framing = self.chance.choice(("recvlogical", "copydata", "length_prefixed"))
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"{self.chance.choice('kkkaz')}-{self.names:02}"

    def any_file(self) -> str | None:
        return self.chance.choice(sorted(self.folder.files)) if self.folder.files else None

    def new(self) -> None:
        """Sends again from any transaction on; the file may be cut off or be junk."""
        first = self.chance.choice((1, 1, self.chance.randrange(1, 8)))
        content = landed([m for n in range(first, first + self.chance.randrange(1, 5)) for m in one(n, first=n == 1)])
        if self.framing != "copydata":
            content = _sent(self.framing, first, self.chance.randrange(1, 5))
        cut = self.chance.choice((0, 0, self.chance.randrange(60)))
        content = self.chance.choice((content, content, content, JUNK[: self.chance.randrange(40)]))
        self.folder.put(self.name(), content[: len(content) - cut])

    def bomb(self) -> None:
        """Under a name of its own, or of a file that is there."""
        name = self.chance.choice((self.name(), self.any_file())) or self.name()
        self.folder.put(name, BOMB)

    def renamed(self) -> None:
        name = self.any_file()
        if name is not None:
            self.folder.rename(name, self.name())

    def copied(self) -> None:
        name = self.any_file()
        if name is not None:
            self.folder.put(self.name(), self.folder.content[name])

    def compressed(self) -> None:
        name = self.any_file()
        if name is not None and not name.endswith(".gz"):
            content = self.folder.remove(name) if self.chance.random() < 0.7 else self.folder.content[name]
            self.folder.put(f"{name}.gz", gzip.compress(content)[: self.chance.choice((None, None, 30))])

    def grown(self) -> None:
        name = self.any_file()
        if name is not None:
            more = _sent(self.framing, self.chance.randrange(1, 8), 1)
            self.folder.append(name, more[: self.chance.choice((None, None, 7))])

    def touched(self) -> None:
        name = self.any_file()
        if name is not None:
            self.folder.put(name, self.folder.content[name])

    def swapped(self) -> None:
        """Puts one file's bytes under another file's name."""
        name, other = self.any_file(), self.any_file()
        if name is not None and other is not None:
            self.folder.put(name, self.folder.content[other])

    def removed(self) -> None:
        name = self.any_file()
        if name is not None:
            self.folder.remove(name)

    def night(self) -> str:
        """Changes the folder and runs; undoes the changes if the run refuses them."""
        files, content = dict(self.folder.files), dict(self.folder.content)
        ways = [self.new] * 6 + [self.renamed, self.copied, self.compressed, self.grown, self.touched, self.swapped]
        ways.append(self.bomb)
        for _ in range(self.chance.choice((1, 1, 2, 3))):
            self.chance.choice([*ways, self.removed])()
        replay = pickle.dumps(self.folder.replay)
        try:
            found = self.folder.run()
        except PgoutputEtlError:
            self.folder.files, self.folder.content, self.folder.replay = files, content, pickle.loads(replay)
            return "refused"
        statuses = Counter(part.status for part in found.parts.values())
        return "+".join(sorted(statuses)) or "nothing"


@cache
def _sent(framing: str, first: int, count: int) -> bytes:
    return landed([m for n in range(first, first + count) for m in one(n, first=n == 1)], framing)


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 1500), marks=pytest.mark.soak)], ids=str)
def test_the_few_that_matter_decide_as_all_would(seeds: range) -> None:
    """A LandingFolder asserts this in every run."""
    found: Counter[str] = Counter()
    for seed in seeds:
        chaos = Chaos(seed)
        for night in range(12):
            try:
                found[chaos.night()] += 1
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, night {night}: {error}") from error
    seen = {status for statuses in found for status in statuses.split("+")}
    assert seen == {"nothing", "refused", *(status.value for status in FileStatus)}
    assert found["refused"] < sum(found.values()) / 2, found


# Contents that an older version read


def test_contents_without_heads_are_found_by_their_lengths() -> None:
    whole = [landed(one(n, first=n == 1), "recvlogical") for n in range(1, 50)]
    assert UnkeyedContents.of([]).beginnings(b"x") == []
    folder = LandingFolder(keyed_from=10**9)
    for number, data in enumerate(whole, start=1):
        folder.put(f"{number}.bin", data)
    folder.run()
    index = FileIndex.of(folder.without_heads(folder.known))
    unkeyed = index.unkeyed()
    assert unkeyed is not None
    assert len(unkeyed.numbers) == len(whole)
    for number, data in enumerate(whole):
        assert unkeyed.beginnings(data + b"more") == [number]
        assert unkeyed.beginnings(data[:-1]) == []
    folder.rename("7.bin", "99.bin")
    assert [part.status for part in folder.run().parts.values()] == [FileStatus.MOVED.value]


def test_heads_are_keys_of_a_few_first_bytes() -> None:
    data = random.Random(1).randbytes(5000)
    assert len(heads_of(data)) == 9
    assert heads_of(data)[:8] == heads_of(data[:4095])
    for consumed in (0, 1, 2, 3, 255, 256, 4096, 5000):
        of_part = heads_of(data[:consumed])
        assert head_of(consumed, heads_of(data)) == (of_part[-1] if of_part else None)


def test_parts_of_a_batch_that_was_begun_take_the_place_of_those_that_are_there() -> None:
    index = many(10)
    again = FilePart("shop-0000003.bin.zst", 7, 7, consumed=7)
    both = index.with_parts({3: again, 100: replace(again, path="new")})
    assert both.known(["shop-0000003.bin.zst"]).by_path["shop-0000003.bin.zst"] == (3, again)
    assert both.next_number == 101


# Cost


def many(count: int) -> FileIndex:
    parts = {
        n: FilePart(f"shop-{n:07}.bin.zst", 100, n, consumed=n + 100, prefix_hash=f"{n:064x}", head=f"{n:016x}")
        for n in range(count)
    }
    grown = {
        count + n: replace(parts[count - 1], offset=count + n + 99, consumed=count + n + 100, same_as=count + n - 1)
        for n in range(50)
    }
    return FileIndex.of(parts | grown)


def test_what_is_shipped_does_not_grow_with_what_is_known() -> None:
    sizes = set()
    for count in (1_000, 5_000):
        index = many(count)
        listed = [LandedFile(f"shop-{n:07}.bin.zst", 100, n) for n in range(count)]
        listing = Listing.of([*listed, LandedFile("shop-9999999.bin.zst", 5, 5)])
        looked_at = index.to_inspect(listing)
        assert [file.path for file in looked_at] == ["shop-9999999.bin.zst", f"shop-{count - 1:07}.bin.zst"]
        known = index.known([file.path for file in looked_at])
        assert len(known.parts) == 1, "where the archive ends"
        assert index.unkeyed() is None
        sizes.add(len(pickle.dumps(known.contents())) // 100)
    assert len(sizes) == 1
