"""A standby of a server that streams from it, keeps its failover slots, and can be promoted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.servers.postgres import Server

SLOT = "standby"


class Standby(Server):
    """A standby of `primary` (PostgreSQL 17 or newer), which gets a physical slot for it."""

    def __init__(self, primary: Server) -> None:
        self.primary = primary
        super().__init__(primary.version, _settings(primary))

    def _make(self, data: Path) -> None:
        with self.primary.connect() as connection:
            connection.execute("select pg_create_physical_replication_slot(%s, true)", (SLOT,))
        self._run(
            [
                "pg_basebackup",
                "--dbname",
                self.primary.conninfo,
                "--pgdata",
                str(data),
                "--slot",
                SLOT,
                "--checkpoint=fast",
            ],
            as_server=True,
        )
        (data / "standby.signal").touch()

    def promote(self) -> None:
        with self.connect() as connection:
            connection.execute("select pg_promote(true, 60)")


def _settings(primary: Server) -> Mapping[str, str]:
    return {
        "primary_conninfo": f"host={primary.folder} port={primary.port} user=postgres dbname=postgres",
        "primary_slot_name": SLOT,
        "hot_standby_feedback": "on",
        "sync_replication_slots": "on",
        "wal_receiver_status_interval": "1s",
    }
