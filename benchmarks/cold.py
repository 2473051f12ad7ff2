"""Commands from start to end, as a user types them: each starts Java, imports, and plans anew."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

import psutil

from benchmarks.corpora import ROOT
from benchmarks.sessions import WORK, fresh
from tests.support.servers.postgres import Server

Progress = Callable[[str], None]

_TABLES, _LOADED, _ROWS = 35, 21, 500  # tables of the server, those that a snapshot loads, and the rows of each


@dataclass(frozen=True, slots=True)
class ColdCommand:
    """Medians. cpu: seconds of all processes."""

    command: str
    cpu: float
    seconds: float


def measure_cold(runs: int, progress: Progress) -> list[ColdCommand]:
    """The demo, to an empty folder, and jobs that change none or all of a server's small tables. A first run, which
    isn't counted, compiles, and keeps classes of Spark."""
    demo = _measured("demo", runs, progress, lambda: _pgoutput_etl("demo", fresh(WORK / "cold")))
    return [demo, *_jobs_of_small_tables(runs, progress)]


def _jobs_of_small_tables(runs: int, progress: Progress) -> Iterator[ColdCommand]:
    work, landing = fresh(WORK / "cold"), fresh(WORK / "cold/landing")
    with Server(18) as server:
        server.psql("create publication p for all tables")
        server.create_slot("slot")
        server.psql("".join(map(_small_table, range(_TABLES))))
        server.recvlogical("slot", landing / "0.bin", publications=["p"])
        url = f"postgresql://postgres@127.0.0.1:{server.port}/postgres"

        def job(name: str, folder: str, *arguments: str) -> None:
            settings = (f"target.root={work / folder}", "source.snapshot=accept")
            given = [part for setting in settings for part in ("--set", setting)]
            _pgoutput_etl(name, work, "--config", str(work / "small.yaml"), *given, *arguments)

        def snapshot() -> None:
            shutil.rmtree(work / "loaded", ignore_errors=True)
            job("snapshot", "loaded", "--server", url, "--tables", ",".join(f"public.t{n}" for n in range(_LOADED)))

        (work / "small.yaml").write_text(f"source: {{name: small, landing: {landing}}}\ntarget: {{root: unset}}\n")
        job("apply", "tables")
        verify = partial(job, "verify", "tables", "--server", url)
        yield _measured(f"verify of {_TABLES} small tables", runs, progress, verify)
        maintain = partial(job, "maintain", "tables")
        yield _measured(f"maintain of {_TABLES} small tables", runs, progress, maintain)
        yield _measured(f"snapshot of {_LOADED} small tables", runs, progress, snapshot)


def _small_table(number: int) -> str:
    rows = f"select n, 'name ' || n, now(), n * 1.5 from generate_series(1, {_ROWS}) n"
    columns = "id int primary key, name text, at timestamptz, amount numeric(10, 2)"
    return f"create table t{number} ({columns}); insert into t{number} {rows};"


def _measured(command: str, runs: int, progress: Progress, run: Callable[[], None]) -> ColdCommand:
    cpu, seconds = [], []
    for number in range(runs + 1):
        progress(f"{command}: run {number} of {runs}" if number else f"{command}: a first run")
        before, began = busy_seconds(), time.perf_counter()
        run()
        if number:
            cpu.append(busy_seconds() - before)
            seconds.append(time.perf_counter() - began)
    return ColdCommand(command, median(cpu), median(seconds))


def _pgoutput_etl(job: str, folder: Path, *arguments: str) -> None:
    start = "import sys; from pgoutput_etl.cli import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-c", start, job, *arguments], check=True, capture_output=True, cwd=folder, env=environment
    )


def busy_seconds() -> float:
    """CPU seconds of the whole machine since it started, as nothing else runs beside a benchmark: Java outlives the
    process that starts it, so nobody waits for it, and its seconds are nobody's children's."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)
