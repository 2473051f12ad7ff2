"""Finds the first commit that makes a query return rows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.answers.moment.read import MomentReader, archive_of
from pgoutput_etl.config.settings import Config
from pgoutput_etl.console import Progress, counted, no_progress
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.extras import installing
from pgoutput_etl.identifiers import pattern_of
from pgoutput_etl.ledger.as_of import Tables
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.lsn import format_lsn, parse_lsn

if TYPE_CHECKING:
    from pgoutput_etl.answers.moment.question import Question


@dataclass(frozen=True, slots=True)
class FirstCommit:
    """A commit that makes a query return rows: before it, the query returned none.

    xid, time, origin: those of its transaction, or None if the ledger no longer has its record; origin is also None for
    a local transaction. rows: the query's rows as of the commit. tables: the tables that it names, as of the commit.
    probes: how often the query ran.
    """

    lsn: int
    xid: int | None
    time: datetime | None
    origin: str | None
    rows: DataFrame
    tables: Tables
    probes: int

    def __str__(self) -> str:
        parts = [format_lsn(self.lsn)]
        parts += [] if self.xid is None else [f"transaction {self.xid}"]
        parts += [] if self.time is None else [f"at {self.time:%Y-%m-%d %H:%M:%S.%f} UTC"]
        parts += [] if self.origin is None else [f"from {self.origin}"]
        return ", ".join(parts)


def bisect(
    spark: SparkSession,
    config: Config,
    query: str,
    *,
    first: int | str | None = None,
    last: int | str | None = None,
    progress: Progress = no_progress,
) -> FirstCommit:
    """Finds the first commit that makes a query return rows, by bisection: first among the ends of batches, whose rows
    Delta has, then among the commits of one batch.

    query: a SELECT in Spark's SQL, with tables as schema.table. first, last: LSNs of the commits to search between, as
    numbers or in PostgreSQL's text form; by default all applied commits. As of a commit before one of the tables or
    columns existed, the query counts as having no rows. If rows come and go, the result is one of the commits at which
    they appeared. progress: receives a line each time the query runs.

    Raises ConfigError for anything that is not a query, for tables that the archive doesn't have, and without sqlglot;
    RunError if the query returns no rows at the end, or has rows at the beginning.
    """
    try:
        from pgoutput_etl.answers.moment.question import Question
    except ModuleNotFoundError as error:
        raise ConfigError(f"bisect has no module {error.name}: {installing('bisect')}") from None
    question = Question.of(query)
    archive = archive_of(spark, config)
    reached = archive.last.last_commit_lsn
    high = reached if last is None else min(_lsn(last), reached)
    low = 0 if first is None else _lsn(first) - 1
    if low >= high:
        raise ConfigError(f"there is no commit from {format_lsn(low + 1)} to {format_lsn(high)}")
    return _Search(archive, MomentReader(spark, archive, progress), question, progress).run(low, high)


def _lsn(value: int | str) -> int:
    return parse_lsn(value) if isinstance(value, str) else value


@contextmanager
def _without_log() -> Iterator[None]:
    """Keeps Spark from logging a column that doesn't exist yet as an error, with the whole plan."""
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")  # the first caller decides its class
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


@dataclass(slots=True)
class _Search:
    archive: DeltaArchive
    reader: MomentReader
    question: Question
    progress: Progress
    probes: int = 0
    unknown: dict[int, str] = field(default_factory=dict)

    def run(self, low: int, high: int) -> FirstCommit:
        if not self._has_rows(high, is_last=True):
            raise RunError(f"the query returns no rows as of {format_lsn(high)}, the last commit to look at")
        if low and self._has_rows(low):
            raise RunError(
                f"the query returns rows already before {format_lsn(low + 1)}: look from an earlier commit on"
            )
        ends = [end for end in self.archive.ledger.batches.ends() if low < end < high]
        low, high = self._narrowed(low, ends, high)
        self.reader = replace(self.reader, through=high)
        commits = [lsn for lsn in self.reader.commits(low, self._patterns) if lsn > low]
        self.progress(
            f"looking between {counted(len(commits), 'commit')}, from {format_lsn(low)} to {format_lsn(high)}"
        )
        low, high = self._narrowed(low, [lsn for lsn in commits if lsn < high], high)
        if low in self.unknown:
            raise RunError(
                f"the query returns rows as of the snapshot of {self.unknown[low]}, before which its rows are not known"
            )
        return self._result(high)

    def _narrowed(self, low: int, between: Sequence[int], high: int) -> tuple[int, int]:
        """Two neighbors in [low, *between, high]; the query has rows as of the second but not as of the first."""
        place = bisect_left(between, True, key=self._has_rows)
        return between[place - 1] if place else low, between[place] if place < len(between) else high

    @property
    def _patterns(self) -> list[str]:
        return [pattern_of(name) for name in self.question.views]

    def _has_rows(self, lsn: int, is_last: bool = False) -> bool:
        """True if the query returns rows as of a commit. is_last: a missing table or column is an error; otherwise, the
        query has no rows."""
        self.probes += 1
        found = self._answer(self._tables(lsn), lsn, is_last)
        answer = "rows" if found else "no rows"
        self.progress(f"probe {self.probes}: as of {format_lsn(lsn)}, the query returns {answer}")
        return found

    def _tables(self, lsn: int) -> Tables:
        return self.reader.read(lsn, self._patterns)

    def _answer(self, tables: Tables, lsn: int, is_last: bool) -> bool:
        missing = sorted(self.question.views.keys() - tables.keys())
        if missing and is_last:
            raise ConfigError(f"query: {missing[0]} does not exist as of {format_lsn(lsn)}")
        if missing:
            if name := next((name for name in missing if name in tables.ahead), None):
                self.unknown[lsn] = name
            return False
        try:
            with _without_log(), self.question.asked(tables) as rows:
                return not rows.limit(1).isEmpty()
        except AnalysisException as error:
            if is_last:
                raise ConfigError(f"query: Spark refuses it: {str(error).splitlines()[0]}") from None
            if not str(error.getCondition()).startswith("UNRESOLVED_COLUMN"):
                raise
            return False

    def _result(self, lsn: int) -> FirstCommit:
        tables = self._tables(lsn)
        with self.question.asked(tables) as rows:
            rows = rows.localCheckpoint()  # the views are dropped afterwards
        return FirstCommit(lsn, *self.archive.transaction_at(lsn), rows, tables, self.probes)
