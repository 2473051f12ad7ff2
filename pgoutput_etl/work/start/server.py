"""The server's side of a start: what is set up, what is missing, and whether changes land."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from pgoutput_etl.console import Progress
from pgoutput_etl.errors import ConfigError, TryLaterError
from pgoutput_etl.lsn import format_lsn, parse_lsn
from pgoutput_etl.postgres.live_server import ask_server, source_server
from pgoutput_etl.postgres.queries import literal
from pgoutput_etl.postgres.source_server import SourceServer, SourceTable
from pgoutput_etl.targets.condition import named
from pgoutput_etl.work.snapshot.steps import DEFAULT_NAME
from pgoutput_etl.work.start import catalog_key
from pgoutput_etl.work.start.request import StartRequest
from pgoutput_etl.work.start.server_scripts import command, run_script

_POLL = 1.0  # seconds

_NAMED = 5  # tables to name in one error

# A committed transaction, so that an idle server has something to land
_MARK = "SELECT pg_catalog.pg_logical_emit_message(true, 'pgoutput_etl.start', '')::text AS lsn"

_NO_LIMIT = (
    "The server keeps changes until they are received: a receiver that stops fills its disk. To lose the slot instead, "
    "set max_slot_wal_keep_size."
)


@dataclass(frozen=True, slots=True)
class StartedServer:
    request: StartRequest
    progress: Progress

    def facts(self) -> SourceServer:
        """Raises ConfigError and RunError."""
        return source_server(self.request.server)

    @property
    def setup(self) -> tuple[str, ...]:
        keyless = "accept" if self.request.accept_keyless else "stop"
        return command("setup.sql", self.request.server, slot=self.request.slot, keyless=keyless)

    def check(self, facts: SourceServer) -> None:
        """Raises ConfigError for anything that must change before the setup."""
        if facts.is_standby:
            raise ConfigError("--server: it is a standby: name the primary")
        if facts.wal_level != "logical":
            raise ConfigError(
                f"--server: wal_level is {facts.wal_level}: run ALTER SYSTEM SET wal_level = 'logical' and restart it"
            )
        keyless = [t.name for t in facts.tables if is_sent(t) and not t.publications and t.is_keyless]
        if keyless and not self.request.accept_keyless and not has_publication(facts):
            raise ConfigError(
                f"PostgreSQL would reject UPDATEs and DELETEs of {named(keyless, _NAMED)} once they are "
                "published: give them a primary key or a REPLICA IDENTITY, create a publication etl of other tables, "
                "or go on with --accept-keyless"
            )

    def prepare(self) -> str | None:
        """Runs setup.sql. Returns the key of the server's catalog Messages, or None if it doesn't send any."""
        for line in run_script(self.setup):
            self.progress(line)
        [row] = ask_server(self.request.server, catalog_key.MAY_READ)
        if not row["may_read"]:
            return None
        [row] = ask_server(self.request.server, catalog_key.QUERY)
        return str(row["key"])

    def remove(self) -> None:
        for line in run_script(command("setup-remove.sql", self.request.server, slot=self.request.slot)):
            self.progress(line)

    def wait(self, receive: str) -> None:
        """Waits until a receiver has confirmed everything that is on the server now. Raises TryLaterError."""
        [row] = ask_server(self.request.server, _MARK)
        lsn = format_lsn(parse_lsn(row["lsn"]))
        end, is_told = time.monotonic() + self.request.wait.total_seconds(), False
        while (slot := self._slot())["confirmed"] is None or parse_lsn(slot["confirmed"]) < parse_lsn(lsn):
            if not slot["active"] and not is_told:
                self.progress(f"waiting for a receiver: run in another terminal: {receive}")
                is_told = True
            if time.monotonic() >= end:
                raise TryLaterError(
                    f"no receiver has confirmed {lsn} of the slot {self.request.slot}: start it, and run this again"
                )
            time.sleep(_POLL)

    def _slot(self) -> dict[str, Any]:
        of_slot = f"FROM pg_catalog.pg_replication_slots WHERE slot_name = {literal(self.request.slot)}"
        [row] = ask_server(self.request.server, f"SELECT confirmed_flush_lsn::text AS confirmed, active {of_slot}")
        return row

    def remarks(self) -> list[str]:
        [row] = ask_server(self.request.server, "SELECT current_setting('max_slot_wal_keep_size', true) AS size")
        return [_NO_LIMIT] if row["size"] == "-1" else []


def is_sent(table: SourceTable) -> bool:
    """True if a publication for all tables includes the table's rows."""
    return table.is_logged and not table.is_root


def has_publication(facts: SourceServer) -> bool:
    return any(publication.name == DEFAULT_NAME for publication in facts.publications)


def has_slot(facts: SourceServer, name: str) -> bool:
    return any(slot.name == name for slot in facts.slots)
