"""The commit to read tables as of, given by its LSN, a time, or a transaction's xid."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.timestamps import parse_time
from pgoutput_etl.xid import XIDS

_XID, _BEFORE = "xid:", "before:"


@dataclass(frozen=True, slots=True)
class Moment:
    """A commit, given by exactly one of: its LSN, a time with a time zone (for the last commit at or before it), or its
    transaction's xid. before: exclude this commit."""

    lsn: int | None = None
    time: datetime | None = None
    xid: int | None = None
    before: bool = False

    @classmethod
    def parse(cls, text: str) -> Moment:
        """Parses an LSN, a time in ISO 8601, `xid:8412`, or `before:` with an xid or LSN. Raises ValueError."""
        before, rest = text.startswith(_BEFORE), text.removeprefix(_BEFORE)
        if "/" in rest:
            return cls(lsn=parse_lsn(rest), before=before)
        if before or rest.startswith(_XID):
            return cls(xid=_parse_xid(rest.removeprefix(_XID)), before=before)
        try:
            return cls(time=parse_time(text))
        except ValueError:
            raise ValueError(
                f"not a moment: {text!r} (expected a time, such as 2026-03-01T02:13Z, an LSN, xid:8412 or before:8412)"
            ) from None

    @classmethod
    def of(cls, at: At) -> Moment:
        """Raises ConfigError."""
        try:
            moment = cls.parse(at) if isinstance(at, str) else cls(lsn=at) if isinstance(at, int) else at
        except ValueError as error:
            raise ConfigError(f"at: expected a commit: {error}") from None
        moment = cls(time=moment) if isinstance(moment, datetime) else moment
        moment.check()
        return moment

    def check(self) -> None:
        """Raises ConfigError unless exactly one is given."""
        given = [name for name in ("lsn", "time", "xid") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ConfigError(f"expected one of lsn, time and xid, not {' and '.join(given) or 'none'}")
        if self.time is not None and self.time.tzinfo is None:
            raise ConfigError("time: expected a time with a zone, as 2026-11-20T03:57:00+01:00")


At: TypeAlias = Moment | datetime | int | str  # int: an LSN; str: as for `Moment.parse`


def _parse_xid(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < XIDS):
        raise ValueError(f"not an xid: {text!r} (expected a whole number below 2^32)")
    return int(text)
