"""Measures a run and publishes its results."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from pgoutput_etl.config.settings import Metrics, Notify
from pgoutput_etl.errors import TryLaterError
from pgoutput_etl.exit_codes import EXIT_TRY_LATER, exit_code_of
from pgoutput_etl.load.summary import NO_CHANGES, ROW_OPERATIONS, ChangedTables, TableSummary
from pgoutput_etl.outputs.ended_run import (
    APPLY,
    ConditionMetrics,
    EndedRun,
    RunMetrics,
    TableMetrics,
    WrittenTable,
)
from pgoutput_etl.outputs.publish import RunPublisher
from pgoutput_etl.places import Place
from pgoutput_etl.targets.column_descriptions import TargetColumn
from pgoutput_etl.targets.condition import TableCondition
from pgoutput_etl.timestamps import time_of
from pgoutput_etl.work.files.report import RunReport, RunSummary


@dataclass(slots=True)
class StageTimer:
    """Seconds by stage. A stage ends where the next one begins."""

    clock: Callable[[], float] = time.monotonic
    seconds: dict[str, float] = field(default_factory=dict)
    _stage: str | None = None
    _since: float = 0.0
    _lap: dict[str, float] = field(default_factory=dict)

    def start(self, stage: str | None) -> None:
        """stage: None if the time that follows belongs to no stage."""
        now = self.clock()
        if self._stage is not None:
            self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now

    def lap(self) -> dict[str, float]:
        """Seconds by stage since the last lap, including the current stage so far."""
        self.start(self._stage)
        lap = {stage: seconds - self._lap.get(stage, 0.0) for stage, seconds in self.seconds.items()}
        self._lap = dict(self.seconds)
        return {stage: seconds for stage, seconds in lap.items() if seconds > 0}


@dataclass(slots=True)
class RunRecorder:
    """Measures a run from this object's creation on, and publishes its metrics and lineage.

    is_look: the run is one of many polls; polls that find nothing are not part of the lineage. job: `done` is for
    apply, `job_done` for other jobs. If another job has to wait (exit code 75), its previous run's metrics are kept.
    """

    source: str
    metrics: Metrics
    notify: Notify | None = None
    is_look: bool = False
    job: str = APPLY
    stages: StageTimer = field(default_factory=StageTimer)
    began: float = field(default_factory=time.monotonic)
    publisher: RunPublisher = field(init=False)

    def __post_init__(self) -> None:
        self.publisher = RunPublisher.of(self.source, self.metrics, self.notify, job=self.job)

    def __enter__(self) -> RunRecorder:
        if not self.is_look:
            self.publisher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, TryLaterError) and self.job != APPLY:
            self.publisher.abort()
        elif isinstance(error, Exception):
            metrics = failure_metrics(self.source, error, *self._measured())
            self.publisher.end(EndedRun(replace(metrics, job=self.job), error=error))
        elif error is not None:
            self.publisher.abort()

    def done(self, summaries: Sequence[RunSummary]) -> None:
        found_files = any(summary.files for summary in summaries)
        metrics = run_metrics(summaries, *self._measured())
        written = tuple(written_tables(summaries))
        self.publisher.end(EndedRun(metrics, written, found_nothing=self.is_look and not found_files))

    def job_done(self, exit_code: int, changed: ChangedTables = NO_CHANGES) -> None:
        if exit_code == EXIT_TRY_LATER and not changed.tables:
            self.publisher.abort()
            return
        _, seconds, now = self._measured()
        tables = _tables(changed.tables)
        metrics = RunMetrics(
            self.source,
            now.isoformat(),
            now.timestamp(),
            exit_code,
            seconds,
            rows=_changed_rows(tables),
            tables=tables,
            conditions=tuple(map(_condition, changed.conditions)),
            job=self.job,
        )
        written = ((table, changed.columns.get(table.name, ())) for table in changed.tables if table.held is None)
        self.publisher.end(EndedRun(metrics, tuple(_written(written))))

    def _measured(self) -> tuple[dict[str, float], float, datetime]:
        self.stages.start(None)
        return self.stages.seconds, time.monotonic() - self.began, datetime.now(timezone.utc)


def run_metrics(
    summaries: Sequence[RunSummary], stages: Mapping[str, float], seconds: float, now: datetime
) -> RunMetrics:
    """The metrics of a finished run."""
    last = summaries[-1]
    batches = [summary for summary in summaries if summary.files]
    tables = _tables(table for summary in summaries for table in summary.tables)
    commit = None if last.last_commit_time is None else time_of(last.last_commit_time)
    statuses = ("committed", "aborted", "resent", "refused", "quarantined")
    transactions = {status: sum(getattr(batch, f"{status}_transactions") for batch in batches) for status in statuses}
    return RunMetrics(
        last.source,
        now.isoformat(),
        now.timestamp(),
        RunReport(summaries).exit_code,
        seconds,
        dict(stages),
        batches=len(batches),
        files=sum(batch.files for batch in batches),
        bytes=sum(batch.bytes for batch in batches),
        content_bytes=_sums(batch.accounts for batch in batches),
        messages=_sums(batch.messages for batch in batches),
        logical_messages=_sums(batch.logical_messages for batch in batches),
        transactions={**transactions, "open": last.open_transactions},
        rows=_changed_rows(tables),
        tables=tables,
        conditions=tuple(map(_condition, last.conditions)),
        verified_through=last.verified_through,
        last_commit_lsn=last.last_commit_lsn or None,
        last_commit_timestamp=None if commit is None else commit.timestamp(),
        lag_seconds=last.lag(now),
    )


def failure_metrics(
    source: str, error: Exception, stages: Mapping[str, float], seconds: float, now: datetime
) -> RunMetrics:
    """Only names the error's class: its text is for people and may be long."""
    exit_code, name = exit_code_of(error), type(error).__name__
    return RunMetrics(source, now.isoformat(), now.timestamp(), exit_code, seconds, dict(stages), name)


