"""What a run measured, and where it is told: JSON lines, a file for Prometheus' node exporter, OpenTelemetry.

A run that is done stays done whatever becomes of its figures: where they can't be told, that is said.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from pgoutput_etl.config.settings import Metrics
from pgoutput_etl.console import exit_code_of, print_warning
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.jobs.apply.report import RunSummary, exit_code_of_run
from pgoutput_etl.jobs.apply.telemetry import check_telemetry, export
from pgoutput_etl.load.summary import TableSummary
from pgoutput_etl.timestamps import time_of

STDERR = "stderr"


@dataclass(slots=True)
class StageTimer:
    """Seconds by stage, each begun where the one before it ends."""

    clock: Callable[[], float] = time.monotonic
    seconds: dict[str, float] = field(default_factory=dict)
    _stage: str | None = None
    _since: float = 0.0

    def start(self, stage: str | None) -> None:
        """None: what follows is of no stage."""
        now = self.clock()
        if self._stage is not None:
            self.seconds[self._stage] = self.seconds.get(self._stage, 0.0) + now - self._since
        self._stage, self._since = stage, now


@dataclass(frozen=True, slots=True)
class TableFigures:
    """rows: in the Delta table after the run; None if it is held: it was left where it stood."""

    schema: str
    table: str
    rows: int | None
    inserted: int
    updated: int
    deleted: int
    held: bool


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run, of all its batches together. at: of its end. seconds: of all of it, and `stages`: of its parts.

    bytes: as landed; content_bytes: decompressed, by what became of them. transactions: by what became of them.
    lag_seconds: from the archive's last commit to the run's end; None where no commit is known. error: what kind of
    error a run failed with, of which nothing else is known.
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
    tables: tuple[TableFigures, ...] = ()
    last_commit_lsn: int | None = None
    last_commit_timestamp: float | None = None
    lag_seconds: float | None = None

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


def figures(summaries: Sequence[RunSummary], stages: Mapping[str, float], seconds: float, now: datetime) -> RunFigures:
    """Of a run that is done."""
    last = summaries[-1]
    done = [summary for summary in summaries if summary.files]
    tables = _tables(summaries)
    commit = None if last.last_commit_time is None else time_of(last.last_commit_time)
    return RunFigures(
        last.source,
        now.isoformat(),
        now.timestamp(),
        exit_code_of_run(summaries),
        seconds,
        dict(stages),
        batches=len(done),
        files=sum(summary.files for summary in done),
        bytes=sum(summary.bytes for summary in done),
        content_bytes=_summed(summary.accounts for summary in done),
        messages=_summed(summary.messages for summary in done),
        logical_messages=_summed(summary.logical_messages for summary in done),
        transactions={
            "committed": sum(summary.committed_transactions for summary in done),
            "aborted": sum(summary.aborted_transactions for summary in done),
            "resent": sum(summary.resent_transactions for summary in done),
            "refused": sum(summary.refused_transactions for summary in done),
            "quarantined": sum(summary.quarantined_transactions for summary in done),
            "open": last.open_transactions,
        },
        rows={what: sum(getattr(table, what) for table in tables) for what in ("inserted", "updated", "deleted")},
        tables=tables,
        last_commit_lsn=last.last_commit_lsn or None,
        last_commit_timestamp=None if commit is None else commit.timestamp(),
        lag_seconds=None if commit is None else (now - commit).total_seconds(),
    )


def figures_of_failure(
    source: str, error: Exception, exit_code: int, stages: Mapping[str, float], seconds: float, now: datetime
) -> RunFigures:
    """The error's kind alone: what it says is for people, and may be long."""
    kind = type(error).__name__
    return RunFigures(source, now.isoformat(), now.timestamp(), exit_code, seconds, dict(stages), kind)


