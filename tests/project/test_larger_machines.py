"""`python -m benchmarks larger` measures the scenarios on other machines, and compares them with the model."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import corpora, larger, work
from benchmarks.jobs import JobRun
from benchmarks.larger import LargerMachine, ScenarioError, check_cores, storage_kind
from benchmarks.page import PAGES, kept_machines, page
from benchmarks.scenarios import SCENARIOS
from benchmarks.work import NightWork

BUCKET, SECRET = "bucketmarker7f", "secretmarker9d"
ARGUMENTS = ("--storage", f"s3a://{BUCKET}/bench", "--conf", f"spark.hadoop.fs.s3a.secret.key={SECRET}")
DESCRIBED: dict[str, Any] = {
    "cores": 16,
    "memory": "32g",
    "master": "local",
    "storage": "s3a",
    "java": "17.0.1",
    "spark": "4.2.0",
    "pgoutput_etl": "0.2.0",
}

Main = Callable[..., Any]


@pytest.fixture
def main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Main:
    """Runs the command and returns its file."""
    monkeypatch.setattr(corpora, "BUILD", tmp_path)
    file = tmp_path / "machine.json"

    def run(*arguments: str, exits: str | None = None) -> Any:
        monkeypatch.setattr("sys.argv", ["benchmarks", "--json", str(file), *arguments])
        if exits is None:
            assert benchmarks.main() == 0
        else:
            with pytest.raises(SystemExit) as error:
                benchmarks.main()
            assert re.search(exits, str(error.value))
        return json.loads(file.read_text()) if file.exists() else {}

    return run


@pytest.fixture
def without_spark(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Nights and scenarios take two seconds; returned names of scenarios, or `count`, fail."""
    failing: set[str] = set()

    def count(name: str, corpus: Any, workers: int, *_: Any) -> list[NightWork]:
        if "count" in failing:
            raise RuntimeError("no cluster")
        landed, zeros = corpus.landed, {field.name: 0 for field in fields(NightWork)}
        sizes = {"messages": landed.messages, "bytes": landed.bytes, "files": landed.files}
        night: Any = {**zeros, **sizes, "night": name, "workers": workers, "tables": len(corpus.tables)}
        return [NightWork(**{**night, "cold": cold, "executors": 8.0}) for cold in (True, False)]

    def call(_: Any, function: Any, *arguments: Any) -> Any:
        if function is larger._prepared:
            name, scale, _ = arguments
            return SCENARIOS[name](scale), {}
        if arguments[1].name in failing:
            raise ScenarioError("WrongResultError")
        return JobRun(2.0, {"scan": 1.0})

    monkeypatch.setattr(larger, "described", lambda _: DESCRIBED)
    monkeypatch.setattr(larger, "in_new_process", call)
    monkeypatch.setattr(work, "measure_night", count)
    return failing


