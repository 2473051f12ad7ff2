"""The options of the backfill job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pgoutput_etl.answers.moment.request import AsOf
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.options import LSN, NUMBER, PATTERNS, TIME, Former, Option, Value, takes_former_names
from pgoutput_etl.places import Place


@takes_former_names
@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """The range is inclusive; by default, it extends from the archive's beginning to the last applied commit."""

    tables: Annotated[
        tuple[str, ...] | None,
        Option("schema.table, as shell patterns; !PATTERN leaves out", PATTERNS),
        Option("rebuild all held tables", name="--from-quarantine", means=None),
    ]
    from_lsn: Annotated[
        int | None, Option("the range's first commit, such as 16/B374D848", LSN), Former(keyword="first_lsn")
    ] = None
    to_lsn: Annotated[int | None, Option("the range's last commit", LSN), Former(keyword="last_lsn")] = None
    from_time: Annotated[
        datetime | None,
        Option("the first commit by time: ISO 8601, UTC if no zone", TIME),
        Former(keyword="first_time"),
    ] = None
    to_time: Annotated[datetime | None, Option("the last commit by time", TIME), Former(keyword="last_time")] = None
    out: Annotated[
        str | None,
        Option("only build ROOT/schema/table, as of --at, --to-lsn, or --to-time", Value("ROOT")),
        Former("--into", "into"),
    ] = None
    since_version: Annotated[int | None, Option("start from the table's Delta version N, not from nothing", NUMBER)] = (
        None
    )
    at: AsOf = None

    def check(self) -> None:
        """Raises ConfigError for options that are mutually exclusive."""
        begins = self.from_lsn is not None or self.from_time is not None
        ends = self.to_lsn is not None or self.to_time is not None
        if self.from_lsn is not None and self.from_time is not None:
            raise ConfigError("--from-lsn and --from-time: expected one of them")
        if self.to_lsn is not None and self.to_time is not None:
            raise ConfigError("--to-lsn and --to-time: expected one of them")
        if self.at is not None and (self.out is None or ends):
            raise ConfigError("--at: expected with --out, and without --to-lsn and --to-time")
        if self.out is not None and begins:
            raise ConfigError("--out: builds tables from their beginning; expected no --from-lsn, --from-time")
        if self.out is not None and Place.parse(self.out).is_in_catalog:
            raise ConfigError("--out: expected a folder, even if target.catalog is set")
        if self.since_version is not None and (begins or (ends and self.out is None)):
            raise ConfigError("--since-version: rebuilds whole tables; expected no range of commits")
        if self.tables is None and (begins or ends or self.out is not None or self.since_version is not None):
            raise ConfigError(
                "--from-quarantine: rebuilds whole tables; expected no range, no --out, no --since-version"
            )
