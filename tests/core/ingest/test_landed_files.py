"""What may happen to landed files while a run lists and reads them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pgoutput_etl.ingest.landed_files import refuse_renamed
from pgoutput_etl.ingest.listing import FilesChangedError
from pgoutput_etl.landing.file_index import Listing, scan_tasks
from pgoutput_etl.landing.fingerprint import KnownContents, LandedFile
from pgoutput_etl.landing.incremental_scan import scan_part
from tests.support.small_archives import copydata, insert, table, transaction


def listing(names: Iterable[str]) -> Listing:
    return Listing.of(LandedFile(name, 10, 1) for name in names)


def check(before: list[str], after: list[str]) -> None:
    refuse_renamed(listing(before).files(), listing(before), listing(after))


def test_a_file_that_took_the_name_of_a_renamed_one_meanwhile_is_not_applied() -> None:
    """The receiver renamed `current` to 2.bin after it was listed, and another `current` was read instead."""
    with pytest.raises(
        FilesChangedError, match=r"^2\.bin has appeared before current while files were read\. Run again$"
    ):
        check(["1.bin", "current"], ["1.bin", "2.bin", "current"])


@pytest.mark.parametrize("after", [["1.bin", "2.bin", "3.bin"], ["1.bin.gz", "2.bin"], ["2.bin"]])
def test_files_that_come_later_or_are_compressed_change_nothing(after: list[str]) -> None:
    check(["1.bin", "2.bin"], after)
    check([], after)


def test_only_the_newest_file_is_read_as_it_was_listed() -> None:
    """Any other one was complete when the next was begun, even if its listing lags behind."""
    begun = copydata(transaction(1, 100, table(), insert("1", "a")))
    whole = begun + copydata(transaction(2, 200, insert("2", "b")))
    tasks = scan_tasks({0: LandedFile("1.bin", len(begun), 1), 1: LandedFile("2.bin", len(begun), 2)})
    consumed = [scan_part(path, whole, task, KnownContents({})).summary.consumed for path, task in tasks.items()]
    assert consumed == [len(whole), len(begun)]
