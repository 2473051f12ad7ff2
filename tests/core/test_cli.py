"""The jobs as they are typed, as far as they go without Spark: `jobs/NAME.py` and `pgoutput-etl NAME`."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pgoutput_etl.cli import JOBS, command, main
from tests.support.command_line import help_of

ROOT = Path(__file__).parents[2]
WITH_CONFIG = sorted(set(JOBS) - {"demo", "init", "inspect", "show"})
NEEDED = {
    "backfill": ["--tables", "*"],
    "export": ["--tables", "*", "--out", "a"],
    "forget": ["--request", "a"],
    "undo": ["--xid", "1", "--out", "a"],
    "snapshot": ["--tables", "*", "--csv", "a", "--lsn", "0/1"],
    "verify": ["--csv", "a", "--tables", "a.b"],
}


@pytest.fixture(autouse=True)
def _without_options_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "pyspark-shell")


def test_every_job_is_a_file_and_a_command() -> None:
    assert {path.stem for path in (ROOT / "jobs").glob("*.py")} == set(JOBS)
    assert {job: command(job).name for job in JOBS} == {job: job for job in JOBS}


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        (KeyboardInterrupt(), 130, ["stopped by SIGINT (Ctrl-C)"]),
        (
            OSError(28, "No space left on device"),
            1,
            [
                "PGO-9010: status failed: No space left on device",
                "  a disk is full: the target's, or that of Spark's own files (spark.local.dir, by default /tmp)",
            ],
        ),
    ],
)
def test_a_stopped_job_and_a_full_disk_take_a_line_or_two(
    error: BaseException, code: int, lines: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise error

    assert replace(command("status"), run=fail).main("status", ["--config", "a"]) == code
    assert capsys.readouterr().err.splitlines()[: len(lines)] == lines


@pytest.mark.parametrize("job", sorted(JOBS))
def test_help_has_an_example_of_the_job(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([job, "--help"]) == 0
    printed = capsys.readouterr().out
    assert f"Usage: pgoutput-etl {job}" in printed
    assert f"pgoutput-etl {job} " in printed.partition("example:")[2]
    assert not re.search(r"spark-submit|conf/|build/", printed)
    assert printed.endswith("terms: docs/glossary.md\n")


def test_a_text_that_nobody_reads_or_that_has_no_place_is_no_traceback() -> None:
    query = [sys.executable, "jobs/snapshot.py", "--catalog-query"]
    with subprocess.Popen(query, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        assert job.stderr is not None
        job.stdout.close()
        assert (job.stderr.read(), job.wait()) == ("", 1)
    with Path("/dev/full").open("w") as full:
        lost = subprocess.run(query, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert lost.returncode == 1
    assert lost.stderr.startswith("PGO-4000: RunError: standard output can't be written")
    assert "Traceback" not in lost.stderr


def test_examples_in_a_clone_name_files_that_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    """After `make demo`, which writes build/demo."""
    monkeypatch.setattr(sys, "argv", ["jobs/inspect.py"])
    for job in JOBS:
        example = help_of(command(job)).partition("example:")[2]
        assert f"jobs/{job}.py" in example
        paths = re.findall(r"\b(?:jobs|conf|tests)/[\w./]+", example)
        assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("job", [job for job in WITH_CONFIG if job != "start"])  # which writes it
def test_a_configuration_that_is_not_there_ends_a_job_with_2(
    job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none.yaml"
    assert main([job, "--config", str(missing), *NEEDED.get(job, [])]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("PGO-1100: ConfigError: ")
    assert str(missing) in printed.err


@pytest.mark.parametrize(("arguments", "code"), [([], 2), (["--help"], 0), (["nightly"], 2)])
def test_usage_lists_all_jobs_unless_another_is_named(
    arguments: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    printed = capsys.readouterr()
    usage, other = (printed.out, printed.err) if code == 0 else (printed.err, printed.out)
    is_unknown = arguments == ["nightly"]
    assert ("No such command 'nightly'" in usage) == is_unknown
    assert all(f"  {job} " in usage for job in JOBS) != is_unknown
    assert other == ""


@pytest.mark.parametrize(
    "words",
    [
        ["--config", "apply", "status"],
        ["status", "--config", "apply"],
        ["--quiet", "--set", "a=b", "status", "--config", "apply"],
        ["--max-age", "2d", "--config=apply", "--json", "status"],
        ["--master", "local[1]", "--config", "apply", "--log-level", "error", "status"],
    ],
)
def test_options_stand_before_or_after_the_job(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Also if a value is the name of a job."""
    assert main(words) == 2
    assert capsys.readouterr().err == "PGO-1100: ConfigError: apply: can't be read: No such file or directory\n"


@pytest.mark.parametrize("words", [["--nonsense", "status"], ["--config"], ["--quiet=1", "status"], ["x", "status"]])
def test_other_words_before_a_job_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert "No such " in capsys.readouterr().err


def test_a_job_that_is_not_the_first_word_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--", "status"]) == 2
    assert "No such command 'status'" in capsys.readouterr().err


WITHOUT = """
import sys
for name in ("pyspark", "delta", "sqlglot"):
    sys.modules[name] = None
from pgoutput_etl.cli import main
sys.exit(main(sys.argv[1:]))
"""


def without_spark(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command: list[str | Path] = [sys.executable, "-c", WITHOUT, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_files_are_read_without_spark_and_other_jobs_name_their_extra(tmp_path: Path) -> None:
    archive, config = ROOT / "tests/data/pg16/v1", tmp_path / "shop.yaml"
    inspected = without_spark("inspect", "--json", "--quiet", archive)
    assert json.loads(inspected.stdout)["transactions"], inspected.stderr
    written = without_spark("init", archive, "--out", config)
    assert written.returncode == 0, written.stderr
    config.write_text(config.read_text().replace("./warehouse", str(tmp_path / "warehouse")))
    status = without_spark("status", "--config", config, "--json")
    assert json.loads(status.stdout)["waiting"]["files"] == 2, status.stderr
    assert without_spark("validate", "--config", config).stdout.startswith(f"{config} is valid.")
    for job in ("apply", "plan"):
        done = without_spark(job, "--config", config)
        how = "pip install 'pgoutput-etl[spark]', or make demo in a clone\n"
        expected = f"pgoutput-etl {job}: {sys.executable} has no module pyspark: {how}"
        assert (done.returncode, done.stdout, done.stderr) == (2, "", expected)
    assert not (tmp_path / "warehouse").exists()


def test_the_installed_command_inspects_files(tmp_path: Path) -> None:
    installed = Path(sys.executable).with_name("pgoutput-etl")
    run_inspect: list[str | Path] = [installed, "inspect", "--json", "--quiet", ROOT / "tests/data/pg16/v1"]
    done = subprocess.run(run_inspect, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["transactions"]
    version = subprocess.run([installed, "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert version.stdout.startswith("0.")
