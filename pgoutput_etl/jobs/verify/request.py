"""What a verification was asked for, as far as it can be judged without looking at anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.postgres.connection import check_url

DEFAULT_LIMIT = 20


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """Exactly one of jdbc (a URL), csv (a file, folder or glob) and delta (a table's folder) is the other side. table:
    "schema.table", of the latter two. tables: shell patterns. at_lsn: at which a CSV or Delta table was taken."""

    tables: tuple[str, ...] | None = None
    jdbc: str | None = None
    csv: str | None = None
    delta: str | None = None
    table: str | None = None
    at_lsn: int | None = None
    values: bool = False
    limit: int = DEFAULT_LIMIT
    connections: int = 4

    def check(self) -> None:
        """Raises ConfigError for what can't be."""
        if sum(side is not None for side in (self.jdbc, self.csv, self.delta)) != 1:
            raise ConfigError("expected one of --jdbc, --csv and --delta: what to compare with")
        if self.jdbc is None:
            if self.table is None or self.tables is not None:
                raise ConfigError("--csv and --delta hold one table: expected --table schema.table, and no --tables")
        else:
            if self.table is not None:
                raise ConfigError("--table is for --csv and --delta; with --jdbc it is --tables, which takes patterns")
            if self.at_lsn is not None:
                raise ConfigError("--at-lsn is for --csv and --delta: a server is as of now")
            check_url(self.jdbc)
        if self.limit < 0 or not 1 <= self.connections <= 64:
            raise ConfigError("expected --limit 0 or more, and --connections from 1 to 64")

    @property
    def against(self) -> str:
        """For the report; of a URL without its parameters."""
        return str(self.csv or self.delta or (self.jdbc or "").partition("?")[0])


def batch_at(points: Sequence[tuple[int, int]], lsn: int) -> tuple[int, int]:
    """The batch that had reached an LSN, and no more than it, with its own. `points`: (batch, last commit LSN) of those
    that are done. Of several at one LSN the last. Raises RunError if all went further."""
    found = max(((at, batch) for batch, at in points if at <= lsn), default=None)
    if found is None:
        first = min((at for _, at in points), default=None)
        reached = "no batch is done yet" if first is None else f"the first batch ended at {format_lsn(first)}"
        raise RunError(f"--at-lsn {format_lsn(lsn)}: {reached}, and none before")
    return found[1], found[0]


def refuse_between(lsn: int, reached: int, next_commit: int | None) -> None:
    """Raises RunError if commits between the batch and the LSN were applied together with later ones."""
    if next_commit is not None:
        raise RunError(
            f"--at-lsn {format_lsn(lsn)}: no batch ended there. The one before ended at {format_lsn(reached)}, and the "
            f"commit at {format_lsn(next_commit)} was applied by the next one. Take the rows at an LSN that a night "
            "ends at (its --endpos), or without writes until the next night"
        )
