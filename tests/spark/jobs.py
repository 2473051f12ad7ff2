"""The nightly job as tests run it: in the test's own session, on folders of the test's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from pgoutput_etl.config import load_config
from pgoutput_etl.naming import path_segment
from pgoutput_etl.pipeline import apply
from pgoutput_etl.report import RunSummary
from tests.captures import NEVER_SENT_VALUES, Table, ignored_columns
from tests.truth import assert_equals_truth


@dataclass(frozen=True, slots=True)
class Job:
    """A source, its landing folder and its target below one folder."""

    spark: SparkSession
    folder: Path
    landing: Path
    overrides: list[str] = field(default_factory=list)

    def run(self, *overrides: str) -> RunSummary:
        """The last batch's summary."""
        self.write_config()
        loaded = load_config(str(self.config), [*self.overrides, *overrides], {})
        return apply(self.spark, loaded, lambda _: None)[-1]

    @property
    def config(self) -> Path:
        return self.folder / "job.yaml"

    def write_config(self) -> None:
        target = self.folder / "tables"
        self.config.write_text(f"source: {{name: test, landing: '{self.landing}'}}\ntarget: {{root: '{target}'}}\n")

    def path(self, schema: str, table: str) -> Path:
        return self.folder / "tables" / path_segment(schema) / path_segment(table)

    def rows(self, schema: str, table: str) -> list[dict[str, Any]]:
        """As Arrow gives them to Python; none if the table was never made."""
        path = self.path(schema, table)
        if not path.exists():
            return []
        rows: list[dict[str, Any]] = self.spark.read.format("delta").load(str(path)).toArrow().to_pylist()
        return rows

    def columns(self, schema: str, table: str) -> list[str]:
        """PostgreSQL's, without those that the target adds."""
        names = self.spark.read.format("delta").load(str(self.path(schema, table))).columns
        return [name for name in names if not name.startswith("_pg_")]

    def versions(self) -> dict[str, int]:
        """The newest Delta version of every table below the target, the ledger's left out."""
        found = {}
        for log in sorted((self.folder / "tables").glob("[!_]*/*/_delta_log")):
            found[log.parent.name] = max(int(path.stem) for path in log.glob("*[0-9].json"))
        return found

    def assert_equals(self, tables: list[Table], server: str) -> None:
        for table in tables:
            rows = self.rows(table.schema, table.name)
            never_sent = NEVER_SENT_VALUES.get(table.full_name)
            assert_equals_truth(rows, table.truth, ignored_columns(server), never_sent)
