"""The options of the start job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.options import FILE, FOLDER, INTERVAL, NAME, PATTERNS, URL, Former, Option, takes_former_names
from pgoutput_etl.postgres.connection import server_url


@takes_former_names
@dataclass(frozen=True, slots=True)
class StartRequest:
    """landing: None means landing/DATABASE."""

    server: Annotated[str, Option("postgresql://HOST:PORT/DATABASE, as a superuser; PGUSER and others work, too", URL)]
    config: Annotated[str, Option("the source's YAML file; written if there is none", FILE)]
    landing: Annotated[str | None, Option("for a new configuration (default: landing/DATABASE)", FOLDER)] = None
    tables: Annotated[tuple[str, ...], Option("to load, as shell patterns; !PATTERN leaves out", PATTERNS)] = ("*",)
    slot: Annotated[str, Option("the replication slot's name", NAME)] = "etl"
    accept_keyless: Annotated[
        bool,
        Option("go on, although PostgreSQL will reject UPDATEs of tables without a key"),
        Former(keyword="accepts_keyless"),
    ] = False
    wait: Annotated[timedelta, Option("how long to wait for the receiver (default: 10m)", INTERVAL)] = timedelta(
        minutes=10
    )
    dry_run: Annotated[bool, Option("print the steps; do nothing")] = False
    undo: Annotated[bool, Option("drop the slot, the publication, and catalog.sql's triggers")] = False

    @property
    def only_server(self) -> bool:
        """True if no rows are loaded."""
        return self.undo or self.dry_run

    def check(self) -> None:
        """Raises ConfigError for invalid values."""
        if self.server != server_url(self.server):
            raise ConfigError("--server: expected libpq's URL, as psql takes no other")
        if not self.tables:
            raise ConfigError("--tables: expected one or more patterns of schema.table")
        if self.undo and self.dry_run:
            raise ConfigError("--undo and --dry-run: expected one of them")
