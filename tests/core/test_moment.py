"""Moments as they are typed, and as Python names them."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.moment import At, Moment

TIME = datetime(2026, 11, 20, 3, 57, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("at", "moment"),
    [
        ("0/18B3F20", Moment(lsn=0x18B3F20)),
        ("before:0/18B3F20", Moment(lsn=0x18B3F20, before=True)),
        ("xid:8412", Moment(xid=8412)),
        ("before:8412", Moment(xid=8412, before=True)),
        ("2026-11-20T03:57", Moment(time=TIME)),
        ("2026-11-20T04:57+01:00", Moment(time=TIME)),
        (0x100, Moment(lsn=0x100)),
        (TIME, Moment(time=TIME)),
        (Moment(xid=1), Moment(xid=1)),
    ],
)
def test_a_moment_is_a_commit_by_its_lsn_its_time_or_its_transaction(at: At, moment: Moment) -> None:
    assert Moment.of(at) == moment


@pytest.mark.parametrize(
    ("at", "error"),
    [
        ("8412", "at: expected a commit: not a moment: '8412' .*xid:8412 or before:8412"),
        ("0/18B3F20X", "not an LSN"),
        ("xid:", "not an xid: ''"),
        ("xid:-1", "not an xid: '-1'"),
        ("xid:4294967296", "expected a whole number below"),
        ("before:2026-11-20", "not an xid: '2026-11-20'"),
        (datetime(2026, 11, 20), "expected a time with a zone"),  # noqa: DTZ001
        (Moment(), "expected one of lsn, time and xid, not none"),
        (Moment(lsn=1, xid=2), "expected one of lsn, time and xid, not lsn and xid"),
    ],
)
def test_anything_else_is_refused(at: At, error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        Moment.of(at)
