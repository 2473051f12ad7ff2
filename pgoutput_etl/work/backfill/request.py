"""The options of the backfill job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.options import LSN, NUMBER, PATTERNS, TIME, Option, Value
from pgoutput_etl.places import Place


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """The range is inclusive: from the archive's beginning to the last applied commit, by default."""

    tables: Annotated[
        tuple[str, ...] | None,
        Option("schema.table, as shell patterns; !PATTERN leaves out", PATTERNS),
        Option("rebuild all held tables", name="--from-quarantine", means=None),
    ]
    first_lsn: Annotated[int | None, Option("the range's first commit, such as 16/B374D848", LSN, "--from-lsn")] = None
    last_lsn: Annotated[int | None, Option("the range's last commit", LSN, "--to-lsn")] = None
    first_time: Annotated[
        datetime | None, Option("the first commit by time: ISO 8601, UTC if no zone", TIME, "--from-time")
    ] = None
    last_time: Annotated[datetime | None, Option("the last commit by time", TIME, "--to-time")] = None
    into: Annotated[str | None, Option("only build ROOT/schema/table, as of the range's end", Value("ROOT"))] = None
    since_version: Annotated[int | None, Option("start from the table's Delta version N, not from nothing", NUMBER)] = (
        None
    )

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
