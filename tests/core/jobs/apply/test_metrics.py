"""A run's figures: what JSON lines, Prometheus and OpenTelemetry are told, and what becomes of a run if they aren't."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from importlib.util import find_spec
from pathlib import Path

import pytest

from pgoutput_etl.config.settings import Metrics
from pgoutput_etl.console import EXIT_DONE, EXIT_QUARANTINE
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.jobs.apply.metrics import (
    RunFigures,
    RunRecorder,
    StageTimer,
    check,
    families,
    figures,
    figures_of_failure,
    prometheus_text,
    publish,
)
from pgoutput_etl.jobs.apply.report import RunSummary, to_json
from pgoutput_etl.load.summary import TableSummary

NOW = datetime(2026, 3, 1, 2, 13, tzinfo=timezone.utc)
COMMIT = (NOW - timedelta(minutes=2) - datetime(2000, 1, 1, tzinfo=timezone.utc)) // timedelta(microseconds=1)


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
    )


TABLE = TableSummary("public", "t", "/x/t", 3, rows=10, inserted=7, updated=2, deleted=1)
HELD = TableSummary("public", 'odd "\\\n', "/x/o", 0, held="why")
RUN = figures([summary(1, TABLE), summary(2, HELD, TABLE)], {"look": 0.5, "write": 2.0}, 3.5, NOW)

TEXT = """\
# HELP pgoutput_etl_run_timestamp_seconds When the run ended, in seconds since 1970.
# TYPE pgoutput_etl_run_timestamp_seconds gauge
pgoutput_etl_run_timestamp_seconds{source="shop"} 1772331180.0
# HELP pgoutput_etl_run_exit_code 0 done, 1 failed, 2 wrong configuration, 3 done with quarantine.
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
# HELP pgoutput_etl_run_content_bytes Bytes of content, by what became of them.
# TYPE pgoutput_etl_run_content_bytes gauge
pgoutput_etl_run_content_bytes{source="shop",account="applied"} 180.0
pgoutput_etl_run_content_bytes{source="shop",account="aborted"} 20.0
# HELP pgoutput_etl_run_messages Messages that the run read, by type.
# TYPE pgoutput_etl_run_messages gauge
pgoutput_etl_run_messages{source="shop",type="B"} 6.0
pgoutput_etl_run_messages{source="shop",type="I"} 10.0
# HELP pgoutput_etl_run_transactions Transactions, by what became of them.
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
# HELP pgoutput_etl_table_held 1 if the table is left as it was.
# TYPE pgoutput_etl_table_held gauge
pgoutput_etl_table_held{source="shop",schema="public",table="odd \\"\\\\\\n"} 1.0
pgoutput_etl_table_held{source="shop",schema="public",table="t"} 0.0
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


def test_what_prometheus_reads() -> None:
    assert prometheus_text(RUN) == TEXT


_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
_SAMPLE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)\{{({_LABEL}(?:,{_LABEL})*)\}} (-?[0-9.e+-]+)")


def test_it_is_prometheus_text_as_its_documentation_has_it() -> None:
    """Names as they must be, a HELP and a TYPE before a metric's samples, no sample twice, a new line at the end."""
    named, typed, seen = [], [], set()
    for line in prometheus_text(RUN).removesuffix("\n").split("\n"):
        if line.startswith("# HELP "):
            named.append(line.split(" ")[2])
        elif line.startswith("# TYPE "):
            typed.append(line.split(" ")[2])
            assert line.endswith(" gauge")
        else:
            found = _SAMPLE.fullmatch(line)
            assert found is not None, line
            assert found[1] == named[-1] == typed[-1]
            float(found[3])
            assert (found[1], found[2]) not in seen
            seen.add((found[1], found[2]))
    assert named == typed
    assert len(set(named)) == len(named)
    assert prometheus_text(RUN).endswith("\n")


