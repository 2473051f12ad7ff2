"""Commands from start to end, as a user types them: each starts Java, imports, and plans anew."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.corpora import ROOT
from benchmarks.sessions import WORK, fresh

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ColdCommand:
    """Medians. cpu: seconds of all processes."""

    command: str
    cpu: float
    seconds: float


def measure_cold(runs: int, progress: Progress) -> list[ColdCommand]:
    """The demo, to an empty folder. A first run, which isn't counted, compiles."""
    cpu, seconds = [], []
    for run in range(runs + 1):
        progress(f"demo: run {run} of {runs}" if run else "demo: a first run")
        work = fresh(WORK / "cold")
        before, began = used_by_children(), time.perf_counter()
        _pgoutput_etl("demo", work)
        if run:
            cpu.append(used_by_children() - before)
            seconds.append(time.perf_counter() - began)
    return [ColdCommand("demo", median(cpu), median(seconds))]


def _pgoutput_etl(job: str, folder: Path) -> None:
    command = [sys.executable, "-c", "import sys; from pgoutput_etl.cli import main; sys.exit(main())", job]
    subprocess.run(command, check=True, capture_output=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)})


def used_by_children() -> float:
    """CPU seconds of the processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
