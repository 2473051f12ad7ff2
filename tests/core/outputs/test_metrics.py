"""A run's metrics as JSON lines, for Prometheus and through OpenTelemetry, and failures to publish them."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pytest

from pgoutput_etl.config.settings import Metrics
from pgoutput_etl.errors import AnotherRunError, ConfigError, RunError
from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.load.summary import ChangedTables, TableSummary
from pgoutput_etl.outputs.ended_run import EndedRun, RunMetrics
from pgoutput_etl.outputs.files import prometheus_text
from pgoutput_etl.outputs.gauges import gauges
from pgoutput_etl.outputs.publish import RunPublisher
from pgoutput_etl.targets.condition import ConditionKind, TableCondition
from pgoutput_etl.targets.mismatches import Mismatches
from pgoutput_etl.work.files.recorder import RunRecorder, StageTimer, failure_metrics, run_metrics
from pgoutput_etl.work.files.report import RunReport, RunSummary

NOW = datetime(2026, 3, 1, 2, 13, tzinfo=timezone.utc)
COMMIT = (NOW - timedelta(minutes=2) - datetime(2000, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)


def check(metrics: Metrics) -> None:
    RunPublisher.of("shop", metrics).check()


ODD = 'odd "\\\n'
CONDITIONS = (
    TableCondition(1, "public", ODD, ConditionKind.HELD, "why", 0x100),
    TableCondition(2, "public", "t", ConditionKind.DIVERGED, "why", 0x200, mismatches=Mismatches(3, 1, 0x180, 7)),
)


def summary(batch: int, *tables: TableSummary) -> RunSummary:
    return RunSummary(
        "shop",
        batch,
        files=2,
        bytes=100,
        last_commit_lsn=0x1AE7B70,
        messages={"B": 3, "I": 5},
        tables=tables,
        committed_transactions=3,
        open_transactions=batch,
        aborted_transactions=1,
        refused_transactions=2,
        accounts={"applied": 90, "aborted": 10},
        logical_messages={"transactional": 4, "others": 1},
        last_commit_time=COMMIT,
        conditions=CONDITIONS,
        verified_through={"public.t": 28212000},
    )


TABLE = TableSummary("public", "t", "/x/t", 3, rows=10, inserted=7, updated=2, deleted=1)
HELD = TableSummary("public", ODD, "/x/o", 0, held="why")
RUN = run_metrics([summary(1, TABLE), summary(2, HELD, TABLE)], {"look": 0.5, "write": 2.0}, 3.5, NOW)

TEXT = """\
# HELP pgoutput_etl_run_timestamp_seconds When the run ended, in seconds since 1970.
# TYPE pgoutput_etl_run_timestamp_seconds gauge
pgoutput_etl_run_timestamp_seconds{source="shop"} 1772331180.0
# HELP pgoutput_etl_run_exit_code 0 done, 1 failed, 2 wrong configuration, 3 done with problems.
# TYPE pgoutput_etl_run_exit_code gauge
pgoutput_etl_run_exit_code{source="shop"} 3.0
# HELP pgoutput_etl_run_duration_seconds How long the run took.
# TYPE pgoutput_etl_run_duration_seconds gauge
pgoutput_etl_run_duration_seconds{source="shop"} 3.5
# HELP pgoutput_etl_run_stage_duration_seconds How long each stage of the run took.
# TYPE pgoutput_etl_run_stage_duration_seconds gauge
pgoutput_etl_run_stage_duration_seconds{source="shop",stage="look"} 0.5
pgoutput_etl_run_stage_duration_seconds{source="shop",stage="write"} 2.0
# HELP pgoutput_etl_run_batches Batches that the run applied.
# TYPE pgoutput_etl_run_batches gauge
pgoutput_etl_run_batches{source="shop"} 2.0
# HELP pgoutput_etl_run_files Landed files that the run read.
# TYPE pgoutput_etl_run_files gauge
pgoutput_etl_run_files{source="shop"} 4.0
# HELP pgoutput_etl_run_landed_bytes Bytes that the run read, as they landed.
# TYPE pgoutput_etl_run_landed_bytes gauge
pgoutput_etl_run_landed_bytes{source="shop"} 200.0
# HELP pgoutput_etl_run_content_bytes Decompressed bytes by account.
# TYPE pgoutput_etl_run_content_bytes gauge
pgoutput_etl_run_content_bytes{source="shop",account="applied"} 180.0
pgoutput_etl_run_content_bytes{source="shop",account="aborted"} 20.0
# HELP pgoutput_etl_run_messages Messages that the run read, by type.
# TYPE pgoutput_etl_run_messages gauge
pgoutput_etl_run_messages{source="shop",type="B"} 6.0
pgoutput_etl_run_messages{source="shop",type="I"} 10.0
# HELP pgoutput_etl_run_transactions Transactions by status.
# TYPE pgoutput_etl_run_transactions gauge
pgoutput_etl_run_transactions{source="shop",fate="committed"} 6.0
pgoutput_etl_run_transactions{source="shop",fate="aborted"} 2.0
pgoutput_etl_run_transactions{source="shop",fate="resent"} 0.0
pgoutput_etl_run_transactions{source="shop",fate="refused"} 4.0
pgoutput_etl_run_transactions{source="shop",fate="quarantined"} 0.0
pgoutput_etl_run_transactions{source="shop",fate="open"} 2.0
# HELP pgoutput_etl_run_table_rows Rows that the run changed, by table.
# TYPE pgoutput_etl_run_table_rows gauge
pgoutput_etl_run_table_rows{source="shop",schema="public",table="odd \\"\\\\\\n",operation="inserted"} 0.0
pgoutput_etl_run_table_rows{source="shop",schema="public",table="odd \\"\\\\\\n",operation="updated"} 0.0
pgoutput_etl_run_table_rows{source="shop",schema="public",table="odd \\"\\\\\\n",operation="deleted"} 0.0
pgoutput_etl_run_table_rows{source="shop",schema="public",table="t",operation="inserted"} 14.0
pgoutput_etl_run_table_rows{source="shop",schema="public",table="t",operation="updated"} 4.0
pgoutput_etl_run_table_rows{source="shop",schema="public",table="t",operation="deleted"} 2.0
# HELP pgoutput_etl_table_rows Rows in the Delta table.
# TYPE pgoutput_etl_table_rows gauge
pgoutput_etl_table_rows{source="shop",schema="public",table="t"} 10.0
# HELP pgoutput_etl_table_held 1 if the table is held.
# TYPE pgoutput_etl_table_held gauge
pgoutput_etl_table_held{source="shop",schema="public",table="odd \\"\\\\\\n"} 1.0
pgoutput_etl_table_held{source="shop",schema="public",table="t"} 0.0
# HELP pgoutput_etl_table_state 1 for each table that is held, diverged, or incomplete.
# TYPE pgoutput_etl_table_state gauge
pgoutput_etl_table_state{source="shop",schema="public",table="odd \\"\\\\\\n",state="held"} 1.0
pgoutput_etl_table_state{source="shop",schema="public",table="t",state="diverged"} 1.0
# HELP pgoutput_etl_table_mismatches Changes that contradict its rows.
# TYPE pgoutput_etl_table_mismatches gauge
pgoutput_etl_table_mismatches{source="shop",schema="public",table="odd \\"\\\\\\n",state="held"} 0.0
pgoutput_etl_table_mismatches{source="shop",schema="public",table="t",state="diverged"} 4.0
# HELP pgoutput_etl_table_verified_lsn The last LSN as of which verify has found it equal, as a number.
# TYPE pgoutput_etl_table_verified_lsn gauge
pgoutput_etl_table_verified_lsn{source="shop",schema="public",table="t"} 28212000.0
# HELP pgoutput_etl_last_commit_lsn LSN of the archive's last commit, as a number.
# TYPE pgoutput_etl_last_commit_lsn gauge
pgoutput_etl_last_commit_lsn{source="shop"} 28212080.0
# HELP pgoutput_etl_last_commit_timestamp_seconds Time of the archive's last commit.
# TYPE pgoutput_etl_last_commit_timestamp_seconds gauge
pgoutput_etl_last_commit_timestamp_seconds{source="shop"} 1772331060.0
# HELP pgoutput_etl_lag_seconds From the archive's last commit to the end of the run.
# TYPE pgoutput_etl_lag_seconds gauge
pgoutput_etl_lag_seconds{source="shop"} 120.0
"""


def test_prometheus_text() -> None:
    assert prometheus_text(RUN) == TEXT


_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
_SAMPLE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)\{{({_LABEL}(?:,{_LABEL})*)\}} (-?[0-9.e+-]+)")


def test_the_text_follows_prometheus_documentation() -> None:
    """Valid names, HELP and TYPE before a metric's samples, no sample twice, a newline at the end."""
    named, typed, samples = [], [], set()
    for line in prometheus_text(RUN).removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            named.append(line.split(" ")[2])
        elif line.startswith("# TYPE "):
            typed.append(line.split(" ")[2])
            assert line.endswith(" gauge")
        else:
            sample = _SAMPLE.fullmatch(line)
            assert sample is not None, line
            assert sample[1] == named[-1] == typed[-1]
            float(sample[3])
            assert (sample[1], sample[2]) not in samples
            samples.add((sample[1], sample[2]))
    assert named == typed
    assert len(set(named)) == len(named)
    assert prometheus_text(RUN).endswith("\n")


def test_a_json_line_has_all_metrics() -> None:
    line = json.loads(RUN.to_json())
    assert "\n" not in RUN.to_json()
    assert line["rows"] == {"inserted": 14, "updated": 4, "deleted": 2}
    assert line["stages"] == {"look": 0.5, "write": 2.0}
    assert (line["bytes"], line["content_bytes"]) == (200, {"applied": 180, "aborted": 20})
    assert (line["lag_seconds"], line["seconds"], line["exit_code"]) == (120.0, 3.5, 3)
    assert line["logical_messages"] == {"transactional": 8, "others": 2}
    assert line["tables"][1] == {
        "schema": "public", "table": "t", "rows": 10, "inserted": 14, "updated": 4, "deleted": 2, "held": False,
    }  # fmt: skip
    assert line["at"] == "2026-03-01T02:13:00+00:00"
    assert line["conditions"][1] == {"schema": "public", "table": "t", "state": "diverged", "mismatches": 4}
    assert "why" not in RUN.to_json()


def test_the_exit_code_is_the_worst_of_all_batches() -> None:
    torn = RunSummary("shop", 7, 1, 10, 0x100, damages=("a.bin: torn",))
    whole = RunSummary("shop", 8, 1, 10, 0x200)
    assert run_metrics([torn, whole], {}, 1.0, NOW).exit_code == EXIT_QUARANTINE
    report = json.loads(RunReport([torn, whole]).to_json())
    assert (report["exit_code"], report["batch"], report["damages"]) == (EXIT_QUARANTINE, 8, [])
    assert [batch["exit_code"] for batch in report["batches"]] == [EXIT_QUARANTINE, EXIT_DONE]


def test_a_condition_that_a_later_batch_ended_does_not_count() -> None:
    incomplete = replace(summary(1, TABLE), conditions=CONDITIONS[1:])
    complete = replace(summary(2, TABLE), conditions=())
    assert (incomplete.exit_code, RunReport([incomplete, complete]).exit_code) == (EXIT_QUARANTINE, EXIT_DONE)
    assert RunReport([complete, incomplete]).exit_code == EXIT_QUARANTINE
    assert run_metrics([incomplete, complete], {}, 1.0, NOW).conditions == ()


def test_a_run_that_found_nothing_new_reports_its_lag() -> None:
    nothing = RunSummary("shop", 7, 0, 0, 0x1AE7B70, tables=(HELD,), last_commit_time=COMMIT)
    run = run_metrics([nothing], {}, 1.0, NOW)
    assert (run.batches, run.files, run.lag_seconds) == (0, 0, 120.0)
    assert 'pgoutput_etl_lag_seconds{source="shop"} 120.0' in prometheus_text(run)


def test_before_any_commit_there_is_no_lag() -> None:
    run = run_metrics([RunSummary("shop", 0, 0, 0, 0)], {}, 1.0, NOW)
    assert (run.last_commit_lsn, run.last_commit_timestamp, run.lag_seconds) == (None, None, None)
    assert "lag" not in prometheus_text(run)
    assert "last_commit" not in prometheus_text(run)


def test_a_failed_run_reports_the_class_of_its_error_and_no_text() -> None:
    run = failure_metrics("shop", RunError("secret"), {"look": 0.5}, 2.0, NOW)
    assert json.loads(run.to_json())["error"] == "RunError"
    assert "secret" not in run.to_json() + prometheus_text(run)
    names = {gauge.name for gauge in gauges(run)}
    assert names == {f"pgoutput_etl_run_{x}" for x in ("timestamp_seconds", "exit_code", "duration_seconds",
                                                       "stage_duration_seconds")}  # fmt: skip


def test_a_stage_timer_sums_seconds_by_stage() -> None:
    times = iter([10.0, 11.0, 13.0, 13.5, 20.0])
    stages = StageTimer(clock=lambda: next(times))
    for stage in ("look", "read", "look", None, "read"):
        stages.start(stage)
    assert stages.seconds == {"look": 1.5, "read": 2.0}


def test_laps_divide_the_stages_of_a_run_among_its_batches() -> None:
    times = iter([0.0, 1.0, 5.0, 6.0, 8.0])
    stages = StageTimer(clock=lambda: next(times))
    stages.start("look")
    stages.start("write")
    assert stages.lap() == {"look": 1.0, "write": 4.0}
    stages.start("look")
    assert stages.lap() == {"look": 2.0, "write": 1.0}
    assert stages.seconds == {"look": 3.0, "write": 5.0}


def warned(run: RunMetrics, metrics: Metrics) -> list[str]:
    with patch("pgoutput_etl.outputs.publish.print_to_stderr") as printed:
        RunPublisher.of("shop", metrics).end(EndedRun(run))
    return [call.args[0] for call in printed.call_args_list]


def test_each_run_appends_a_json_line_and_replaces_the_prometheus_file(tmp_path: Path) -> None:
    lines, prom = tmp_path / "runs.jsonl", tmp_path / "shop.prom"
    metrics = Metrics(json=str(lines), prometheus=str(prom))
    check(metrics)
    failed = failure_metrics("shop", RunError("x"), {}, 2.0, NOW)
    assert warned(failed, metrics) == []
    assert warned(RUN, metrics) == []
    assert [json.loads(line)["exit_code"] for line in lines.read_text().splitlines()] == [1, 3]
    assert prom.read_text() == TEXT
    assert stat.S_IMODE(prom.stat().st_mode) == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs.jsonl", "shop.prom"]


def test_another_job_leaves_what_apply_has_said(tmp_path: Path) -> None:
    """And a run of it that has to wait leaves what its earlier run has said."""
    lines, prom = tmp_path / "runs.jsonl", tmp_path / "shop.prom"
    metrics = Metrics(json=str(lines), prometheus=str(prom))
    assert warned(RUN, metrics) == []
    with RunRecorder("shop", metrics, job="backfill") as recorder:
        recorder.job_done(3, ChangedTables((TABLE, HELD), CONDITIONS))
    with pytest.raises(AnotherRunError), RunRecorder("shop", metrics, job="backfill"):
        raise AnotherRunError("x")
    with RunRecorder("shop", metrics, job="verify") as recorder:
        recorder.job_done(75)
    with RunRecorder("shop", Metrics(json=str(tmp_path / "repaired.jsonl")), job="verify") as recorder:
        recorder.job_done(75, ChangedTables((TABLE,)))
    assert json.loads((tmp_path / "repaired.jsonl").read_text())["rows"]["inserted"] == 7, "it has written"
    with pytest.raises(RunError), RunRecorder("shop", metrics, job="maintain"):
        raise RunError("x")
    runs = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(run["job"], run["exit_code"]) for run in runs] == [("apply", 3), ("backfill", 3), ("maintain", 1)]
    assert runs[1]["rows"] == {"inserted": 7, "updated": 2, "deleted": 1}
    assert [condition["state"] for condition in runs[1]["conditions"]] == ["held", "diverged"]
    assert prom.read_text() == TEXT
    assert {path.name for path in tmp_path.glob("*.prom")} == {"shop.prom", "shop.backfill.prom", "shop.maintain.prom"}
    text = (tmp_path / "shop.backfill.prom").read_text()
    assert 'pgoutput_etl_job_exit_code{source="shop",job_name="backfill"} 3.0\n' in text
    assert '{source="shop",job_name="backfill",schema="public",table="t",operation="inserted"} 7.0\n' in text
    names = {line.split("{")[0] for line in text.splitlines() if not line.startswith("#")}
    assert names.isdisjoint(gauge.name for gauge in gauges(RUN))


def test_json_lines_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    check(Metrics(json="stderr"))
    assert warned(RUN, Metrics(json="stderr")) == []
    printed = capsys.readouterr()
    assert printed.out == ""
    assert json.loads(printed.err)["source"] == "shop"


def test_a_failure_to_publish_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "gone" / "x"
    metrics = Metrics(json=f"{missing}.jsonl", prometheus=f"{missing}.prom")
    assert warned(RUN, metrics) == [
        "metrics.json: the run could not be published: No such file or directory",
        "metrics.prometheus: the run could not be published: No such file or directory",
    ]
    RunRecorder("shop", metrics).done([summary(1)])
    assert capsys.readouterr().err.count("could not be published") == 2


def test_a_failed_replacement_leaves_no_temporary_file(tmp_path: Path) -> None:
    (tmp_path / "shop.prom").mkdir()
    [warning] = warned(RUN, Metrics(prometheus=str(tmp_path / "shop.prom")))
    assert "could not be published" in warning
    assert [path.name for path in tmp_path.iterdir()] == ["shop.prom"]


@pytest.mark.parametrize("key", ["json", "prometheus"])
def test_unwritable_files_are_refused(tmp_path: Path, key: str) -> None:
    def metrics(path: Path) -> Metrics:
        return Metrics(json=str(path)) if key == "json" else Metrics(prometheus=str(path))

    with pytest.raises(ConfigError, match=rf"^metrics\.{key}: expected a file in an existing folder$"):
        check(metrics(tmp_path / "gone" / "x.prom"))
    (tmp_path / "x.prom").mkdir()
    with pytest.raises(ConfigError, match=rf"^metrics\.{key}: expected a file that can be written$"):
        check(metrics(tmp_path / "x.prom"))


def test_a_missing_library_is_refused_with_the_install_command(tmp_path: Path) -> None:
    blocked = (
        "import sys\nsys.modules['opentelemetry'] = None\n"
        "import importlib.util as u\nu.find_spec = lambda name: None\n"
        "from pgoutput_etl.config.settings import Metrics\nfrom pgoutput_etl.outputs.publish import RunPublisher\n"
        "RunPublisher.of('shop', Metrics(opentelemetry=True)).check()"
    )
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "ConfigError: metrics.opentelemetry: OpenTelemetry is not installed: pip install" in done.stderr


needs_library = pytest.mark.skipif(find_spec("opentelemetry") is None, reason="the extra otel is not installed")


@needs_library
def test_opentelemetry_exports_all_gauges(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "console")
    check(Metrics(opentelemetry=True))
    assert warned(RUN, Metrics(opentelemetry=True)) == []
    exported = json.loads(capsys.readouterr().out)
    [scope] = exported["resource_metrics"][0]["scope_metrics"]
    points = {metric["name"]: metric["data"]["data_points"] for metric in scope["metrics"]}
    assert points.keys() == {gauge.name for gauge in gauges(RUN)}
    [lag] = points["pgoutput_etl_lag_seconds"]
    assert (lag["attributes"], lag["value"]) == ({"source": "shop"}, 120.0)


@needs_library
def test_a_missing_exporter_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "pigeon")
    with pytest.raises(ConfigError, match=r"no exporter for OTEL_METRICS_EXPORTER .*; expected one of .*console"):
        check(Metrics(opentelemetry=True))
    [warning] = warned(RUN, Metrics(opentelemetry=True))
    assert warning == "metrics.opentelemetry: the run could not be published: ConfigError"


@needs_library
def test_the_exporter_none_sends_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    check(Metrics(opentelemetry=True))
    assert warned(RUN, Metrics(opentelemetry=True)) == []
    assert capsys.readouterr().out == ""
