"""The options of the undo job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.options import LSN, NAME, PATTERNS, XID, Former, Option, Value, takes_former_names
from pgoutput_etl.places import Place

SCRIPT = "undo.sql"

_SQL = ".sql"


@takes_former_names
@dataclass(frozen=True, slots=True)
class UndoRequest:
    """Selects one transaction, or all in a range, from an origin, or both."""

    out: Annotated[
        str,
        Option(f"the script, as NAME.sql, or a folder for it and its page (default: {SCRIPT})", Value("FILE|FOLDER")),
        Former("--into", "into"),
    ] = SCRIPT
    xid: Annotated[int | None, Option("the transaction to undo", XID)] = None
    from_lsn: Annotated[int | None, Option("undo the commits from this one on", LSN)] = None
    to_lsn: Annotated[int | None, Option("undo the commits up to this one", LSN)] = None
    origin: Annotated[str | None, Option("undo only transactions from this replication origin", NAME)] = None
    tables: Annotated[tuple[str, ...], Option("only these tables, as schema.table", PATTERNS)] = ("*",)
    disable_triggers: Annotated[
        bool, Option("the script disables the tables' triggers, except those of foreign keys, while it runs")
    ] = False

    def check(self) -> None:
        """Raises ConfigError for invalid options."""
        is_range = self.from_lsn is not None or self.to_lsn is not None
        if (self.xid is None) == (not is_range and self.origin is None):
            raise ConfigError("expected --xid, or --from-lsn, --to-lsn, and --origin for several commits")
        if is_range and self.origin is None and (self.from_lsn is None or self.to_lsn is None):
            raise ConfigError("expected both --from-lsn and --to-lsn")
        if self.from_lsn is not None and self.to_lsn is not None and self.from_lsn > self.to_lsn:
            raise ConfigError("--from-lsn: expected an LSN that is not after --to-lsn")
        if Place.parse(self.out).is_in_catalog:
            raise ConfigError("--out: expected a file or a folder")

    @property
    def script(self) -> tuple[str, str]:
        """The script's folder and name."""
        if not self.out.endswith(_SQL):
            return self.out.rstrip("/") or "/", SCRIPT
        folder, _, name = self.out.rpartition("/")
        return (folder or ("/" if self.out.startswith("/") else ".")), name

    @property
    def page(self) -> str:
        """The page's name, in the script's folder."""
        return f"{self.script[1].removesuffix(_SQL)}.html"
