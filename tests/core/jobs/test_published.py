"""The runs of jobs other than apply: metrics with the tables that a job has changed, or with its failure."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pgoutput_etl.config.settings import Config, Metrics, load_config
from pgoutput_etl.errors import RunError
from pgoutput_etl.jobs.command import PrintedReport, published
from pgoutput_etl.load.summary import ChangedTables, TableSummary


@dataclass(frozen=True)
class Done:
    exit_code: int = 3
    changed: ChangedTables = field(
        default_factory=lambda: ChangedTables((TableSummary("public", "t", "/t", 4, rows=9, updated=2),))
    )

    def to_json(self) -> str:
        return "{}"


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "shop.yaml"
    path.write_text(f"source: {{name: shop, landing: {tmp_path}}}\ntarget: {{root: {tmp_path}}}\n", encoding="utf-8")
    return replace(load_config(str(path)), metrics=Metrics(json=str(tmp_path / "runs.jsonl")))


def lines(config: Config) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(config.metrics.json or "").read_text().splitlines()]


def show(_: Done) -> None:
    raise AssertionError("published runs are not printed")


def test_a_run_with_the_tables_that_it_changed(config: Config) -> None:
    with_changes, without = PrintedReport.of_changes(Done(), show), PrintedReport.of(Done(), show)
    assert published("start", config, lambda: with_changes) is with_changes
    assert published("start", config, lambda: without) is without
    changed, unchanged = lines(config)
    assert (changed["job"], changed["exit_code"], changed["rows"]["updated"]) == ("start", 3, 2)
    assert [table["table"] for table in changed["tables"]] == ["t"]
    assert (unchanged["rows"]["updated"], unchanged["tables"]) == (0, [])


def test_a_failed_run(config: Config) -> None:
    def fail() -> PrintedReport:
        raise RunError("x")

    with pytest.raises(RunError):
        published("start", config, fail)
    [run] = lines(config)
    assert (run["job"], run["exit_code"], run["error"]) == ("start", 1, "RunError")