def test_options_of_spark_and_of_the_machine(main: Main, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setitem(benchmarks.PARTS, "larger", lambda options, _: found.append(options.larger))
    main("larger", "--cores", "16", "--memory=32g", *ARGUMENTS, "--master", "spark://host:7077")
    main("larger", "--cores=3")
    spark = (*ARGUMENTS[2:], "--master", "spark://host:7077")
    assert found == [LargerMachine(16, "32g", ARGUMENTS[1], spark), LargerMachine(3, "6g")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["decoding", "--cores", "4"], "are of the part larger"),
        (["--conf", "spark.ui.enabled=false"], "are of the part larger"),
        (["larger", "--conf"], "--conf needs a value"),
        (["larger", "--cores", "many"], "invalid int value"),
    ],
)
def test_options_that_are_refused(
    arguments: list[str], message: str, main: Main, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(*arguments, exits="^2$") == {}
    assert message in capsys.readouterr().err


def test_an_unsuitable_machine_ends_the_run_before_anything_is_measured(
    main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    def described(machine: LargerMachine) -> None:
        check_cores(4, machine.cores)

    monkeypatch.setattr(larger, "described", described)
    assert main("larger", "--cores", "16", exits="expected 16 cores, found 4") == {}
    assert main("larger", "--only", "narrow", exits="expected scenarios of .*, found narrow") == {}
    check_cores(16, 16)


@pytest.mark.parametrize(
    ("storage", "kind"),
    [(None, "local disk"), ("s3a://bucket/folder", "s3a"), ("abfss://x@y.z/f", "abfss"), ("/mnt/share", "file")],
)
def test_storage_is_recorded_by_its_kind(storage: str | None, kind: str) -> None:
    assert storage_kind(storage) == kind


@pytest.mark.usefixtures("without_spark")
def test_scenarios_grow_with_the_cores_and_are_compared_with_the_model(main: Main) -> None:
    file = main("larger", "--cores", "16", "--scale", "0.001", "--runs", "1", *ARGUMENTS)
    assert {night["workers"] for night in file["work"]["found"]} == {2}
    assert file["larger"]["found"]["machine"] == DESCRIBED
    runs = {run["scenario"]: run for run in file["larger"]["found"]["scenarios"]}
    assert list(runs) == list(SCENARIOS)
    assert runs["pgbench"]["messages"] == pytest.approx(8 * 840 * 6, rel=0.01), "16 cores: eight times the scale"
    for run in runs.values():
        assert (run["seconds"], run["stages"], run["failed"]) == (2, {"scan": 1}, None)
        assert run["messages_per_s"] == run["messages"] / 2
        assert run["mb_per_s"] == run["bytes"] / 2e6
        assert run["predicted"] == 8 / 16, "counted nights cost eight seconds, whatever their size"
        assert run["ratio"] == 4


@pytest.mark.usefixtures("without_spark")
def test_the_file_names_neither_host_nor_storage_nor_credentials(main: Main, tmp_path: Path) -> None:
    text = json.dumps(main("larger", "--cores", "2", "--scale", "0.001", "--only", "wide", *ARGUMENTS))
    for name in (BUCKET, SECRET, platform.node(), str(tmp_path)):
        assert re.search(rf"\b{re.escape(name)}\b", text) is None


def test_a_scenario_that_fails_keeps_the_others(main: Main, without_spark: set[str]) -> None:
    without_spark.add("wide")
    small = ("larger", "--cores", "2", "--scale", "0.001")
    file = main(*small, exits="wide failed, see above; to repeat: --only wide")
    failed = {run["scenario"]: run["failed"] for run in file["larger"]["found"]["scenarios"]}
    assert failed == {**dict.fromkeys(SCENARIOS), "wide": "WrongResultError"}

    without_spark.clear()
    repeated = main(*small, "--only", "wide")["larger"]["found"]["scenarios"]
    assert [run["scenario"] for run in repeated] == list(SCENARIOS)
    assert [run["seconds"] for run in repeated] == [2] * len(SCENARIOS)


def test_another_machine_keeps_no_figures(main: Main, without_spark: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert not without_spark
    small = ("larger", "--cores", "2", "--scale", "0.001")
    main(*small, "--only", "pgbench")
    monkeypatch.setattr(larger, "described", lambda _: {**DESCRIBED, "storage": "gs"})
    found = main(*small, "--only", "tables")["larger"]["found"]
    assert [run["scenario"] for run in found["scenarios"]] == ["tables"]


def test_scenarios_are_measured_without_a_prediction_if_counting_fails(main: Main, without_spark: set[str]) -> None:
    without_spark.add("count")
    file = main("larger", "--cores", "2", "--scale", "0.001", "--only", "tables")
    [run] = file["larger"]["found"]["scenarios"]
    assert (run["seconds"], run["predicted"], run["ratio"]) == (2, None, None)


def test_each_file_is_a_row_of_the_page() -> None:
    run = {"scenario": "pgbench", "seconds": 12.34, "predicted": 24.0, "mb_per_s": 210.0, "failed": None}
    failed = {"scenario": "wide", "seconds": None, "predicted": None, "mb_per_s": None, "failed": "WrongResultError"}
    part: dict[str, Any] = {
        "scale": 1,
        "runs": 3,
        "cores": 16,
        "memory_GiB": 62.8,
        "processor": "x86_64",
        "python": "3.12.3",
    }
    files = [
        {**part, "found": {"machine": DESCRIBED, "scenarios": [run, failed]}},
        {**part, "found": {"machine": {**DESCRIBED, "cores": 8}, "scenarios": [{**run, "predicted": None}]}},
    ]
    rows = page("<!-- figures: machines -->\n<!-- end -->\n", {"machines": files}).splitlines()
    first, second = (f"{cores} cores, 62.8 GiB, driver of 32g, x86_64, local, s3a" for cores in (16, 8))
    versions = "pgoutput_etl 0.2.0, Spark 4.2.0, Java 17.0.1, Python 3.12.3"
    assert rows[1] == "| seconds / by the model, at most | scale | runs | versions | pgbench | wide |"
    assert rows[3:5] == [
        f"| {first} | 1 | 3 | {versions} | 12.3 / 24 | failed |",
        f"| {second} | 1 | 3 | {versions} | 12.3 / - |  |",
    ]
    assert rows[-4:-2] == [f"| {first} | 210 |  |", f"| {second} | 210 |  |"]


def test_the_page_has_the_kept_files() -> None:
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        assert page(text, kept_machines()) == text, "regenerate it: python -m benchmarks.page"
