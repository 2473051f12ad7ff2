"""The options of the undo job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.options import FOLDER, LSN, NAME, PATTERNS, XID, Option
from pgoutput_etl.places import Place

SCRIPT, PAGE = "undo.sql", "undo.html"


@dataclass(frozen=True, slots=True)
class UndoRequest:
    """Either one transaction, or those of a range, of an origin, or both."""

    into: Annotated[str, Option("a folder for the script and the page", FOLDER)]
    xid: Annotated[int | None, Option("the transaction to undo", XID)] = None
    from_lsn: Annotated[int | None, Option("undo the commits from this one on", LSN)] = None
    to_lsn: Annotated[int | None, Option("undo the commits up to this one", LSN)] = None
    origin: Annotated[str | None, Option("undo only transactions from this replication origin", NAME)] = None
    tables: Annotated[tuple[str, ...], Option("only these tables, as schema.table", PATTERNS)] = ("*",)

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
