"""The options of the verify job, and the checks that need no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.options import LSN, NUMBER, PATH, PATTERNS, URL, Option, Value
from pgoutput_etl.postgres.connection import check_url


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """Exactly one of jdbc, csv (a file, folder, or glob), and delta is the other side."""

    tables: Annotated[tuple[str, ...] | None, Option("with --jdbc: tables to compare", PATTERNS)] = None
    jdbc: Annotated[str | None, Option("a live server; user and password come from PGUSER and PGPASSWORD", URL)] = None
    csv: Annotated[str | None, Option("output of COPY … TO … WITH (FORMAT csv, HEADER)", PATH)] = None
    delta: Annotated[
        str | None,
        Option("another Delta table's current version: a folder, or `catalog`.`schema`.`table`", PATH),
    ] = None
    table: Annotated[str | None, Option("with --csv and --delta: the table to compare", Value("SCHEMA.TABLE"))] = None
    at_lsn: Annotated[int | None, Option("the LSN at which --csv or --delta was taken", LSN)] = None
    keys: Annotated[bool, Option("print the keys of the listed rows")] = False
    values: Annotated[bool, Option("print all values of the listed rows")] = False
    limit: Annotated[int, Option("differing rows to list per table", NUMBER)] = 3
    connections: Annotated[int, Option("parallel connections", NUMBER)] = 4

    def check(self) -> None:
        """Raises ConfigError for options that don't go together."""
        if sum(side is not None for side in (self.jdbc, self.csv, self.delta)) != 1:
            raise ConfigError("expected one of --jdbc, --csv and --delta")
        if self.jdbc is None:
            if self.table is None or self.tables is not None:
                raise ConfigError("--csv and --delta hold one table: expected --table schema.table, not --tables")
        else:
            if self.table is not None:
                raise ConfigError("--table is for --csv and --delta; --jdbc takes --tables, with patterns")
            if self.at_lsn is not None:
                raise ConfigError("--at-lsn is for --csv and --delta; --jdbc always compares the current rows")
            check_url(self.jdbc)
        if self.limit < 0 or not 1 <= self.connections <= 64:
            raise ConfigError("expected --limit 0 or more, and --connections from 1 to 64")

    @property
    def against(self) -> str:
        """The other side for the report: a path, or a URL without its parameters."""
        return str(self.csv or self.delta or (self.jdbc or "").partition("?")[0])


def batch_at(points: Sequence[tuple[int, int]], lsn: int) -> tuple[int, int]:
    """The last batch that ended at or before an LSN, and the LSN at which it ended. points: (batch, last commit LSN) of
    finished batches. Raises RunError if all of them ended later."""
    batch = max(((end, number) for number, end in points if end <= lsn), default=None)
    if batch is None:
        first = min((end for _, end in points), default=None)
        why = "no batch is done yet" if first is None else f"the first batch ended at {format_lsn(first)}"
        raise RunError(f"--at-lsn {format_lsn(lsn)}: no batch ended at or before it; {why}")
    return batch[1], batch[0]


def refuse_commits_between(lsn: int, reached: int, next_commit: int | None) -> None:
    """Raises RunError if commits between the batch and the LSN were applied together with later ones."""
    if next_commit is not None:
        raise RunError(
            f"--at-lsn {format_lsn(lsn)}: no batch ended there. The batch before it ended at {format_lsn(reached)}, "
            f"and the next batch applied the commit at {format_lsn(next_commit)}. Take the rows at an LSN at which a "
            "night ends (its --endpos), or without writes until the next night"
        )
