"""The alerts for Prometheus use the metrics that the jobs and the receiver's watch write."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pgoutput_etl.outputs.ended_run import ConditionMetrics, RunMetrics, TableMetrics
from pgoutput_etl.outputs.files import prometheus_text
from pgoutput_etl.outputs.gauges import gauges
from tests.support.servers.landing_machine import CONF

ROOT = Path(__file__).parents[2]
RULES = ROOT / "conf" / "monitoring" / "prometheus-rules.yaml"
PROMTOOL = shutil.which("promtool")

HOUR = 3600
TABLE = TableMetrics("public", "t", 1, 1, 0, 0, held=True)
GOOD = RunMetrics("good", "", 23.0 * HOUR, 0, 1.0, last_commit_timestamp=23.0 * HOUR)
HELD = replace(
    GOOD, source="held", exit_code=3, tables=(TABLE,), conditions=(ConditionMetrics("public", "t", "held", 0),)
)
RUNS = (
    GOOD,
    replace(GOOD, job="verify"),
    HELD,
    replace(HELD, job="verify", timestamp=0.0),
    replace(GOOD, source="aside", exit_code=3),
    replace(GOOD, source="failed", exit_code=1, error="RunError"),
    replace(GOOD, source="failed", exit_code=1, error="RunError", job="backfill"),
    replace(GOOD, source="idle", exit_code=1, error="RunError", job="backfill", timestamp=0.0),
    replace(GOOD, source="busy", exit_code=75, error="AnotherRunError"),
    replace(GOOD, source="idle", timestamp=0.0, last_commit_timestamp=0.0),
)
DAY = {
    "PgoutputEtlNotApplied": {"idle"},
    "PgoutputEtlFailed": {"failed"},
    "PgoutputEtlOldCommit": {"idle"},
    "PgoutputEtlTableState": {"held"},
    "PgoutputEtlSetAside": {"aside"},
    "PgoutputEtlJobFailed": {"failed", "held"},
    "PgoutputEtlVerifyOverdue": {"aside", "failed", "busy", "idle"},
}
TEN_DAYS_OVERDUE = {"good", "held", *DAY["PgoutputEtlVerifyOverdue"]}

# What psql answers to watch.sql, and the alerts a day later, besides that of the watch, which had stopped by then.
SLOTS = {"fine": "t|reserved|1|1||1||", "absent": "f|reserved|1|1||1||", "behind": f"t|extended|{1 << 40}|1||1||"}
RECEIVERS = {
    "PgLandingNotWatched": {*SLOTS, "no server", "copied"},
    "PgLandingProblem": {"absent", "behind", "no server"},
    "PgLandingNoReceiver": {"absent"},
    "PgLandingRetainedWal": {"behind"},
    "PgLandingNotLanded": {"fine"},
    "PgLandingWaiting": {"behind"},
}


def rules() -> dict[str, list[dict[str, Any]]]:
    return {group["name"]: group["rules"] for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]}


def watched(folder: Path, source: str, row: str | None, **settings: str) -> str:
    """The metrics of a watch at second 0 of 1970. row: the answer to watch.sql; None if the server is away."""
    programs = folder / source / "bin"
    programs.mkdir(parents=True)
    answers = {"psql": "exit 2" if row is None else f"echo '{row}'", "date": "echo 0", "df": "echo 1%"}
    for name, does in answers.items():
        (programs / name).write_text(f"#!/bin/sh\n{does}\n")
        (programs / name).chmod(0o755)
    state, file = folder / source / "state", folder / source / "shop.prom"
    (state / "landed").mkdir(parents=True)
    if source == "fine":
        (state / "last").write_text("1\n")
        os.utime(state / "last", (0, 0))
    if source == "behind":
        for number in range(17):
            (state / "landed" / f"{source}-{number:07}.bin").touch()
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "SLOT": "etl", "UPLOAD": "x"}
    command = [str(CONF / "watch.sh"), source, str(state)]
    settings["METRICS"] = str(file)
    subprocess.run(command, env={**environment, **settings}, capture_output=True, check=False, timeout=60)
    return file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def receivers(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("receivers")
    texts = [watched(folder, source, row) for source, row in SLOTS.items()]
    texts.append(watched(folder, "no server", None))
    texts.append(watched(folder, "copied", SLOTS["absent"], LANDED_BY="copy"))
    return "".join(texts)


def test_the_rules_use_metrics_and_labels_that_the_jobs_write() -> None:
    written = {gauge.name: {*gauge.values[0][0]} for run in RUNS for gauge in gauges(run)}
    for rule in rules()["pgoutput_etl"]:
        names = set(re.findall(r"pgoutput_etl_\w+", rule["expr"]))
        assert names <= set(written), rule["alert"]
        labels = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        assert labels <= set.intersection(*(written[name] for name in names)), rule["alert"]
    selected = set(re.findall(r'(\w+)\{job_name="(\w+)"\}', RULES.read_text(encoding="utf-8")))
    assert selected == {("pgoutput_etl_job_timestamp_seconds", "verify")}
    assert {rule["alert"] for rule in rules()["pgoutput_etl"]} == set(DAY)


def test_the_rules_use_all_metrics_that_the_watch_writes(receivers: str) -> None:
    labels_of = dict(re.findall(r"^(\w+)\{(\w+)=", receivers, re.MULTILINE))
    assert set(labels_of.values()) == {"source"}
    expressions = [rule["expr"] for rule in rules()["pg_landing"]]
    assert {name for text in expressions for name in re.findall(r"pg_landing_\w+", text)} == set(labels_of)
    for rule in rules()["pg_landing"]:
        assert re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]) == ["source"]
    assert [rule["alert"] for rule in rules()["pg_landing"]] == [*RECEIVERS]


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed: it is part of Prometheus")
def test_each_alert_is_of_the_sources_that_it_is_for(receivers: str, tmp_path: Path) -> None:
    """Prometheus evaluates the rules, on what the jobs and the watch write, a day and ten days after 1970 began."""
    text = "".join(prometheus_text(run) for run in RUNS) + receivers
    samples = (line.rpartition(" ") for line in text.splitlines() if line[0] != "#")
    series = [{"series": name, "values": f"{float(value):.0f}x250"} for name, _, value in samples]

    def expected(name: str, sources: set[str], at: str) -> dict[str, Any]:
        query = f'count by (source) (ALERTS{{alertname="{name}", alertstate="firing"}})'
        samples = [{"labels": f'{{source="{source}"}}', "value": 1} for source in sorted(sources)]
        return {"expr": query, "eval_time": at, "exp_samples": samples}

    tests = [expected(name, sources, "25h") for name, sources in {**DAY, **RECEIVERS}.items()]
    tests.append(expected("PgoutputEtlVerifyOverdue", TEN_DAYS_OVERDUE, "240h"))
    test = {"interval": "1h", "input_series": series, "promql_expr_test": tests}
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1h", "tests": [test]}))
    for command in (["check", "rules", str(RULES)], ["test", "rules", str(file)]):
        done = subprocess.run([str(PROMTOOL), *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
