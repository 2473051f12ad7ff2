"""What a backfill is asked for."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.identifiers import is_catalog_place


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """What the operator asks for. tables: shell patterns of schema.table; None stands for all that are held.

    first_lsn, last_lsn: commit LSNs, included; None for the archive's beginning and for the last commit applied.
    first_time, last_time: the same by times of commits, with a zone. into: a folder to build beside. since_version: the
    Delta version to begin with in place of the archive's beginning.
    """

    tables: tuple[str, ...] | None
    first_lsn: int | None = None
    last_lsn: int | None = None
    first_time: datetime | None = None
    last_time: datetime | None = None
    into: str | None = None
    since_version: int | None = None

    def check(self) -> None:
        """Raises ConfigError for what can't be asked together."""
        begins = self.first_lsn is not None or self.first_time is not None
        ends = self.last_lsn is not None or self.last_time is not None
        if self.first_lsn is not None and self.first_time is not None:
            raise ConfigError("--from-lsn and --from-time: expected one of them")
        if self.last_lsn is not None and self.last_time is not None:
            raise ConfigError("--to-lsn and --to-time: expected one of them")
        if self.into is not None and begins:
            raise ConfigError(
                "--into: a table as of a commit is built from its beginning; expected no --from-lsn, --from-time"
            )
        if self.into is not None and is_catalog_place(self.into):
            raise ConfigError("--into: expected a folder, also where target.catalog is set")
        if self.since_version is not None and (begins or (ends and self.into is None)):
            raise ConfigError("--since-version: a table is rebuilt whole; expected no range of commits")
        if self.tables is None and (begins or ends or self.into is not None or self.since_version is not None):
            raise ConfigError(
                "--from-quarantine: tables are rebuilt whole; expected no range, no --into, no --since-version"
            )


@dataclass(frozen=True, slots=True)
class BackfillOrder:
    """A request in the ledger's terms, as the batch's row has it. anew: all that is held, with the archive assembled
    anew (redriving.py)."""

    oids: tuple[int, ...]
    first_lsn: int | None
    last_lsn: int | None
    since_version: int | None
    anew: bool = False

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BackfillOrder:
        fields = json.loads(text)
        return cls(**{**fields, "oids": tuple(fields["oids"])})

    @property
    def is_range(self) -> bool:
        return self.first_lsn is not None or self.last_lsn is not None
