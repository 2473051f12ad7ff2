"""Converts between timestamp and timestamptz, like PostgreSQL's cast in a session with a time zone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

TIMESTAMP, TIMESTAMPTZ = "timestamp", "timestamptz"

_INFINITE = (b"infinity", b"-infinity")

_OFFSET = re.compile(r"([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?$")


@dataclass(frozen=True, slots=True)
class ZoneConversion:
    """Declared for a column: its type was `before`, and the session that altered it had this time zone."""

    before: str
    zone: str

    @property
    def after(self) -> str:
        return TIMESTAMPTZ if self.before == TIMESTAMP else TIMESTAMP

    def convert(self, text: bytes) -> bytes | None:
        """The value's text after the cast; None for a year that Python can't express."""
        if text in _INFINITE:
            return text
        try:
            zone = ZoneInfo(self.zone)
            return _instant(text, zone) if self.before == TIMESTAMP else _local_time(text, zone)
        except (ValueError, OverflowError):  # BC, and years after 9999
            return None


def _instant(text: bytes, zone: ZoneInfo) -> bytes:
    """A local time that occurs twice counts as standard time; a skipped one gets the offset from before the gap."""
    local = datetime.fromisoformat(text.decode())
    offset = min(_offset(local.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))
    return _printed(local.replace(tzinfo=timezone(offset)).astimezone(timezone.utc)) + b"+00"


def _offset(moment: datetime) -> timedelta:
    offset = moment.utcoffset()
    assert offset is not None
    return offset


def _local_time(text: bytes, zone: ZoneInfo) -> bytes:
    printed = text.decode()
    offset = _OFFSET.search(printed)
    if offset is None:
        raise ValueError("no UTC offset")
    sign, hours, minutes, seconds = offset.groups("0")
    ahead = timedelta(hours=int(hours), minutes=int(minutes), seconds=int(seconds)) * (-1 if sign == "-" else 1)
    local = datetime.fromisoformat(printed[: offset.start()])
    return _printed(local.replace(tzinfo=timezone(ahead)).astimezone(zone))


def _printed(moment: datetime) -> bytes:
    text = moment.replace(tzinfo=None).isoformat(" ")
    return (text.rstrip("0") if "." in text else text).encode()
