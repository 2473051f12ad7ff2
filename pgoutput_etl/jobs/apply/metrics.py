"""A run's metrics, published as JSON lines, a file for Prometheus' node exporter, or through OpenTelemetry; and its
lineage, through OpenLineage.

Metrics that can't be published cause a warning, not a failed run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from pgoutput_etl.config.settings import Metrics
from pgoutput_etl.console import print_warning
from pgoutput_etl.errors import ConfigError, brief
from pgoutput_etl.exit_codes import exit_code_of
from pgoutput_etl.file_access import PUBLIC
from pgoutput_etl.jobs.apply.lineage import LineageRun, check_lineage
from pgoutput_etl.jobs.apply.report import RunReport, RunSummary
from pgoutput_etl.jobs.apply.telemetry import Gauge, check_telemetry, export
from pgoutput_etl.load.summary import ROW_OPERATIONS, TableSummary
from pgoutput_etl.replace_file import replace_file
from pgoutput_etl.targets.condition import TableCondition
from pgoutput_etl.timestamps import time_of

STDERR = "stderr"

_LINEAGE = "metrics.openlineage"


@dataclass(slots=True)
class StageTimer:
    """Seconds by stage. A stage ends where the next one begins."""

    clock: Callable[[], float] = time.monotonic
    seconds: dict[str, float] = field(default_factory=dict)
    _stage: str | None = None
    _since: float = 0.0
    _lap: dict[str, float] = field(default_factory=dict)

    def start(self, stage: str | None) -> None:
        """stage: None if the following time belongs to no stage."""
        now = self.clock()
        if self._stage is not None:
            self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now

    def lap(self) -> dict[str, float]:
        """Seconds by stage since the last lap, with the current stage so far."""
        self.start(self._stage)
        lap = {stage: seconds - self._lap.get(stage, 0.0) for stage, seconds in self.seconds.items()}
        self._lap = dict(self.seconds)
        return {stage: seconds for stage, seconds in lap.items() if seconds > 0}


@dataclass(frozen=True, slots=True)
class TableMetrics:
    """rows: row count of the Delta table after the run; None if the table is held."""

    schema: str
    table: str
    rows: int | None
    inserted: int
    updated: int
    deleted: int
    held: bool


@dataclass(frozen=True, slots=True)
class ConditionMetrics:
    """A table that is not known to be consistent with the others after the run. mismatches: number of changes that
    contradict its rows."""

    schema: str
    table: str
    state: str
    mismatches: int


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """One run with all its batches. at, timestamp: the run's end. seconds: the run's duration; stages: the duration of
    each stage.

    bytes: size as landed. content_bytes: decompressed size by account. transactions: counts by status. lag_seconds:
    time from the archive's last commit to the run's end; None if no commit is known. error: the class of a failed run's
    error; such a run has no other metrics.
    """

    source: str
    at: str
    timestamp: float
    exit_code: int
    seconds: float
    stages: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    batches: int = 0
    files: int = 0
    bytes: int = 0
    content_bytes: dict[str, int] = field(default_factory=dict)
    messages: dict[str, int] = field(default_factory=dict)
    logical_messages: dict[str, int] = field(default_factory=dict)
    transactions: dict[str, int] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    tables: tuple[TableMetrics, ...] = ()
    conditions: tuple[ConditionMetrics, ...] = ()
    last_commit_lsn: int | None = None
    last_commit_timestamp: float | None = None
    lag_seconds: float | None = None

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


def run_metrics(
    summaries: Sequence[RunSummary], stages: Mapping[str, float], seconds: float, now: datetime
) -> RunMetrics:
    """The metrics of a finished run."""
    last = summaries[-1]
    batches = [summary for summary in summaries if summary.files]
    tables = _tables(summaries)
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
        rows={operation: sum(getattr(table, operation) for table in tables) for operation in ROW_OPERATIONS},
        tables=tables,
        conditions=tuple(map(_condition, last.conditions)),
        last_commit_lsn=last.last_commit_lsn or None,
        last_commit_timestamp=None if commit is None else commit.timestamp(),
        lag_seconds=last.lag(now),
    )


def failure_metrics(
    source: str, error: Exception, exit_code: int, stages: Mapping[str, float], seconds: float, now: datetime
) -> RunMetrics:
    """Only the error's class, as its text is for people and may be long."""
    name = type(error).__name__
    return RunMetrics(source, now.isoformat(), now.timestamp(), exit_code, seconds, dict(stages), name)