def test_a_json_line_has_it_all() -> None:
    told = json.loads(RUN.to_json())
    assert "\n" not in RUN.to_json()
    assert told["rows"] == {"inserted": 14, "updated": 4, "deleted": 2}
    assert told["stages"] == {"look": 0.5, "write": 2.0}
    assert (told["bytes"], told["content_bytes"]) == (200, {"applied": 180, "aborted": 20})
    assert (told["lag_seconds"], told["seconds"], told["exit_code"]) == (120.0, 3.5, 3)
    assert told["logical_messages"] == {"transactional": 8, "others": 2}
    assert told["tables"][1] == {
        "schema": "public", "table": "t", "rows": 10, "inserted": 14, "updated": 4, "deleted": 2, "held": False,
    }  # fmt: skip
    assert told["at"] == "2026-03-01T02:13:00+00:00"


def test_what_an_earlier_batch_of_a_run_set_aside_is_not_forgotten_by_a_later_one() -> None:
    torn = RunSummary("shop", 7, 1, 10, 0x100, damages=("a.bin: torn",))
    whole = RunSummary("shop", 8, 1, 10, 0x200)
    assert figures([torn, whole], {}, 1.0, NOW).exit_code == EXIT_QUARANTINE
    told = json.loads(to_json([torn, whole]))
    assert (told["exit_code"], told["batch"], told["damages"]) == (EXIT_QUARANTINE, 8, [])
    assert [batch["exit_code"] for batch in told["batches"]] == [EXIT_QUARANTINE, EXIT_DONE]


def test_a_run_that_found_nothing_new_still_tells_how_far_behind_it_is() -> None:
    nothing = RunSummary("shop", 7, 0, 0, 0x1AE7B70, tables=(HELD,), last_commit_time=COMMIT)
    run = figures([nothing], {}, 1.0, NOW)
    assert (run.batches, run.files, run.lag_seconds) == (0, 0, 120.0)
    assert 'pgoutput_etl_lag_seconds{source="shop"} 120.0' in prometheus_text(run)


def test_before_any_commit_there_is_no_lag() -> None:
    run = figures([RunSummary("shop", 0, 0, 0, 0)], {}, 1.0, NOW)
    assert (run.last_commit_lsn, run.last_commit_timestamp, run.lag_seconds) == (None, None, None)
    assert "lag" not in prometheus_text(run)
    assert "last_commit" not in prometheus_text(run)


def test_of_a_run_that_failed_its_kind_of_error_is_told_and_nothing_of_what_it_says() -> None:
    run = figures_of_failure("shop", RunError("secret"), 1, {"look": 0.5}, 2.0, NOW)
    assert json.loads(run.to_json())["error"] == "RunError"
    assert "secret" not in run.to_json() + prometheus_text(run)
    names = {family.name for family in families(run)}
    assert names == {f"pgoutput_etl_run_{x}" for x in ("timestamp_seconds", "exit_code", "duration_seconds",
                                                       "stage_duration_seconds")}  # fmt: skip


def test_seconds_by_stage() -> None:
    times = iter([10.0, 11.0, 13.0, 13.5, 20.0])
    stages = StageTimer(clock=lambda: next(times))
    for stage in ("look", "read", "look", None, "read"):
        stages.start(stage)
    assert stages.seconds == {"look": 1.5, "read": 2.0}


def warned(run: RunFigures, metrics: Metrics) -> list[str]:
    said: list[str] = []
    publish(run, metrics, said.append)
    return said


def test_each_run_adds_a_line_and_replaces_the_file_for_prometheus(tmp_path: Path) -> None:
    lines, prom = tmp_path / "runs.jsonl", tmp_path / "shop.prom"
    metrics = Metrics(json=str(lines), prometheus=str(prom))
    check(metrics)
    failed = figures_of_failure("shop", RunError("x"), 1, {}, 2.0, NOW)
    assert warned(failed, metrics) == []
    assert warned(RUN, metrics) == []
    assert [json.loads(line)["exit_code"] for line in lines.read_text().splitlines()] == [1, 3]
    assert prom.read_text() == TEXT
    assert stat.S_IMODE(prom.stat().st_mode) == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs.jsonl", "shop.prom"]


