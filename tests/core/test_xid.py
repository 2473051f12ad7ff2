"""The order of xids, across the end of their 32 bits."""

from __future__ import annotations

from pgoutput_etl.xid import is_newer, widened


def test_a_transaction_is_newer_across_the_end_of_the_xids() -> None:
    assert is_newer(4, 2**32 - 1)
    assert not is_newer(2**32 - 1, 4)
    assert not is_newer(4, 4)


def test_a_range_of_xids_goes_across_their_end() -> None:
    found = None
    for xid in (2**32 - 2, 5, 2**32 - 7, 3):
        found = widened(found, xid)
    assert found == (2**32 - 7, 5)