def _condition(table: TableCondition) -> ConditionMetrics:
    mismatches = 0 if table.mismatches is None else table.mismatches.total
    return ConditionMetrics(table.schema, table.table, table.state.value, mismatches)


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for batch_counts in counts:
        total.update(batch_counts)
    return dict(total)


def _tables(summaries: Sequence[RunSummary]) -> tuple[TableMetrics, ...]:
    """One entry per name, also for a table that several batches wrote."""
    by_name: dict[tuple[str, str], list[TableSummary]] = {}
    for summary in summaries:
        for table in summary.tables:
            by_name.setdefault((table.schema, table.table), []).append(table)
    metrics = []
    for (schema, table_name), tables in sorted(by_name.items()):
        held, rows = tables[-1].held is not None, tables[-1].rows
        inserted, updated, deleted = (sum(getattr(table, name) for table in tables) for name in ROW_OPERATIONS)
        metrics.append(TableMetrics(schema, table_name, None if held else rows, inserted, updated, deleted, held))
    return tuple(metrics)


def gauges(run: RunMetrics) -> list[Gauge]:
    """The gauges that have values. Each is about the last run, not a sum over runs."""
    described: list[tuple[str, str, Iterable[tuple[dict[str, str], float | None]]]] = [
        ("run_timestamp_seconds", "When the run ended, in seconds since 1970.", [({}, run.timestamp)]),
        (
            "run_exit_code",
            "0 done, 1 failed, 2 wrong configuration, 3 done with problems.",
            [({}, run.exit_code)],
        ),
        ("run_duration_seconds", "How long the run took.", [({}, run.seconds)]),
        ("run_stage_duration_seconds", "How long each stage of the run took.", _labeled("stage", run.stages)),
    ]
    if run.error is None:
        tables = [({"schema": table.schema, "table": table.table}, table) for table in run.tables]
        states = [({"schema": c.schema, "table": c.table, "state": c.state}, c) for c in run.conditions]
        changed = [
            ({**labels, "operation": operation}, getattr(table, operation))
            for labels, table in tables
            for operation in ROW_OPERATIONS
        ]
        described += [
            ("run_batches", "Batches that the run applied.", [({}, run.batches)]),
            ("run_files", "Landed files that the run read.", [({}, run.files)]),
            ("run_landed_bytes", "Bytes that the run read, as they landed.", [({}, run.bytes)]),
            ("run_content_bytes", "Decompressed bytes by account.", _labeled("account", run.content_bytes)),
            ("run_messages", "Messages that the run read, by type.", _labeled("type", run.messages)),
            ("run_transactions", "Transactions by status.", _labeled("fate", run.transactions)),
            ("run_table_rows", "Rows that the run changed, by table.", changed),
            ("table_rows", "Rows in the Delta table.", [(labels, table.rows) for labels, table in tables]),
            ("table_held", "1 if the table is held.", [(labels, table.held) for labels, table in tables]),
            ("table_state", "1 for each table that is held, diverged, or incomplete.", [(s, 1) for s, _ in states]),
            ("table_mismatches", "Changes that contradict its rows.", [(s, c.mismatches) for s, c in states]),
            ("last_commit_lsn", "LSN of the archive's last commit, as a number.", [({}, run.last_commit_lsn)]),
            ("last_commit_timestamp_seconds", "Time of the archive's last commit.", [({}, run.last_commit_timestamp)]),
            ("lag_seconds", "From the archive's last commit to the end of the run.", [({}, run.lag_seconds)]),
        ]
    known = []
    for name, description, samples in described:
        values = [({"source": run.source, **labels}, float(value)) for labels, value in samples if value is not None]
        known.append(Gauge(f"pgoutput_etl_{name}", description, values))
    return [gauge for gauge in known if gauge.values]


