"""Runs the long tests, and goes on where a stopped run stopped.

`make soak` runs all of them, `make soak SOAK=spark/long` those below tests/spark/long. The ids of the tests that passed
are kept in build/soak, in one file per state of the sources, and are not run again for the same sources.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "build" / "soak"


class PassedTests:
    """A pytest plugin that deselects the tests in `record` and appends each test that passes."""

    def __init__(self, record: Path) -> None:
        self._record = record
        self._passed = set(record.read_text(encoding="utf-8").splitlines()) if record.exists() else set()
        self._failed: set[str] = set()

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        done = [item for item in items if item.nodeid in self._passed]
        items[:] = [item for item in items if item.nodeid not in self._passed]
        config.hook.pytest_deselected(items=done)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:  # a skipped test is asked again: the next run may have what it needs
            self._failed.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self._failed:
            with self._record.open("a", encoding="utf-8") as lines:
                lines.write(f"{report.nodeid}\n")


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
    status = pytest.main(["-q", "-m", "soak", *arguments], plugins=[PassedTests(record)])
    return 0 if status == pytest.ExitCode.NO_TESTS_COLLECTED and record.exists() else int(status)


def main(parts: Sequence[str]) -> int:
    return run(RECORDS / f"{state_of_sources()}.txt", [str(ROOT / "tests" / part) for part in parts or ("",)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
