"""The options of the undo job."""

from __future__ import annotations

from dataclasses import dataclass

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.places import Place

SCRIPT, PAGE = "undo.sql", "undo.html"


@dataclass(frozen=True, slots=True)
class UndoRequest:
    """into: a folder for the script and the page. xid: of one transaction; or the range of commits from_lsn to to_lsn;
    origin: only transactions from it. tables: shell patterns of schema.table."""

    into: str
    xid: int | None = None
    from_lsn: int | None = None
    to_lsn: int | None = None
    origin: str | None = None
    tables: tuple[str, ...] = ("*",)

    def check(self) -> None:
        is_range = self.from_lsn is not None or self.to_lsn is not None
        if (self.xid is None) == (not is_range and self.origin is None):
            raise ConfigError("expected --xid, or --from-lsn, --to-lsn, and --origin for several commits")
        if is_range and self.origin is None and (self.from_lsn is None or self.to_lsn is None):
            raise ConfigError("expected both --from-lsn and --to-lsn")
        if self.from_lsn is not None and self.to_lsn is not None and self.from_lsn > self.to_lsn:
            raise ConfigError("--from-lsn: expected an LSN that is not after --to-lsn")
        if Place.parse(self.into).is_in_catalog:
            raise ConfigError("--into: expected a folder")
