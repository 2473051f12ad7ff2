"""Commands from start to end, as a user types them: each starts Java, imports, and plans anew."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

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
        before, began = busy_seconds(), time.perf_counter()
        _pgoutput_etl("demo", work)
        if run:
            cpu.append(busy_seconds() - before)
            seconds.append(time.perf_counter() - began)
    return [ColdCommand("demo", median(cpu), median(seconds))]


def _pgoutput_etl(job: str, folder: Path) -> None:
    command = [sys.executable, "-c", "import sys; from pgoutput_etl.cli import main; sys.exit(main())", job]
    subprocess.run(command, check=True, capture_output=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)})


def busy_seconds() -> float:
    """CPU seconds of the whole machine since it started, as nothing else runs beside a benchmark: Java outlives the
    process that starts it, so nobody waits for it, and its seconds are nobody's children's."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)
