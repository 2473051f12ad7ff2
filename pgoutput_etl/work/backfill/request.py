"""The options of the backfill job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.places import Place


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """tables: shell patterns of schema.table; None for all held tables.

    first_lsn, last_lsn: inclusive commit LSNs; None for the archive's beginning and for the last applied commit.
    first_time, last_time: the same as commit times with a zone. into: a folder to build in, instead of the target.
    since_version: the Delta version to start from, instead of the archive's beginning.
    """

    tables: tuple[str, ...] | None
    first_lsn: int | None = None
    last_lsn: int | None = None
    first_time: datetime | None = None
    last_time: datetime | None = None
    into: str | None = None
    since_version: int | None = None

    def check(self) -> None:
        """Raises ConfigError for options that exclude each other."""
        begins = self.first_lsn is not None or self.first_time is not None
        ends = self.last_lsn is not None or self.last_time is not None
        if self.first_lsn is not None and self.first_time is not None:
            raise ConfigError("--from-lsn and --from-time: expected one of them")
        if self.last_lsn is not None and self.last_time is not None:
            raise ConfigError("--to-lsn and --to-time: expected one of them")
        if self.into is not None and begins:
            raise ConfigError("--into: builds tables from their beginning; expected no --from-lsn, --from-time")
        if self.into is not None and Place.parse(self.into).is_in_catalog:
            raise ConfigError("--into: expected a folder, even if target.catalog is set")
        if self.since_version is not None and (begins or (ends and self.into is None)):
            raise ConfigError("--since-version: rebuilds whole tables; expected no range of commits")
        if self.tables is None and (begins or ends or self.into is not None or self.since_version is not None):
            raise ConfigError(
                "--from-quarantine: rebuilds whole tables; expected no range, no --into, no --since-version"
            )
