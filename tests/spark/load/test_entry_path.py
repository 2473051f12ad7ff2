"""The way from a job's file to Delta's MERGE is short enough to be read."""

from __future__ import annotations

import runpy
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from delta.tables import DeltaTable

from pgoutput_etl.load import driver_merge
from pgoutput_etl.targets import write_method
from tests.support.jobs import Nights
from tests.support.small_archives import insert, table, transaction, update
from tests.support.typed_commands import share_session

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]

MOST_CALLS, MOST_FILES = 15, 8


class Route:
    """The package's calls on the way to MERGE, of threads, too: each begins where its work was submitted."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.before = threading.local()

    def here(self) -> list[str]:
        """From the first call on, as file and function."""
        calls: list[str] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(ROOT / "pgoutput_etl") or path == ROOT / "jobs/apply.py":
                calls.append(f"{path.relative_to(ROOT)} {frame.f_code.co_name}")
            frame = frame.f_back
        return [*getattr(self.before, "calls", []), *reversed(calls)]

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Pools and MERGE tell this object of their calls."""
        submit, merge = ThreadPoolExecutor.submit, DeltaTable.merge

        def submitted(pool: ThreadPoolExecutor, work: Callable[..., Any], *given: Any, **named: Any) -> Future[Any]:
            calls = self.here()

            def run() -> Any:
                self.before.calls = calls
                return work(*given, **named)

            return submit(pool, run)

        def merged(target: DeltaTable, *given: Any) -> Any:
            self.calls = self.here()
            return merge(target, *given)

        monkeypatch.setattr(ThreadPoolExecutor, "submit", submitted)
        monkeypatch.setattr(DeltaTable, "merge", merged)


def test_the_way_to_merge(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.job.write_config()
    share_session(nights.job.spark, monkeypatch)
    route = Route()
    route.watch(monkeypatch)
    monkeypatch.setattr(driver_merge, "SMALL_BYTES", -1)
    monkeypatch.setattr(write_method, "SMALL_ROWS", 0)
    monkeypatch.setattr(sys, "argv", ["jobs/apply.py", "--config", str(nights.job.config), "--quiet"])
    for night in (transaction(1, 0x100, table(), insert("1", "a")), transaction(2, 0x200, update("1", "b"))):
        nights.land(night)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(ROOT / "jobs/apply.py"), run_name="__main__")
        assert ended.value.code == 0
    files = {call.split()[0] for call in route.calls}
    assert route.calls, "MERGE was called"
    assert len(route.calls) <= MOST_CALLS, "\n".join(route.calls)
    assert len(files) <= MOST_FILES, "\n".join(route.calls)
