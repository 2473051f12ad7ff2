"""The commit as of which tables are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, TypeAlias

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.lsn import format_lsn, parse_lsn
from pgoutput_etl.options import Option, Value, number
from pgoutput_etl.timestamps import parse_time


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


def _lsn_or_time(text: str) -> Moment:
    return Moment(lsn=parse_lsn(text)) if "/" in text else Moment(time=parse_time(text))


AsOf: TypeAlias = Annotated[
    Moment | None,
    Option(
        "as of a commit, by its LSN, or by a time (ISO 8601, UTC unless it names a zone): the last one before it",
        Value("LSN|TIME", _lsn_or_time),
        "--at",
    ),
    Option("as of the commit of a transaction", Value("XID", lambda text: Moment(xid=number(text))), "--at-xid"),
    Option(
        "as of the commit before that of a transaction",
        Value("XID", lambda text: Moment(xid=number(text), before=True)),
        "--before-xid",
    ),
]


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
