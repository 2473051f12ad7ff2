"""One file is found to break the order of commits only if the files around it show that it is this one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pgoutput_etl.ingest.commit_order import file_ahead, misplaced_file, relations_in
from pgoutput_etl.scan.file_summary import FileBeginning, FileScan

HUGE = 10**17


def scans(*commits: tuple[int, int] | None) -> dict[int, FileScan]:
    """The first and last commit of each file; None for a file without commits."""
    return {n: FileScan(n, "copydata", 100, FileBeginning.OUTSIDE, epochs=[epoch]) for n, epoch in enumerate(commits)}


def misplaced(before: int, *commits: tuple[int, int] | None) -> int | None:
    """With every commit that steps back being one that was not sent before."""
    lsns, highest = dict[int, int](), before
    for number, epoch in enumerate(commits):
        if epoch is not None:
            if epoch[0] <= highest:
                lsns[number] = epoch[0]
            highest = max(highest, epoch[1])
    assert lsns
    return misplaced_file(scans(*commits), before, lsns)


@pytest.mark.parametrize(
    ("before", "commits", "expected"),
    [
        (100, [(64, 64), (200, 300)], 0),
        (0, [(100, 200), (210, 220), (64, 64), (300, 400)], 2),
        (100, [(200, 300), None, (64, 64), None, (400, 500)], 2),
        (100, [(HUGE, HUGE), (200, 300), (400, 500)], 0),
        (0, [(100, 200), (HUGE, HUGE), (300, 400), (500, 600)], 1),
    ],
)
def test_one_file_is_wrong(before: int, commits: list[tuple[int, int] | None], expected: int) -> None:
    assert misplaced(before, *commits) == expected


@pytest.mark.parametrize(
    ("before", "commits"),
    [
        (100, [(64, 64)]),  # the newest file: the earlier ones may be wrong
        (100, [(200, 300), (64, 64), None]),
        (HUGE, [(200, 300), (400, 500)]),  # a forged commit was applied
        (HUGE, [(200, 300)]),
        (100, [(200, 300), (150, 150), (400, 500)]),
        (100, [(HUGE, HUGE), (200, 300)]),  # either of the two
        (0, [(100, 200), (64, 64), (300, 400)]),  # the first file, or the second
        (100, [(HUGE, HUGE), (HUGE + 1, HUGE + 1), (200, 300), (400, 500)]),  # two forged files
        (100, [(HUGE, HUGE), (HUGE + 1, HUGE + 1), (200, 300)]),  # a good file must not be left out
        (100, [(200, 300), (64, 64), (50, 50), (400, 500)]),
    ],
)
def test_nothing_shows_which_file_is_wrong(before: int, commits: list[tuple[int, int] | None]) -> None:
    assert misplaced(before, *commits) is None


def test_the_file_with_the_commits_ahead() -> None:
    files = scans((100, 200), (HUGE, HUGE), None, (300, 400))
    assert file_ahead(files, 50, 3) == 1
    assert file_ahead(files, HUGE + 1, 3) is None
    assert file_ahead(files, 50, 0) is None


def test_a_file_with_parts_of_other_transactions_may_have_rows_of_any_relation() -> None:
    whole = FileScan(0, "copydata", 100, FileBeginning.EITHER, {"B": 1, "I": 2, "C": 1}, {1: 1, 2: 1})
    assert relations_in(whole, []) == frozenset({1, 2})
    others: list[dict[str, Any]] = [
        {"begins": "outside"},
        {"head_needs_owner": True},
        {"orphans": [1]},
        {"messages": {"S": 1}},
    ]
    for other in others:
        assert relations_in(replace(whole, **other), []) is None