def _condition(table: TableCondition) -> ConditionMetrics:
    mismatches = 0 if table.mismatches is None else table.mismatches.total
    return ConditionMetrics(table.schema, table.table, table.state.value, mismatches)


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for batch_counts in counts:
        total.update(batch_counts)
    return dict(total)


def _changed_rows(tables: Iterable[TableMetrics]) -> dict[str, int]:
    return {operation: sum(getattr(table, operation) for table in tables) for operation in ROW_OPERATIONS}


def _tables(summaries: Iterable[TableSummary]) -> tuple[TableMetrics, ...]:
    """One entry per name, even if several batches wrote the table."""
    by_name: dict[tuple[str, str], list[TableSummary]] = {}
    for table in summaries:
        by_name.setdefault((table.schema, table.table), []).append(table)
    metrics = []
    for (schema, table_name), tables in sorted(by_name.items()):
        held, rows = tables[-1].held is not None, tables[-1].rows
        inserted, updated, deleted = (sum(getattr(table, name) for table in tables) for name in ROW_OPERATIONS)
        metrics.append(TableMetrics(schema, table_name, None if held else rows, inserted, updated, deleted, held))
    return tuple(metrics)


def written_tables(summaries: Sequence[RunSummary]) -> list[WrittenTable]:
    return _written(
        (table, summary.columns[table.name])
        for summary in summaries
        for table in summary.tables
        if table.name in summary.columns
    )


def _written(tables: Iterable[tuple[TableSummary, tuple[TargetColumn, ...]]]) -> list[WrittenTable]:
    """One entry per name, even if several batches wrote the table."""
    by_name: dict[str, WrittenTable] = {}
    for table, columns in tables:
        rows = table.inserted + table.updated
        if table.name in by_name:
            rows += by_name[table.name].rows
        place = Place.parse(table.path)
        by_name[table.name] = WrittenTable(table.schema, table.table, place, table.version, rows, columns)
    return [written for _, written in sorted(by_name.items())]
