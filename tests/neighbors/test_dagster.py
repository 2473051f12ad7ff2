"""conf/neighbors/dagster_assets.py, run by Dagster with the summary of a real run. Needs only Dagster and pytest."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
import pytest

ROOT = Path(__file__).parents[2]
SUMMARY = Path(os.environ["NEIGHBORS"]) / "summary.json"
EXAMPLE = ROOT / "conf" / "neighbors" / "dagster_assets.py"


def load(text: str, path: Path) -> ModuleType:
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example with the demo's tables. spark-submit prints the demo's summary, or that in tmp_path."""
    (tmp_path / "summary.json").write_text(SUMMARY.read_text())
    submit = tmp_path / "submit"
    submit.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/calls\necho progress >&2\ncat {tmp_path}/summary.json\nexit ${{CODE:-0}}\n'
    )
    submit.chmod(0o755)
    text = EXAMPLE.read_text().replace('["public.customers", "public.orders"]', '["public.acct", "public.quiet"]')
    module = load(text, tmp_path / "dagster_assets.py")
    monkeypatch.setattr(module, "SUBMIT", [str(submit)])
    monkeypatch.setattr(module, "FOLDER", str(tmp_path))
    monkeypatch.setattr(module, "RETRY_SECONDS", 0)
    return module


def run(example: ModuleType) -> dg.ExecuteInProcessResult:
    return dg.materialize([example.tables], raise_on_error=False)


def checks(result: dg.ExecuteInProcessResult) -> dict[str, tuple[bool, str | None]]:
    return {
        check.asset_key.path[-1]: (check.passed, check.description) for check in result.get_asset_check_evaluations()
    }


def test_written_tables_are_materialized_with_their_metadata(example: ModuleType) -> None:
    result = run(example)
    assert result.success
    [event] = result.get_asset_materialization_events()
    assert event.asset_key == dg.AssetKey(["shop", "public", "acct"])
    summary = json.loads(SUMMARY.read_text())
    [acct] = [table for table in summary["tables"] if table["table"] == "acct"]
    metadata = event.step_materialization_data.materialization.metadata
    values: dict[str, Any] = {name: value.value for name, value in metadata.items()}
    assert values == {
        "dagster/row_count": acct["rows"],
        **{name: acct[name] for name in ("inserted", "updated", "deleted")},
        "lsn": summary["lsn"],
        "delta_version": acct["version"],
        "path": acct["path"],
    }
    assert checks(result) == {"acct": (True, None), "quiet": (True, None)}


def test_several_batches_are_added_up(example: ModuleType) -> None:
    summary = json.loads(SUMMARY.read_text())
    written = example.written_tables({"batches": [summary["batches"][0], summary["batches"][0]]})
    [acct] = [table for table in summary["tables"] if table["table"] == "acct"]
    assert written["public.acct"]["inserted"] == 2 * acct["inserted"] > 0
    assert written["public.acct"]["dagster/row_count"] == acct["rows"]


def test_a_held_table_fails_its_check_and_is_not_materialized(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = json.loads(SUMMARY.read_text())
    for table in summary["batches"][0]["tables"]:
        if table["table"] == "acct":
            table["held"] = "its columns changed places"
            held = {"schema": "public", "table": "acct", "state": "held", "reason": table["held"]}
            summary["conditions"] = [held]
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    monkeypatch.setenv("CODE", "3")
    result = run(example)
    assert result.success
    assert result.get_asset_materialization_events() == []
    assert checks(result) == {"acct": (False, "held: its columns changed places"), "quiet": (True, None)}


def test_a_diverged_table_fails_its_check_and_is_materialized(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    diverged = {"schema": "public", "table": "acct", "state": "diverged", "reason": "3 UPDATEs met no row"}
    summary = {**json.loads(SUMMARY.read_text()), "conditions": [diverged]}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    monkeypatch.setenv("CODE", "3")
    result = run(example)
    assert len(result.get_asset_materialization_events()) == 1
    assert checks(result) == {"acct": (False, "diverged: 3 UPDATEs met no row"), "quiet": (True, None)}


def test_quarantine_without_a_held_table_fails_every_check(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CODE", "3")
    assert [passed for passed, _ in checks(run(example)).values()] == [False, False]


@pytest.mark.parametrize(("code", "attempts"), [("1", 3), ("2", 1)])
def test_a_failure_is_retried_except_a_wrong_configuration(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, attempts: int
) -> None:
    monkeypatch.setenv("CODE", code)
    assert not run(example).success
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == ["jobs/apply.py --config /etc/pgoutput_etl/shop.yaml --json"] * attempts


def test_the_definitions_can_be_loaded(example: ModuleType) -> None:
    dg.Definitions.validate_loadable(example.defs)
    [schedule] = example.defs.schedules
    assert schedule.cron_schedule == "30 2 * * *"
