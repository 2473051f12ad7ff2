"""The commit as of which tables are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.lsn import format_lsn


@dataclass(frozen=True, slots=True)
class Moment:
    """A commit by exactly one of: its LSN, a time with a zone, before which it is the last one, or its transaction's
    xid. before: without this commit."""

    lsn: int | None = None
    time: datetime | None = None
    xid: int | None = None
    before: bool = False

    def check(self) -> None:
        """Raises ConfigError unless exactly one is given."""
        given = [name for name in ("lsn", "time", "xid") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(f"expected one of lsn, time and xid, not {' and '.join(given) or 'none'}")
        if self.time is not None and self.time.tzinfo is None:
            raise ConfigError("time: expected a time with a zone, as 2026-11-20T03:57:00+01:00")


def only_commit(xid: int, commits: Sequence[int]) -> int:
    """commits: of the transactions with an xid. Raises ConfigError unless there is one."""
    if not commits:
        raise ConfigError(
            f"xid {xid}: the ledger has no committed transaction with it. It may be open or aborted, or maintenance "
            "has deleted its record: name the commit's LSN or time"
        )
    if len(commits) > 1:
        raise ConfigError(
            f"xid {xid}: several transactions had it, which committed at {', '.join(map(format_lsn, commits))}: name "
            "the LSN of one"
        )
    return commits[0]
