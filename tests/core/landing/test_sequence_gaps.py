"""Missing numbers in consecutive names."""

from __future__ import annotations

import pytest

from pgoutput_etl.landing.sequence_gaps import missing_number


@pytest.mark.parametrize(
    ("paths", "missing"),
    [
        (["000.bin", "001.bin", "002.bin", "004.bin"], "between 002.bin and 004.bin a file is missing"),
        (["s-8.gz", "s-9.gz", "s-10.gz", "s-13.gz"], "between s-10.gz and s-13.gz 2 files are missing"),
        (["d1/7", "d1/8", "d1/9", "d1/11"], "between d1/9 and d1/11 a file is missing"),
        (["000.bin", "001.bin", "002.bin", "003.bin"], None),
        (["000.bin", "002.bin", "004.bin"], None),  # in steps of two
        (["000.bin", "001.bin", "003.bin"], None),  # one step is no rule
        (["260130.bin", "260131.bin", "260201.bin"], None),
        (["260129.bin", "260130.bin", "260131.bin", "260201.bin"], None),
        (["20260129", "20260130", "20260131", "20260201"], None),
        (["235957", "235958", "235959", "000000"], None),
        (["a1/0", "a1/1", "a1/2", "a2/5"], None),  # two numbers differ
        (["a-1", "a-2", "a-3", "b-9"], None),
        (["1", "2", "3", "3b", "9"], None),
        ([], None),
    ],
)  # fmt: skip
def test_what_is_missing(paths: list[str], missing: str | None) -> None:
    assert missing_number(paths) == missing


def test_what_was_read_already_is_not_complained_of_again() -> None:
    paths = ["000", "001", "002", "004", "005"]
    assert missing_number(paths, checked_from=3) is not None
    assert missing_number(paths, checked_from=4) is None