def _summed(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _tables(summaries: Sequence[RunSummary]) -> tuple[TableFigures, ...]:
    """By name; a table that several batches wrote is one."""
    found: dict[tuple[str, str], list[TableSummary]] = {}
    for summary in summaries:
        for table in summary.tables:
            found.setdefault((table.schema, table.table), []).append(table)
    return tuple(
        TableFigures(
            *name,
            each[-1].rows if each[-1].held is None else None,
            sum(table.inserted for table in each),
            sum(table.updated for table in each),
            sum(table.deleted for table in each),
            each[-1].held is not None,
        )
        for name, each in sorted(found.items())
    )


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric; values by labels. All are gauges: what the last run did, not a sum over runs."""

    name: str
    help: str
    values: tuple[tuple[dict[str, str], float], ...]


def families(run: RunFigures) -> list[MetricFamily]:
    """What has no value is left out."""
    of_tables = [({"schema": table.schema, "table": table.table}, table) for table in run.tables]
    listed = [
        _one("run_timestamp_seconds", "When the run ended, in seconds since 1970.", run.timestamp),
        _one("run_exit_code", "0 done, 1 failed, 2 wrong configuration, 3 done with quarantine.", run.exit_code),
        _one("run_duration_seconds", "How long the run took.", run.seconds),
        _each("run_stage_duration_seconds", "How long each stage of the run took.", "stage", run.stages),
    ]
    if run.error is None:
        counts = [
            (labels | {"operation": what}, float(getattr(table, what)))
            for labels, table in of_tables
            for what in ("inserted", "updated", "deleted")
        ]
        there = [(labels, float(table.rows)) for labels, table in of_tables if table.rows is not None]
        listed += [
            _one("run_batches", "Batches that the run applied.", run.batches),
            _one("run_files", "Landed files that the run read.", run.files),
            _one("run_landed_bytes", "Bytes that the run read, as they landed.", run.bytes),
            _each("run_content_bytes", "Bytes of content, by what became of them.", "account", run.content_bytes),
            _each("run_messages", "Messages that the run read, by type.", "type", run.messages),
            _each("run_transactions", "Transactions, by what became of them.", "fate", run.transactions),
            MetricFamily(_name("run_table_rows"), "Rows that the run changed, by table.", tuple(counts)),
            MetricFamily(_name("table_rows"), "Rows in the Delta table.", tuple(there)),
            MetricFamily(
                _name("table_held"),
                "1 if the table is left as it was.",
                tuple((x, float(t.held)) for x, t in of_tables),
            ),
            _one("last_commit_lsn", "LSN of the archive's last commit, as a number.", run.last_commit_lsn),
            _one("last_commit_timestamp_seconds", "Time of the archive's last commit.", run.last_commit_timestamp),
            _one("lag_seconds", "From the archive's last commit to the end of the run.", run.lag_seconds),
        ]
    of_source = {"source": run.source}
    return [
        MetricFamily(f.name, f.help, tuple((of_source | labels, value) for labels, value in f.values))
        for f in listed
        if f.values
    ]


def _name(name: str) -> str:
    return f"pgoutput_etl_{name}"


def _one(name: str, about: str, value: float | None) -> MetricFamily:
    return MetricFamily(_name(name), about, () if value is None else (({}, float(value)),))


def _each(name: str, about: str, label: str, values: Mapping[str, float]) -> MetricFamily:
    return MetricFamily(_name(name), about, tuple(({label: key}, float(value)) for key, value in values.items()))


def prometheus_text(run: RunFigures) -> str:
    """Prometheus' text format, version 0.0.4."""
    lines = []
    for family in families(run):
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} gauge"]
        for labels, value in family.values:
            told = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{family.name}{{{told}}} {value!r}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def check(metrics: Metrics) -> None:
    """Raises ConfigError for what could not be told, before a run has done anything."""
    for key, path in (("json", metrics.json), ("prometheus", metrics.prometheus)):
        if path is None or (key == "json" and path == STDERR):
            continue
        folder = Path(path).absolute().parent
        if not folder.is_dir():
            raise ConfigError(f"metrics.{key}: expected a file in a folder that is there")
        if Path(path).is_dir() or not os.access(folder, os.W_OK):
            raise ConfigError(f"metrics.{key}: expected a file that can be written")
    if metrics.opentelemetry:
        check_telemetry()


def publish(run: RunFigures, metrics: Metrics, say: Callable[[str], None]) -> None:
    """To wherever the configuration says. Raises nothing: what fails is told to `say`."""
    lines, prometheus = metrics.json, metrics.prometheus
    if lines is not None:
        _try(say, "metrics.json", lambda: _append(lines, run.to_json()))
    if prometheus is not None:
        _try(say, "metrics.prometheus", lambda: _replace(Path(prometheus), prometheus_text(run)))
    if metrics.opentelemetry:
        gauges = [(family.name, family.help, family.values) for family in families(run)]
        _try(say, "metrics.opentelemetry", lambda: export(gauges))


def _try(say: Callable[[str], None], what: str, write: Callable[[], None]) -> None:
    try:
        write()
    except Exception as error:  # noqa: BLE001 - whatever it is, the run is done
        reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
        say(f"{what}: the run's figures could not be told: {reason}")


def _append(path: str, line: str) -> None:
    if path == STDERR:
        sys.stderr.write(f"{line}\n")
        return
    with Path(path).open("ab") as file:
        file.write(f"{line}\n".encode())


def _replace(path: Path, text: str) -> None:
    """At once, as it may be read at any moment: under a name that node exporter doesn't read, then renamed."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.absolute().parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)  # node exporter is another user
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


@dataclass(slots=True)
class RunRecorder:
    """One run, from when this is made."""

    source: str
    metrics: Metrics
    stages: StageTimer = field(default_factory=StageTimer)
    began: float = field(default_factory=time.monotonic)

    def __enter__(self) -> RunRecorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            self.failed(error, exit_code_of(error))

    def done(self, summaries: Sequence[RunSummary]) -> None:
        self.stages.start(None)
        self._publish(figures(summaries, self.stages.seconds, time.monotonic() - self.began, _now()))

    def failed(self, error: Exception, exit_code: int) -> None:
        self.stages.start(None)
        seconds = time.monotonic() - self.began
        self._publish(figures_of_failure(self.source, error, exit_code, self.stages.seconds, seconds, _now()))

    def _publish(self, run: RunFigures) -> None:
        publish(run, self.metrics, print_warning)


def _now() -> datetime:
    return datetime.now(timezone.utc)
