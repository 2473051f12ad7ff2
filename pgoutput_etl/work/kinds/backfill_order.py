"""A backfill's order, as stored in its batch's row in the ledger, and its result."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from pgoutput_etl.ledger.archive import ReadFile
from pgoutput_etl.load.writer import TableResult


@dataclass(frozen=True, slots=True)
class BackfillOrder:
    """A request in the ledger's terms. anew: reassemble the archive and rebuild all held tables (redrive.py)."""

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

    def commits(self, last: int) -> tuple[int, int]:
        """The first and last LSN of the range. last: the last applied commit."""
        return self.first_lsn or 0, last if self.last_lsn is None else self.last_lsn

    @property
    def is_range(self) -> bool:
        return self.first_lsn is not None or self.last_lsn is not None


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """batch: 0 for copies, and if nothing was done. lsn: the last commit. files: those read for each table, by OID.
    skipped: names of tables that the configuration skips. reasons: why a table was rebuilt whole; None if only the rows
    of a range were repaired."""

    batch: int
    lsn: int
    tables: Collection[TableResult]
    files: Mapping[int, list[ReadFile]]
    skipped: Sequence[str]
    reasons: Mapping[int, str | None] = field(default_factory=dict)
