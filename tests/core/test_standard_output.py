"""Jobs whose standard output is closed, full, or read only in part."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CLONE = Path(__file__).parents[2]
ARCHIVE = CLONE / "tests/data/pg16/v1"

Completed = subprocess.CompletedProcess[str]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text(f"source: {{name: a, landing: '{ARCHIVE}'}}\ntarget: {{root: '{tmp_path / 'tables'}'}}\n")
    return file


def shell(command: str, *arguments: str | Path) -> Completed:
    """Runs a shell's command; its "$@" is the job's command line."""
    job, *options = arguments
    words = ["bash", "-c", command, "bash", sys.executable, CLONE / "jobs" / f"{job}.py", *options]
    env = {**os.environ, "PYTHONPATH": str(CLONE)}
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False, timeout=120)


def test_closed_streams_are_no_error(config: Path) -> None:
    assert shell('"$@" <&- >&- 2>&-', "status", "--config", config).returncode == 0
    assert shell('"$@" >&-', "inspect", ARCHIVE).returncode == 0


def test_a_full_disk_is_reported_in_one_line(config: Path) -> None:
    for arguments in (("status", "--config", config), ("inspect", "--quiet", ARCHIVE)):
        done = shell('"$@" >/dev/full', *arguments)
        reason = "standard output can't be written (No space left on device), so this run's report is lost"
        assert (done.returncode, done.stderr) == (1, f"PGO-4000: RunError: {reason}\n")


@pytest.mark.parametrize("options", [["--json"], []])
def test_a_reader_may_end_before_the_report(config: Path, options: list[str]) -> None:
    done = shell('{ "$@"; echo $? >&2; } | true', "status", "--config", config, *options)
    assert done.stderr == "0\n"


def test_a_job_reads_no_more_files_than_its_reader_wants() -> None:
    done = shell('{ "$@"; echo $? >&2; } | head -n 1', "inspect", "--messages", "--quiet", ARCHIVE)
    assert (done.stdout.count("\n"), done.stderr) == (1, "1\n")
