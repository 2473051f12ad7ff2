"""Runs the long tests in two processes, and resumes a stopped run.

`make soak` runs all of them, `make soak SOAK=spark/long` those below tests/spark/long. The ids of tests that passed are
stored in build/soak, in one file per state of the sources; those tests are not run again for the same sources.

Counts that tests record with the name COUNTS are added up, and printed as JSON.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "build" / "soak"
_RECORD = "PGOUTPUT_ETL_SOAK_RECORD"  # a variable, because pytest's processes import this module as a plugin
COUNTS = "counts"  # the name of a test's property: its value is a JSON object of numbers
_failed: set[str] = set()
_counts: Counter[str] = Counter()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    record = Path(os.environ[_RECORD])
    passed = set(record.read_text(encoding="utf-8").splitlines()) if record.exists() else set()
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
    items[:] = [item for item in items if item.nodeid not in passed]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Records a test that passed. A skipped test runs again: the next run may have the programs that it needs."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return  # the main process gets the same report
    if report.when == "call":
        for name, value in report.user_properties:
            _counts.update(json.loads(str(value)) if name == COUNTS else {})
    if not report.passed:
        _failed.add(report.nodeid)
    elif report.when == "teardown" and report.nodeid not in _failed:
        with Path(os.environ[_RECORD]).open("a", encoding="utf-8") as lines:
            lines.write(f"{report.nodeid}\n")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _counts:
        terminalreporter.write_line(json.dumps(_counts))


def state_of_sources() -> str:
    """The commit, and a digest of the uncommitted changes if there are any."""
    commit = _git("rev-parse", "--short=12", "HEAD").strip()
    changes = _git("diff", "HEAD") + "".join(
        (ROOT / name).read_text(encoding="utf-8", errors="replace")
        for name in _git("ls-files", "--others", "--exclude-standard", "*.py").splitlines()
    )
    return f"{commit}-{hashlib.sha256(changes.encode()).hexdigest()[:8]}" if changes else commit


def _git(*arguments: str) -> str:
    command = ["git", "-c", f"safe.directory={ROOT}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def run(record: Path, arguments: Sequence[str]) -> int:
    """pytest's exit code; 0 if every selected test passed before."""
    record.parent.mkdir(parents=True, exist_ok=True)
    os.environ[_RECORD] = str(record.absolute())
    status = pytest.main(["-v", "-n", "2", "--no-loadscope-reorder", "-p", "tools.soak", "-m", "soak", *arguments])
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED and record.exists() else int(status)


def main(parts: Sequence[str]) -> int:
    return run(RECORDS / f"{state_of_sources()}.txt", [str(ROOT / "tests" / part) for part in parts or ("",)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
