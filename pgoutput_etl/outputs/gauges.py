"""A run's metrics as gauges, for Prometheus and OpenTelemetry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from pgoutput_etl.load.summary import ROW_OPERATIONS
from pgoutput_etl.outputs.ended_run import APPLY, RunMetrics


class Gauge(NamedTuple):
    """A metric. values: each with its attributes, such as the table."""

    name: str
    description: str
    values: Sequence[tuple[Mapping[str, str], float]]


_Sample: TypeAlias = tuple[dict[str, str], float | None]

_Described: TypeAlias = tuple[str, str, Iterable[_Sample]]


def gauges(run: RunMetrics) -> list[Gauge]:
    """The gauges that have values. Each is about the last run, not a sum over runs."""
    if run.job != APPLY:
        return _known(_of_other_job(run), {"source": run.source, "job_name": run.job})
    described: list[_Described] = [
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
        verified = [
            (dict(zip(("schema", "table"), name.split(".", 1), strict=True)), lsn)
            for name, lsn in run.verified_through.items()
        ]
        described += [
            ("run_batches", "Batches that the run applied.", [({}, run.batches)]),
            ("run_files", "Landed files that the run read.", [({}, run.files)]),
            ("run_landed_bytes", "Bytes that the run read, as they landed.", [({}, run.bytes)]),
            ("run_content_bytes", "Decompressed bytes by account.", _labeled("account", run.content_bytes)),
            ("run_messages", "Messages that the run read, by type.", _labeled("type", run.messages)),
            ("run_transactions", "Transactions by status.", _labeled("fate", run.transactions)),
            ("run_table_rows", "Rows that the run changed, by table.", _changed_rows(run)),
            ("table_rows", "Rows in the Delta table.", [(labels, table.rows) for labels, table in tables]),
            ("table_held", "1 if the table is held.", [(labels, table.held) for labels, table in tables]),
            ("table_state", "1 for each table that is held, diverged, or incomplete.", [(s, 1) for s, _ in states]),
            ("table_mismatches", "Changes that contradict its rows.", [(s, c.mismatches) for s, c in states]),
            ("table_verified_lsn", "The last LSN as of which verify has found it equal, as a number.", verified),
            ("last_commit_lsn", "LSN of the archive's last commit, as a number.", [({}, run.last_commit_lsn)]),
            ("last_commit_timestamp_seconds", "Time of the archive's last commit.", [({}, run.last_commit_timestamp)]),
            ("lag_seconds", "From the archive's last commit to the end of the run.", [({}, run.lag_seconds)]),
        ]
    return _known(described, {"source": run.source})


def _of_other_job(run: RunMetrics) -> list[_Described]:
    """Uses names other than apply's, so another job can't hide that apply has not run."""
    return [
        ("job_timestamp_seconds", "When the job last ended, in seconds since 1970.", [({}, run.timestamp)]),
        ("job_exit_code", "The exit code of the job's last run.", [({}, run.exit_code)]),
        ("job_duration_seconds", "How long the job's last run took.", [({}, run.seconds)]),
        ("job_table_rows", "Rows that the job's last run changed, by table.", _changed_rows(run)),
    ]


def _known(described: Iterable[_Described], common: Mapping[str, str]) -> list[Gauge]:
    known = []
    for name, description, samples in described:
        values = [({**common, **labels}, float(value)) for labels, value in samples if value is not None]
        known.append(Gauge(f"pgoutput_etl_{name}", description, values))
    return [gauge for gauge in known if gauge.values]


def _changed_rows(run: RunMetrics) -> list[_Sample]:
    return [
        ({"schema": table.schema, "table": table.table, "operation": operation}, getattr(table, operation))
        for table in run.tables
        for operation in ROW_OPERATIONS
    ]


def _labeled(label: str, values: Mapping[str, float]) -> list[_Sample]:
    return [({label: key}, value) for key, value in values.items()]
