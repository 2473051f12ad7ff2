"""The options of the verify job, and checks that don't need Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated

from pgoutput_etl.answers.moment.request import MOMENT
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.identifiers import pattern_of
from pgoutput_etl.lsn import format_lsn
from pgoutput_etl.moment import At, Moment
from pgoutput_etl.options import (
    INTERVAL,
    LSN,
    NAMES,
    NUMBER,
    PATH,
    PATTERNS,
    URL,
    Former,
    Option,
    Value,
    takes_former_names,
)
from pgoutput_etl.postgres.connection import server_url

_TABLE = Value("SCHEMA.TABLE", lambda name: (pattern_of(name),))


@takes_former_names
@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """Exactly one of server, jdbc, csv (a file, folder, or glob), and delta is the other side. jdbc: a server that is
    not being written to; otherwise, commits that are not applied yet show up as differences. at: the commit that csv or
    delta represents."""

    tables: Annotated[
        tuple[str, ...] | None,
        Option("tables to compare, as schema.table; with --csv and --delta, one", PATTERNS),
        Former("--table", "table", _TABLE),
    ] = None
    server: Annotated[str | None, Option("a server in use, as libpq's URL; PGUSER, PGPASSWORD … count", URL)] = None
    begin: Annotated[bool, Option("with --server: only ask the server")] = False
    finish: Annotated[bool, Option("only compare what the server was asked, once an apply has passed it")] = False
    wait: Annotated[timedelta | None, Option("wait until an apply has passed it", INTERVAL)] = None
    since: Annotated[
        bool,
        Option(
            "with --server: compare only ranges of keys with rows written since the table was last found equal; damage "
            "elsewhere stays unseen"
        ),
    ] = False
    repair: Annotated[bool, Option("with --server: write the rows that are found to differ, and nothing else")] = False
    publications: Annotated[
        tuple[str, ...],
        Option("with a server: the slot's publications (default: all)", NAMES),
        Former("--publication"),
    ] = ()
    checks_only: Annotated[bool, Option("with --server: print a checklist; compare nothing", name="--check")] = False
    jdbc: Annotated[str | None, Option("a server that nobody writes to, as JDBC's URL: compared at once", URL)] = None
    csv: Annotated[str | None, Option("output of COPY … TO … WITH (FORMAT csv, HEADER)", PATH)] = None
    delta: Annotated[
        str | None,
        Option("another Delta table's current version: a folder, or `catalog`.`schema`.`table`", PATH),
    ] = None
    at: Annotated[
        At | None,
        Option("as of which --csv or --delta was taken: an LSN, a time, or a commit by its xid:8412", MOMENT),
        Former("--at-lsn", "at_lsn", LSN),
    ] = None
    keys: Annotated[bool, Option("print the keys of the listed rows")] = False
    values: Annotated[bool, Option("print all values of the listed rows")] = False
    limit: Annotated[int, Option("differing rows to list per table", NUMBER)] = 3
    connections: Annotated[int, Option("parallel connections", NUMBER)] = 4

    def check(self) -> None:
        """Raises ConfigError for options that can't be combined."""
        sides = sum(side is not None for side in (self.server, self.jdbc, self.csv, self.delta))
        if sides != 1 and not (self.finish and not sides):
            raise ConfigError("expected one of --server, --jdbc, --csv and --delta")
        if not self.is_live and (self.checks_only or self.begin or self.wait is not None or self.since or self.repair):
            raise ConfigError("--check, --begin, --finish, --wait, --since and --repair are for --server")
        if self.of_server:
            self._check_server()
        elif self.publications or self.tables is None:
            raise ConfigError("--csv and --delta hold one table: expected --tables schema.table")
        elif self.at is not None:
            Moment.of(self.at)
        if self.limit < 0 or not 1 <= self.connections <= 64:
            raise ConfigError("expected --limit 0 or more, and --connections from 1 to 64")

    def _check_server(self) -> None:
        if self.at is not None:
            raise ConfigError("--at is for --csv and --delta; a server is compared as of its own moment")
        if self.checks_only and (self.server is None or self.begin or self.finish or self.wait or self.repair):
            raise ConfigError("--check: expected --server, without --begin, --finish, --wait and --repair")
        if self.begin and (self.finish or self.wait is not None or self.repair):
            raise ConfigError("--begin only asks: --finish, in a later run, compares; --wait and --repair are for it")
        if self.finish and (self.tables or self.publications or self.since):
            raise ConfigError("--finish compares the tables that the server was asked for")
        if not self.finish or self.server is not None:
            _ = self.url

    @property
    def has_side(self) -> bool:
        return (self.server, self.jdbc, self.csv, self.delta) != (None,) * 4

    @property
    def is_live(self) -> bool:
        """True for a server in use, whose answers are compared later."""
        return self.server is not None or self.finish

    @property
    def of_server(self) -> bool:
        return self.is_live or self.jdbc is not None

    @property
    def url(self) -> str:
        """The server's URL, for libpq. Raises ConfigError."""
        return server_url(self.server or self.jdbc or "")


def batch_at(points: Sequence[tuple[int, int]], lsn: int) -> tuple[int, int]:
    """The last batch that ended at or before an LSN, and the LSN at which it ended. points: (batch, last commit LSN) of
    finished batches. Raises RunError if all of them ended later."""
    batch = max(((end, number) for number, end in points if end <= lsn), default=None)
    if batch is None:
        first = min((end for _, end in points), default=None)
        why = "no batch is done yet" if first is None else f"the first batch ended at {format_lsn(first)}"
        raise RunError(f"--at {format_lsn(lsn)}: no batch ended at or before it; {why}")
    return batch[1], batch[0]


def refuse_commits_between(lsn: int, reached: int, next_commit: int | None) -> None:
    """Raises RunError if commits between the batch and the LSN were applied together with later ones."""
    if next_commit is not None:
        raise RunError(
            f"--at {format_lsn(lsn)}: no batch ended there. The batch before it ended at {format_lsn(reached)}, "
            f"and the next batch applied the commit at {format_lsn(next_commit)}. Take the rows at an LSN at which a "
            "run ends (its --endpos), or without writes until the next run"
        )
