"""The order in which transactions got their xids, which are 32-bit and begin again: compared modulo 2^32."""

from __future__ import annotations

from collections.abc import Sequence

XIDS = 2**32

_HALF = 2**31


def distance(before: int, after: int) -> int:
    """How many xids lie from one to another; negative if `after` was given out first. Right for xids that were given
    out within 2^31 of each other."""
    return (after - before + _HALF) % XIDS - _HALF


def is_newer(xid: int, other: int) -> bool:
    """Whether an xid was given out after another one."""
    return distance(other, xid) > 0


def newest_xid(xids: Sequence[int]) -> int | None:
    """The last to be given out of transactions committed near each other. `xids`: that of the last commit first."""
    if not xids:
        return None
    return (xids[0] + max(distance(xids[0], xid) for xid in xids)) % XIDS


def widened(xids: tuple[int, int] | None, xid: int) -> tuple[int, int]:
    """The oldest and the newest of some xids and another one."""
    oldest, newest = xids or (xid, xid)
    return (xid if is_newer(oldest, xid) else oldest), (xid if is_newer(xid, newest) else newest)
