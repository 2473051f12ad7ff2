"""The options of the snapshot job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import ClassVar

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.identifiers import is_chosen
from pgoutput_etl.postgres.connection import check_url


class RowFormat(Enum):
    """The format of files, by the option that names them."""

    CSV = "csv"
    BINARY = "copy"
    DUMP = "dump"


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """tables: shell patterns of schema.table, as for identifiers.is_chosen.

    jdbc: a server's URL. snapshot: the name of an exported snapshot as of `lsn`; without it the job exports one.
    files, format: files with the rows as of `lsn`. columns: of binary files. time: of `lsn`. catalog: a file with the
    result of postgres.catalog.QUERY. publications: the slot's; empty for all. connections: parallel ones to the server.
    slot: the receiver's. slot_lsn: the LSN that its creation returned. checks_only: print the checklist, load nothing.
    repair: write only the rows that differ.
    """

    tables: tuple[str, ...]
    lsn: int | None = None
    jdbc: str | None = None
    snapshot: str | None = None
    files: str | None = None
    format: RowFormat = RowFormat.CSV
    columns: tuple[str, ...] = ()
    time: datetime | None = None
    catalog: str | None = None
    publications: tuple[str, ...] = ()
    connections: int = 4
    slot: str | None = None
    slot_lsn: int | None = None
    checks_only: bool = False
    repair: bool = False
    allows_missing: ClassVar[bool] = False

    def check(self) -> None:
        """Raises ConfigError for options that are missing or exclude each other."""
        if (self.jdbc is None) == (self.files is None):
            raise ConfigError("expected one of --jdbc, --csv, --copy and --dump")
        if self.jdbc is not None:
            check_url(self.jdbc)
        if self.repair and (self.jdbc is None or self.snapshot is not None or self.checks_only):
            raise ConfigError(
                "--repair: expected --jdbc, without --snapshot, --lsn and --check: it compares tables itself"
            )
        if self.jdbc is not None and not self.checks_only and (self.snapshot is None) != (self.lsn is None):
            raise ConfigError(
                "--snapshot and --lsn: expected both, as CREATE_REPLICATION_SLOT returned them, or neither"
            )
        if self.files is not None and self.lsn is None:
            raise ConfigError("--lsn: expected the LSN at which the rows were taken, see docs/snapshot.md")
        if self.files is not None and self.snapshot is not None:
            raise ConfigError("--snapshot: expected only with --jdbc")
        if self.jdbc is not None and self.catalog is not None:
            raise ConfigError("--catalog: expected only with files; --jdbc queries the server")
        self._check_slot()
        if self.columns and self.format is not RowFormat.BINARY:
            raise ConfigError("--columns: expected only with --copy; other formats name their columns")
        if not 1 <= self.connections <= 64:
            raise ConfigError(f"--connections: expected 1 to 64, not {self.connections}")
        if not self.tables:
            raise ConfigError("--tables: expected one or more patterns of schema.table")

    def _check_slot(self) -> None:
        if self.checks_only and self.jdbc is None:
            raise ConfigError("--check: expected --jdbc, the server to check; --lsn is the LSN of files")
        if self.slot is not None and self.jdbc is None:
            raise ConfigError("--slot: expected only with --jdbc; with files, --slot-lsn tells where the slot began")
        if self.slot_lsn is not None and self.lsn is None:
            raise ConfigError("--slot-lsn: expected only with --lsn, with which it is compared")

    def wants(self, name: str) -> bool:
        """name: schema.table."""
        return is_chosen(name, self.tables)


class AutomaticRequest(SnapshotRequest):
    """Of tables that the server may have dropped: a pattern without a table is no error."""

    allows_missing: ClassVar[bool] = True
