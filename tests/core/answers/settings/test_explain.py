"""`plan --explain` names each setting of a table with the line that gives it, and no value from the environment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pgoutput_etl.cli import main
from tests.core.config.test_rule_merge import FOR_500_TABLES
from tests.core.config.test_settings import SALT, SMALLEST


@pytest.fixture(autouse=True)
def _salts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PGOUTPUT_ETL_SALT", SALT)
    monkeypatch.setenv("OTHER", f"{SALT} too")
    monkeypatch.setenv("SECRET", "hunter2")


def report_of(capsys: pytest.CaptureFixture[str], text: str, table: str, *options: str) -> dict[str, object]:
    """By setting, its value and origin; and the report itself under its keys."""
    Path("shop.yaml").write_text(text, encoding="utf-8")
    assert main(["plan", "--config", "shop.yaml", "--explain", table, "--json", *options]) == 0
    printed = capsys.readouterr().out
    assert "hunter2" not in printed
    report: dict[str, object] = json.loads(printed)
    settings = report.pop("settings")
    assert isinstance(settings, list)
    return {**report, **{s["setting"]: (s["value"], s["origin"]) for s in settings}}


def test_each_setting_has_the_line_of_the_rule_that_gives_it(capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(capsys, FOR_500_TABLES, "public.event_log")
    assert (report["target"], report["rules"]) == (
        "shop.event_log",
        ["defaults", "tables[4]", "tables[0]", "tables[5]"],
    )
    lines = FOR_500_TABLES.splitlines()
    for setting, (value, begin, rule) in {
        "mode": ("append", '  - {match: "*.event_*"', "tables[4]"),
        "partition_by": (["day", "kind"], '  - {match: "public.event_log"', "tables[5]"),
        "on_missing_row": ("ignore", '  - {match: "public.event_log"', "tables[5]"),
        "columns.email": ("keep", '  - {match: "*.event_*"', "tables[4]"),
        "columns.password": ("drop", "  columns: {email", "defaults"),
        "properties.delta.logRetentionDuration": ("interval 30 days", "  properties", "defaults"),
        "rename": ("shop.{table}", '  - {match: "public.*"', "tables[0]"),
    }.items():
        [line] = [n for n, text in enumerate(lines, 1) if text.startswith(begin)]
        assert report[setting] == (value, f"shop.yaml:{line} ({rule})"), setting
    assert (report["skip"], report["on_schema_change.drop"]) == ((False, "default"), ("follow", "default"))
    skipped = report_of(capsys, FOR_500_TABLES, "other.t")
    assert (skipped["target"], skipped["skip"]) == (None, (True, "shop.yaml:3 (include)"))


def test_no_value_from_the_environment_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    rules = """tables:
  - match: public.t
    comment: "${SECRET} too"
    columns: {a: {hash: sha256, salt: "${OTHER}"}, b: {redact: "${SECRET}"}}
"""
    report = report_of(capsys, SMALLEST + rules, "public.t")
    assert report["columns.a"] == ({"hash": "sha256"}, "shop.yaml:6 (tables[0])")
    hidden = "(from the environment)"
    assert report["columns.b"] == (hidden, "shop.yaml:6 (tables[0])")
    assert report["comment"] == (hidden, "shop.yaml:5 (tables[0])")


def test_a_value_that_another_one_replaces_is_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    rules = "rules: merge\ntables: [{match: '*', cluster_by: [a]}, {match: 'public.*', partition_by: [b]}]"
    report = report_of(capsys, SMALLEST + rules, "public.t")
    assert (report["cluster_by"], report["partition_by"]) == ((None, "default"), (["b"], "shop.yaml:4 (tables[1])"))


def test_an_option_is_the_origin_of_what_it_sets(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--set", "defaults={mode: history}", "--set", "tables=[{match: public.t, key: [id]}]")
    report = report_of(capsys, SMALLEST + "tables: [{match: x.y}]", "public.t", *options)
    assert report["mode"] == ("history", "--set defaults (defaults)")
    assert report["key"] == (["id"], "--set tables (tables[0])")


def test_the_report_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    Path("shop.yaml").write_text(FOR_500_TABLES, encoding="utf-8")
    assert main(["plan", "--config", "shop.yaml", "--explain", "billing.invoices"]) == 0
    printed = capsys.readouterr().out
    assert "billing.invoices is stored as billing.invoices." in printed
    assert "defaults, tables[1], tables[6]." in printed
    assert [cell.strip() for line in printed.splitlines() if "mode" in line for cell in line.split("│")[1:4]] == [
        "mode",
        "history",
        "shop.yaml:11 (tables[1])",
    ]
    assert main(["plan", "--config", "shop.yaml", "--explain", "invoices"]) == 2
