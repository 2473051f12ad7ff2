"""Runs the nightly job in the test's session, on the test's own folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from pgoutput_etl.config.settings import Config, load_config
from pgoutput_etl.identifiers import path_segment
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.protocol.messages import PgoutputMessage
from pgoutput_etl.targets.mismatches import Mismatches
from pgoutput_etl.work.backfill.report import BackfillSummary
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.backfill.run import backfill
from pgoutput_etl.work.files.pipeline import apply
from pgoutput_etl.work.files.report import RunSummary, print_summary
from tests.support.captures import NEVER_SENT_VALUES, Table, ignored_columns
from tests.support.delta_rows import delta_rows
from tests.support.small_archives import copydata
from tests.support.truth import assert_equals_truth


@dataclass(frozen=True, slots=True)
class Job:
    """A source with its landing folder and its target."""

    spark: SparkSession
    folder: Path
    landing: Path
    overrides: list[str] = field(default_factory=list)
    environ: dict[str, str] = field(default_factory=dict)

    def run(self, *overrides: str) -> RunSummary:
        """Applies everything new; returns the last batch's summary."""
        summaries = apply(self.spark, self.loaded(*overrides), lambda _: None)
        for summary in summaries:
            assert sum(summary.accounts.values()) == summary.content_bytes, "every byte is in one account"
        return summaries[-1]

    def backfill(self, request: BackfillRequest, *overrides: str) -> BackfillSummary:
        return backfill(self.spark, self.loaded(*overrides), request, lambda _: None)

    @property
    def config(self) -> Path:
        return self.folder / "job.yaml"

    def write_config(self) -> None:
        target = self.folder / "tables"
        source = f"{{name: test, landing: '{self.landing}', snapshot: accept}}"  # nearly all archives begin in mid-life
        self.config.write_text(f"source: {source}\ntarget: {{root: '{target}'}}\n")

    def loaded(self, *overrides: str) -> Config:
        self.write_config()
        return load_config(str(self.config), [*self.overrides, *overrides], self.environ)

    def path(self, schema: str, table: str) -> Path:
        return self.folder / "tables" / path_segment(schema) / path_segment(table)

    def rows(self, schema: str, table: str) -> list[dict[str, Any]]:
        """The rows as Arrow returns them; empty if the table doesn't exist."""
        path = self.path(schema, table)
        return delta_rows(self.spark, path) if path.exists() else []

    def columns(self, schema: str, table: str) -> list[str]:
        """The columns of the PostgreSQL table, without the metadata columns."""
        names = self.spark.read.format("delta").load(str(self.path(schema, table))).columns
        return [name for name in names if not name.startswith("_pg_")]

    def mismatches(self) -> dict[int, Mismatches | None]:
        """By OID, as the ledger has them after the last batch."""
        batch = DeltaLedger.of(self.spark, self.loaded()).batches.last()
        return {} if batch is None else {oid: state.mismatches for oid, state in batch.tables.items()}

    def versions(self) -> dict[str, int]:
        """The newest Delta version of every table below the target, without the ledger's tables."""
        logs = sorted((self.folder / "tables").glob("[!_]*/*/_delta_log"))
        return {log.parent.name: max(int(path.stem) for path in log.glob("*[0-9].json")) for log in logs}

    def assert_equals(self, tables: list[Table], server: str) -> None:
        for table in tables:
            rows = self.rows(table.schema, table.name)
            never_sent = NEVER_SENT_VALUES.get(table.full_name)
            assert_equals_truth(rows, table.truth, ignored_columns(server), never_sent)


@dataclass(slots=True)
class Nights:
    """A job, and files that land one after another."""

    job: Job
    landed: int = 0

    def land(self, *messages: Iterable[PgoutputMessage], name: str = "") -> Path:
        path = self.job.landing / (name or f"{self.landed:03}.copydata")
        path.write_bytes(copydata(message for part in messages for message in part))
        self.landed += 1
        return path

    def night(self, *messages: Iterable[PgoutputMessage]) -> RunSummary:
        self.land(*messages)
        return self.job.run()

    def values(self, table: str, schema: str = "public") -> list[tuple[Any, ...]]:
        """The rows without metadata columns, sorted."""
        rows = self.job.rows(schema, table)
        return sorted(tuple(v for name, v in row.items() if not name.startswith("_pg_")) for row in rows)

    def ledger(self, table: str) -> list[dict[str, Any]]:
        path = self.job.folder / "tables" / "_pgoutput_etl" / table
        return delta_rows(self.job.spark, path) if path.exists() else []


@contextmanager
def dying(owner: object, method: str) -> Iterator[None]:
    """The run within the context dies when it calls a method, or a function of a module."""

    def die(*_: object, **__: object) -> None:
        raise MemoryError

    with patch.object(owner, method, die), pytest.raises(MemoryError):
        yield


def held(summary: RunSummary) -> dict[str, str]:
    return {t.table: t.held for t in summary.tables if t.held is not None}


def summary_text(summary: RunSummary) -> str:
    text = StringIO()
    print_summary(summary, Console(file=text, width=200))
    return text.getvalue()
