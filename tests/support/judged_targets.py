"""Applies a landing folder night by night, in memory or through the job on Spark, and reads the tables as texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from pgoutput_etl.answers.verify.row_text import delta_texts, small_texts, text_names
from pgoutput_etl.config.settings import Config, load_config
from pgoutput_etl.errors import PgoutputEtlError
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE, exit_code_of
from pgoutput_etl.ledger.delta_archive import DeltaArchive
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load.shared_table import tagged_target
from pgoutput_etl.load.target_columns import current_rows
from pgoutput_etl.replay.mirror import Row
from pgoutput_etl.schema.table_shape import TableShape, table_columns
from pgoutput_etl.targets.condition import conditions_of
from pgoutput_etl.targets.modes import table_mode
from pgoutput_etl.targets.plan import TableState
from pgoutput_etl.targets.swaps import swap_remarks
from pgoutput_etl.types import UserTypes
from pgoutput_etl.types.canonical_text import ComparedColumn, texts_of
from pgoutput_etl.work.files.report import RunReport
from tests.support.delta_rows import plain_rows
from tests.support.jobs import Job
from tests.support.nights import Nights
from tests.support.verdicts import AppliedNight, AppliedTable

NO_VARIABLES: Mapping[str, str] = {}


def reported_tables(summary: Mapping[str, Any]) -> frozenset[str]:
    """The tables that the job's summary, as JSON, names with a state other than consistent."""
    if summary["exit_code"] != EXIT_QUARANTINE:
        return frozenset()
    conditions = (f"{table['schema']}.{table['table']}" for table in summary["conditions"])
    return frozenset((*conditions, *summary["swaps"]))


def reported_states(states: Mapping[int, TableState], config: Config) -> frozenset[str]:
    """The tables that the job's summary would name for these states."""
    conditions = conditions_of(states.values(), config)
    return frozenset((*(condition.name for condition in conditions), *swap_remarks(states)))


class JudgedTarget(Protocol):
    def night(self) -> AppliedNight:
        """Applies everything new in the landing folder."""


def in_memory(
    folder: Path, landing: Path, rules: str, overrides: Sequence[str] = (), environ: Mapping[str, str] = NO_VARIABLES
) -> MemoryTarget:
    """rules: the configuration's `tables`, as YAML."""
    config = load_config(str(memory_config(folder, landing)), [f"tables={rules}", *overrides], dict(environ))
    return MemoryTarget(Nights(config), landing)


def memory_config(folder: Path, landing: Path) -> Path:
    path = folder / "memory.yaml"
    path.write_text(f"source: {{name: test, landing: '{landing}'}}\ntarget: {{root: root}}\n", encoding="utf-8")
    return path


@dataclass(slots=True)
class MemoryTarget:
    """Files that a failed night has left unread are read again by the next night, as the job does. is_replayed: each
    night is compared with a replay, which knows no rules."""

    nights: Nights
    landing: Path
    is_replayed: bool = False
    _read: set[Path] = field(default_factory=set)

    def night(self) -> AppliedNight:
        files = sorted(set(self.landing.iterdir()) - self._read)
        try:
            self.nights.night([file.read_bytes() for file in files])
        except PgoutputEtlError as error:
            return AppliedNight(exit_code_of(error), frozenset(), self._tables(), str(error))
        self._read.update(files)
        if self.is_replayed:
            self.nights.assert_as_replayed()
        reported = reported_states(self.nights.states, self.nights.config)
        return AppliedNight(EXIT_QUARANTINE if reported else EXIT_DONE, reported, self._tables())

    def _tables(self) -> dict[str, AppliedTable]:
        readable = [state for state in self.nights.states.values() if state.is_readable]
        return {state.full_name: _table_of(state, *self.nights.events(state.oid)) for state in readable}


def _table_of(state: TableState, shape: TableShape, events: list[Row]) -> AppliedTable:
    texts, columns = [], []
    for i, column in enumerate(shape.columns):
        if not column.retired:
            printed = texts_of(column.type, pa.array([event[f"c{i}"] for event in events], column.type.arrow))
            texts.append([event["_unrep"].get(column.name, text) for event, text in zip(events, printed, strict=True)])
            columns.append(ComparedColumn(column.name, column.type))
    rows = zip(*texts, strict=True) if columns else [()] * len(events)
    return AppliedTable(state.relation, tuple(columns), tuple(rows))


def _quick_texts(state: TableState, columns: Sequence[ComparedColumn]) -> pa.Table | None:
    """None if Spark must read the rows."""
    is_plain = table_mode(state.mode).is_copy and not state.path.tag and not state.path.is_in_catalog
    stored = plain_rows(state.path.name, state.version) if is_plain else None
    if stored is None or any(stored.schema.field(column.name).type != column.type.arrow for column in columns):
        return None
    batches = [batch.select(text_names(len(columns))) for batch in small_texts(stored, columns)]
    empty = pa.schema([(name, pa.string()) for name in text_names(len(columns))])
    return pa.Table.from_batches(batches, empty)


@dataclass(frozen=True, slots=True)
class JobTarget:
    """The nightly job."""

    job: Job

    def night(self) -> AppliedNight:
        try:
            report = RunReport([self.job.run()])
        except (PgoutputEtlError, PySparkException, Py4JJavaError) as error:
            brief = f"{type(error).__name__}: {error}".partition("\n")[0]
            return AppliedNight(exit_code_of(error), frozenset(), self.tables(), brief)
        return AppliedNight(report.exit_code, reported_tables(json.loads(report.to_json())), self.tables())

    def tables(self) -> dict[str, AppliedTable]:
        config = self.job.loaded()
        ledger = DeltaLedger.of(self.job.spark, config)
        last = ledger.batches.last()
        if last is None:
            return {}
        types = DeltaArchive.of(self.job.spark, config, ledger, last).user_types
        return {state.full_name: self._table(state, types) for state in last.tables.values() if state.is_readable}

    def _table(self, state: TableState, types: UserTypes) -> AppliedTable:
        described = table_columns(state.relation, state.retired, types)
        masked = frozenset(state.masks)
        compared = [column for column in described if not column.retired and column.name not in masked]
        columns = tuple(ComparedColumn(column.name, column.type) for column in compared)
        texts = _quick_texts(state, columns) if columns else None
        if texts is None:
            stored = current_rows(tagged_target(self.job.spark, state.path, described, state.version), state.mode)
            if not columns:  # an Arrow table without columns has no rows
                return AppliedTable(state.relation, columns, ((),) * stored.count(), masked)
            texts = delta_texts(stored, columns).select(*text_names(len(columns))).toArrow()
        rows = zip(*(column.to_pylist() for column in texts.columns), strict=True)
        return AppliedTable(state.relation, columns, tuple(rows), masked)
