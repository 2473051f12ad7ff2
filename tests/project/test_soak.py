"""`make soak` resumes a stopped run, and adds up what tests count."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import pathlib
import pytest

pytestmark = pytest.mark.soak

def test_passes():
    with pathlib.Path("runs.txt").open("a") as lines:
        lines.write("passes ")

def test_fails_once():
    with pathlib.Path("runs.txt").open("a") as lines:
        lines.write("fails ")
    assert pathlib.Path("mended").exists()
"""


COUNTING = """
import pytest

@pytest.mark.soak
@pytest.mark.parametrize("count", [2, 3])
def test_counts(count, record_property):
    record_property("counts", '{"equal": %s, "other": 0}' % count)
"""


def soak(folder: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from pathlib import Path; from tools.soak import run; sys.exit(run(Path('record'), ['.']))"
    environ = {"PYTHONPATH": str(ROOT), "PATH": ""}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environ, capture_output=True, text=True, check=False
    )


def test_passed_tests_are_not_run_again_and_counts_are_added_up(tmp_path: Path) -> None:
    (tmp_path / "test_long.py").write_text(TESTS, encoding="utf-8")
    (tmp_path / "test_counting.py").write_text(COUNTING, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = soak\n", encoding="utf-8")
    first = soak(tmp_path)
    assert first.returncode == 1
    assert '\n{"equal": 5, "other": 0}\n' in first.stdout
    (tmp_path / "mended").touch()
    assert soak(tmp_path).returncode == 0
    last = soak(tmp_path)
    assert last.returncode == 0, "nothing is left to run"
    assert '"equal"' not in last.stdout
    runs = (tmp_path / "runs.txt").read_text(encoding="utf-8").split()
    assert sorted(runs) == ["fails", "fails", "passes"], "two processes run the two tests in either order"