def test_json_lines_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    check(Metrics(json="stderr"))
    assert warned(RUN, Metrics(json="stderr")) == []
    printed = capsys.readouterr()
    assert printed.out == ""
    assert json.loads(printed.err)["source"] == "shop"


def test_a_failure_is_said_and_nothing_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "gone" / "x"
    metrics = Metrics(json=f"{there}.jsonl", prometheus=f"{there}.prom")
    assert warned(RUN, metrics) == [
        "metrics.json: the run's figures could not be told: No such file or directory",
        "metrics.prometheus: the run's figures could not be told: No such file or directory",
    ]
    RunRecorder("shop", metrics).done([summary(1)])
    assert capsys.readouterr().err.count("could not be told") == 2


def test_an_old_file_stays_whole_where_the_new_one_can_t_take_its_place(tmp_path: Path) -> None:
    (tmp_path / "shop.prom").mkdir()
    [said] = warned(RUN, Metrics(prometheus=str(tmp_path / "shop.prom")))
    assert "could not be told" in said
    assert [path.name for path in tmp_path.iterdir()] == ["shop.prom"]


@pytest.mark.parametrize("key", ["json", "prometheus"])
def test_what_can_t_be_written_is_refused_before_anything_is_read(tmp_path: Path, key: str) -> None:
    def metrics(path: Path) -> Metrics:
        return Metrics(json=str(path)) if key == "json" else Metrics(prometheus=str(path))

    with pytest.raises(ConfigError, match=rf"^metrics\.{key}: expected a file in a folder that is there$"):
        check(metrics(tmp_path / "gone" / "x.prom"))
    (tmp_path / "x.prom").mkdir()
    with pytest.raises(ConfigError, match=rf"^metrics\.{key}: expected a file that can be written$"):
        check(metrics(tmp_path / "x.prom"))


def test_without_the_library_it_is_refused_and_says_what_to_install(tmp_path: Path) -> None:
    blocked = (
        "import sys\nsys.modules['opentelemetry'] = None\n"
        "import importlib.util as u\nu.find_spec = lambda name: None\n"
        "from pgoutput_etl.config.settings import Metrics\nfrom pgoutput_etl.jobs.apply.metrics import check\n"
        "check(Metrics(opentelemetry=True))"
    )
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "ConfigError: metrics.opentelemetry: OpenTelemetry is not installed: pip install" in done.stderr


needs_library = pytest.mark.skipif(find_spec("opentelemetry") is None, reason="the extra otel is not installed")


@needs_library
def test_opentelemetry_s_own_library_sends_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "console")
    check(Metrics(opentelemetry=True))
    assert warned(RUN, Metrics(opentelemetry=True)) == []
    told = json.loads(capsys.readouterr().out)
    [scope] = told["resource_metrics"][0]["scope_metrics"]
    found = {metric["name"]: metric["data"]["data_points"] for metric in scope["metrics"]}
    assert found.keys() == {family.name for family in families(RUN)}
    [lag] = found["pgoutput_etl_lag_seconds"]
    assert (lag["attributes"], lag["value"]) == ({"source": "shop"}, 120.0)


@needs_library
def test_an_exporter_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "pigeon")
    with pytest.raises(ConfigError, match=r"no exporter for OTEL_METRICS_EXPORTER is installed; there are: .*console"):
        check(Metrics(opentelemetry=True))
    [said] = warned(RUN, Metrics(opentelemetry=True))
    assert said == "metrics.opentelemetry: the run's figures could not be told: ConfigError"


@needs_library
def test_none_sends_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    check(Metrics(opentelemetry=True))
    assert warned(RUN, Metrics(opentelemetry=True)) == []
    assert capsys.readouterr().out == ""