def _labeled(label: str, values: Mapping[str, float]) -> list[tuple[dict[str, str], float | None]]:
    return [({label: key}, value) for key, value in values.items()]


def prometheus_text(run: RunMetrics) -> str:
    """Prometheus' text format, version 0.0.4."""
    lines = []
    for gauge in gauges(run):
        lines += [f"# HELP {gauge.name} {gauge.description}", f"# TYPE {gauge.name} gauge"]
        for labels, value in gauge.values:
            pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{gauge.name}{{{pairs}}} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def check(metrics: Metrics) -> None:
    """Raises ConfigError if metrics could not be published. Called before a run does anything."""
    for key, path in (("json", metrics.json), ("prometheus", metrics.prometheus)):
        if path is None or (key == "json" and path == STDERR):
            continue
        folder = Path(path).absolute().parent
        if not folder.is_dir():
            raise ConfigError(f"metrics.{key}: expected a file in an existing folder")
        if Path(path).is_dir() or not os.access(folder, os.W_OK):
            raise ConfigError(f"metrics.{key}: expected a file that can be written")
    if metrics.opentelemetry:
        check_telemetry()
    if metrics.openlineage is not None:
        check_lineage()


def publish(run: RunMetrics, metrics: Metrics, warn: Callable[[str], None]) -> None:
    """Raises no errors: failures are passed to `warn`."""
    lines, prometheus = metrics.json, metrics.prometheus
    if lines is not None:
        _try(warn, "metrics.json", lambda: _append(lines, run.to_json()))
    if prometheus is not None:
        _try(warn, "metrics.prometheus", lambda: replace_file(Path(prometheus), prometheus_text(run), PUBLIC))
    if metrics.opentelemetry:
        _try(warn, "metrics.opentelemetry", lambda: export(gauges(run)))


def _try(warn: Callable[[str], None], key: str, write: Callable[[], None]) -> None:
    try:
        write()
    except Exception as error:  # noqa: BLE001 - the run is finished, whatever the error is
        warn(f"{key}: the run's metrics could not be published: {brief(error)}")


def _append(path: str, line: str) -> None:
    if path == STDERR:
        sys.stderr.write(f"{line}\n")
        return
    with Path(path).open("ab") as file:
        file.write(f"{line}\n".encode())


@dataclass(slots=True)
class RunRecorder:
    """Measures a run from this object's creation on, and publishes its metrics and its lineage.

    is_look: the run is one of many looks. A look that finds nothing is not part of the lineage.
    """

    source: str
    metrics: Metrics
    is_look: bool = False
    stages: StageTimer = field(default_factory=StageTimer)
    began: float = field(default_factory=time.monotonic)
    lineage: LineageRun | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        if self.metrics.openlineage is not None:
            self.lineage = LineageRun(self.source, self.metrics.openlineage)

    def __enter__(self) -> RunRecorder:
        if self.lineage is not None and not self.is_look:
            _try(print_warning, _LINEAGE, self.lineage.start)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        lineage = self.lineage
        if isinstance(error, Exception):
            self.stages.start(None)
            seconds, now = time.monotonic() - self.began, datetime.now(timezone.utc)
            run = failure_metrics(self.source, error, exit_code_of(error), self.stages.seconds, seconds, now)
            publish(run, self.metrics, print_warning)
            if lineage is not None:
                _try(print_warning, _LINEAGE, partial(lineage.fail, error))
        elif error is not None and lineage is not None and lineage.has_started:
            _try(print_warning, _LINEAGE, lineage.abort)

    def done(self, summaries: Sequence[RunSummary]) -> None:
        self.stages.start(None)
        seconds, now = time.monotonic() - self.began, datetime.now(timezone.utc)
        publish(run_metrics(summaries, self.stages.seconds, seconds, now), self.metrics, print_warning)
        found_files = any(summary.files for summary in summaries)
        if self.lineage is not None and (found_files or not self.is_look):
            _try(print_warning, _LINEAGE, partial(self.lineage.complete, summaries))
