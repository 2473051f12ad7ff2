"""When a key belonged to which row."""

from __future__ import annotations

from itertools import pairwise

from pgoutput_etl.changes.key_times import KeyPeriod, KeyTimes

KEY = (((0, 0), "1"),)

LATEST = 1 << 62


def stored(lsn: int) -> tuple[int, int, int]:
    return (lsn, LATEST, LATEST)


def test_rows_and_the_times_between_them() -> None:
    """Inserted at 10, deleted at 20, inserted again at 30."""
    times = KeyTimes([(10, 0, 2), (21, 0, 0), (30, 1, 5)], (), ())
    assert [times.row_at(stored(lsn)) for lsn in (9, 10, 20, 21, 29, 30)] == [0, 1, 1, 2, 2, 3]
    assert (times.row_at((30, 1, 4)), times.row_at((30, 1, 5))) == (2, 3)
    limits = [None, (10, 0, 2), (21, 0, 0), (30, 1, 5), None]
    expected = [KeyPeriod(KEY, start, end) for start, end in pairwise(limits)]
    assert [times.period(KEY, row, 0, None) for row in range(4)] == expected
    assert expected[1].holds(stored(20))
    assert not expected[1].holds(stored(21))


def test_a_key_counts_only_while_it_is_the_tables() -> None:
    times = KeyTimes([(10, 0, 2), (21, 0, 0)], (), ())
    assert times.period(KEY, 0, 5, 15) == KeyPeriod(KEY, (5, 0, 0), (10, 0, 2))
    assert times.period(KEY, 1, 5, 15) == KeyPeriod(KEY, (10, 0, 2), (15, 0, 0))
    assert times.period(KEY, 2, 5, 15) is None
    assert times.period(KEY, 2, 30, None) == KeyPeriod(KEY, (30, 0, 0), None)


def test_a_truncate_ends_the_time_of_the_row() -> None:
    """What its commit stores is of the old row, unless the commit has used the key again."""
    truncates = [(10, 0, 3), (20, 0, 3)]
    times = KeyTimes([(20, 0, 4)], [(20, 0, 4)], truncates)
    assert [times.row_at(stored(lsn)) for lsn in (9, 10, 11, 19, 20, 21)] == [0, 0, 1, 1, 3, 3]
    assert times.row_at((20, 0, 2)) == 1
    assert [times.period(KEY, row, 0, None) for row in range(4)] == [
        KeyPeriod(KEY, None, (11, 0, 0)),
        KeyPeriod(KEY, (11, 0, 0), (20, 0, 4)),
        None,
        KeyPeriod(KEY, (20, 0, 4), None),
    ]
