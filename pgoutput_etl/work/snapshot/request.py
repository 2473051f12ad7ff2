"""The options of the snapshot job."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, ClassVar

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.identifiers import is_chosen
from pgoutput_etl.options import FILE, FOLDER, LSN, NAME, NAMES, NUMBER, PATH, PATTERNS, TIME, URL, Former, Option
from pgoutput_etl.postgres.connection import server_url


class RowFormat(Enum):
    """The format of files; the option's name selects it."""

    CSV = "csv"
    BINARY = "copy"
    DUMP = "dump"


_SNAPSHOT = re.compile(r"[0-9A-Fa-f]+(-[0-9A-Fa-f]+)+")

_CSV, _BINARY, _DUMP = (("format", own) for own in RowFormat)


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """snapshot: the name of an exported snapshot; by default, the job exports one. files, format: the rows as of `lsn`,
    whose time is `time`."""

    tables: Annotated[tuple[str, ...], Option("schema.table, as shell patterns; !PATTERN leaves out", PATTERNS)]
    lsn: Annotated[int | None, Option("the LSN of the rows; not needed with --server alone", LSN)] = None
    server: Annotated[
        str | None,
        Option("a server, as libpq's URL; PGUSER, PGPASSWORD … count", URL),
        Option("the same, as JDBC's URL", URL, "--jdbc"),
    ] = None
    snapshot: Annotated[str | None, Option("with --server: an exported snapshot as of --lsn", NAME)] = None
    files: Annotated[
        str | None,
        Option("one table from COPY … TO … WITH (FORMAT csv, HEADER)", PATH, "--csv", also=(_CSV,)),
        Option("one table from COPY … TO … WITH (FORMAT binary)", PATH, "--copy", also=(_BINARY,)),
        Option("the output of pg_dump -Fd", FOLDER, "--dump", also=(_DUMP,)),
    ] = None
    format: RowFormat = RowFormat.CSV
    columns: Annotated[tuple[str, ...], Option("with --copy: the files' columns, if not all", NAMES)] = ()
    time: Annotated[datetime | None, Option("the time of that LSN: ISO 8601, UTC if no zone", TIME)] = None
    catalog: Annotated[str | None, Option("with files: the output of --catalog-query", FILE)] = None
    publications: Annotated[
        tuple[str, ...], Option("the slot's publications (default: all)", NAMES), Former("--publication")
    ] = ()
    connections: Annotated[int, Option("parallel connections", NUMBER)] = 4
    slot: Annotated[str | None, Option("with --server: the receiver's slot, if the database has several", NAME)] = None
    slot_lsn: Annotated[int | None, Option("with --lsn: the LSN that the slot's creation returned", LSN)] = None
    checks_only: Annotated[bool, Option("with --server: print a checklist; load nothing", name="--check")] = False
    repair: Annotated[bool, Option("with --server: write only the rows that differ, while other runs continue")] = False
    allows_missing: ClassVar[bool] = False

    def check(self) -> None:
        """Raises ConfigError for options that are missing or mutually exclusive."""
        if (self.server is None) == (self.files is None):
            raise ConfigError("expected one of --server, --csv, --copy and --dump")
        if self.server is not None:
            server_url(self.server)
        if self.repair and (self.server is None or self.snapshot is not None or self.checks_only):
            raise ConfigError(
                "--repair: expected --server, without --snapshot, --lsn and --check: it compares tables itself"
            )
        if self.server is not None and not self.checks_only and (self.snapshot is None) != (self.lsn is None):
            raise ConfigError(
                "--snapshot and --lsn: expected both, as CREATE_REPLICATION_SLOT returned them, or neither"
            )
        if self.files is not None and self.lsn is None:
            raise ConfigError("--lsn: expected the LSN at which the rows were taken, see docs/snapshot.md")
        if self.files is not None and self.snapshot is not None:
            raise ConfigError("--snapshot: expected only with --server")
        if self.snapshot is not None and _SNAPSHOT.fullmatch(self.snapshot) is None:
            raise ConfigError("--snapshot: expected the snapshot's name from the server, such as 00000003-00000017-1")
        if self.server is not None and self.catalog is not None:
            raise ConfigError("--catalog: expected only with files; --server queries the server")
        self._check_slot()
        if self.columns and self.format is not RowFormat.BINARY:
            raise ConfigError("--columns: expected only with --copy; other formats name their columns")
        if not 1 <= self.connections <= 64:
            raise ConfigError(f"--connections: expected 1 to 64, not {self.connections}")
        if not self.tables:
            raise ConfigError("--tables: expected one or more patterns of schema.table")

    def _check_slot(self) -> None:
        if self.checks_only and self.server is None:
            raise ConfigError("--check: expected --server, the server to check; --lsn is the LSN of files")
        if self.slot is not None and self.server is None:
            raise ConfigError("--slot: expected only with --server; with files, --slot-lsn tells where the slot began")
        if self.slot_lsn is not None and self.lsn is None:
            raise ConfigError("--slot-lsn: expected only with --lsn, with which it is compared")

    @property
    def url(self) -> str:
        """The server's URL, for libpq."""
        return server_url(self.server or "")

    @property
    def exported(self) -> tuple[str, int] | None:
        """The name and LSN of a snapshot that was exported elsewhere."""
        return None if self.snapshot is None or self.lsn is None else (self.snapshot, self.lsn)

    def wants(self, name: str) -> bool:
        """name: schema.table."""
        return is_chosen(name, self.tables)


class AutomaticRequest(SnapshotRequest):
    """A request for tables that may have been dropped on the server: a pattern that matches no table is not an
    error."""

    allows_missing: ClassVar[bool] = True
