"""The order in which xids were assigned. They are 32-bit and wrap around, so they are compared modulo 2^32."""

from __future__ import annotations

XIDS = 2**32

# Bytes of WAL: 2^32 transactions, each with at least 32 bytes.
XIDS_WRAP_WITHIN = 2**37

_HALF = 2**31


def distance(before: int, after: int) -> int:
    """The number of xids from `before` to `after`; negative if `after` was assigned first. Correct for xids assigned
    within 2^31 of each other."""
    return (after - before + _HALF) % XIDS - _HALF


def is_newer(xid: int, other: int) -> bool:
    """True if `xid` was assigned after `other`."""
    return distance(other, xid) > 0


def widened(xids: tuple[int, int] | None, xid: int) -> tuple[int, int]:
    """A range of xids (oldest, newest), extended by another xid."""
    oldest, newest = xids or (xid, xid)
    return (xid if is_newer(oldest, xid) else oldest), (xid if is_newer(xid, newest) else newest)
