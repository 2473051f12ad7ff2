"""Batches of a backlog: limited by the commits in files, with the same rows wherever a run dies between them."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgoutput_etl.landing.batching import commits_in, in_steps
from pgoutput_etl.landing.fingerprint import FilePart, FileStatus
from pgoutput_etl.landing.selection import FileSelection
from tests.core.landing.test_selection import HISTORY, OUTCOME, grown_and_renamed, landed
from tests.support.landing_folder import LandingFolder
from tests.support.scan_parts import scan_file
from tests.support.small_archives import (
    Messages,
    commit_prepared,
    copydata,
    insert,
    prepared,
    rollback_prepared,
    rows_of,
    segment,
    stream_abort,
    stream_commit,
    stream_prepare,
    table,
    transaction,
)


def part(path: str, status: FileStatus = FileStatus.READ, size: int = 10) -> FilePart:
    return FilePart(path, size, 0, status.value, 0, size)


def arrangement(*paths: str) -> FileSelection:
    return FileSelection({n: part(path) for n, path in enumerate(paths, start=7)}, False)


def names(step: FileSelection) -> list[str]:
    return [part.path for _, part in sorted(step.parts.items())]


@given(st.lists(st.integers(0, 12), max_size=20), st.integers(1, 15))
def test_each_batch_takes_the_next_files_as_long_as_they_fit(counts: list[int], most: int) -> None:
    commits = {f"{i}.bin": count for i, count in enumerate(counts)}
    found = arrangement(*commits)
    steps = in_steps(found, commits, most)
    assert [number for step in steps for number in step.parts] == list(found.parts)
    taken = [[commits[path] for path in names(step)] for step in steps]
    for batch in taken:
        assert sum(batch) <= most or sum(count > 0 for count in batch) == 1
    for batch, behind in pairwise(taken):
        assert sum(batch) + behind[0] > most, "or it would have had room there"
    assert {step.rescan for step in steps} == {len(steps) > 1}


def test_without_a_limit_or_within_it_nothing_is_changed() -> None:
    found = arrangement("1.bin", "2.bin")
    for most in (None, 20):
        [step] = in_steps(found, {"1.bin": 10, "2.bin": 10}, most)
        assert step is found


def test_what_is_only_noted_comes_with_the_last_batch() -> None:
    """Except new names, which the next run has to know."""
    twin, moved = part("00.bin", FileStatus.DUPLICATE), part("0.bin", FileStatus.MOVED)
    found = FileSelection({1: part("1.bin"), 2: part("2.bin"), 3: twin, 4: moved}, False, ("00.bin: odd",))
    first, last = in_steps(found, {"1.bin": 1, "2.bin": 1}, 1)
    assert (names(first), first.remarks) == (["1.bin", "0.bin"], ())
    assert (names(last), last.remarks) == (["2.bin", "00.bin"], ("00.bin: odd",))


def test_files_whose_names_do_not_tell_their_order_stay_together() -> None:
    """After a rotation: b.bin was a.bin before, and may have grown."""
    grown = arrangement("b.bin", "a.bin")
    rotated = FileSelection({1: part("0.bin"), 2: part("a.bin"), 3: part("b.bin", FileStatus.MOVED)}, False)
    for found in (grown, rotated):
        assert in_steps(found, {"0.bin": 9, "b.bin": 9, "a.bin": 9}, 1) == [found]


def test_what_counts_is_what_commits() -> None:
    messages = [
        *transaction(1, 100, table(), insert("1", "a")),
        *segment(5, insert("2", "b"), first=True),
        *segment(6, insert("3", "c"), first=True),
        *segment(7, insert("4", "d"), first=True),
        *stream_commit(5, 200),
        *stream_abort(6),
        *stream_prepare(7),
        *prepared(8, insert("5", "e")),
        *prepared(9, insert("6", "f")),
        *commit_prepared(8, 300),
        *rollback_prepared(9),
    ]
    assert commits_in(scan_file("a.bin", 0, copydata(messages)).summary) == 3


# Transactions that begin in one file and end in another one.
BACKLOG: list[Messages] = [
    transaction(1, 100, table(), insert("1", "a")),
    [*segment(5, insert("2", "b"), first=True), *transaction(2, 200, insert("3", "c"))],
    [],
    segment(5, insert("4", "d")),
    prepared(9, insert("5", "e")),
    [*stream_commit(5, 300), *transaction(3, 400, insert("6", "f"))],
    commit_prepared(9, 500),
    transaction(4, 600, insert("7", "g"))[:2],
    transaction(4, 600, insert("7", "g"))[2:],
]


@pytest.mark.parametrize(("most", "batches"), [(1, 5), (2, 3), (3, 3), (6, 1), (None, 1)])
def test_the_rows_are_the_same_in_any_number_of_batches(most: int | None, batches: int) -> None:
    folder = LandingFolder(most=most)
    for number, messages in enumerate(BACKLOG):
        folder.put(f"{number:03}", landed(messages))
    folder.run()
    assert (folder.rows(), folder.batches) == (rows_of(*BACKLOG), batches)
    assert folder.run().parts == {}


def stepwise(seed: int) -> LandingFolder:
    """Files are rotated, grow and are compressed; runs are rare and may die between any two batches."""
    chance = random.Random(seed)
    folder = LandingFolder(most=chance.choice((1, 1, 2)), dies=lambda: chance.random() < 0.5)
    grown_and_renamed(HISTORY, "copydata", seed, folder, often=0.1)
    for _ in range(20):
        if not folder.run().parts:
            return folder
    raise AssertionError("each run does a batch at least")


@pytest.mark.parametrize("seeds", [range(15), pytest.param(range(15, 1500), marks=pytest.mark.soak)], ids=str)
def test_a_run_that_dies_between_batches_leaves_the_others_to_the_next_one(seeds: range) -> None:
    several = 0
    for seed in seeds:
        folder = stepwise(seed)
        assert folder.rows() == OUTCOME, seed
        several += folder.batches > 2
    assert several > len(seeds) // 4, "or it would show little"
