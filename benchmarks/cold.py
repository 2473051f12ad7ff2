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

from benchmarks.corpora import ROOT
from benchmarks.processes import busy_seconds
from benchmarks.sessions import WORK, fresh
from benchmarks.small_nights import Nights
from tests.support.servers.postgres import Server

Progress = Callable[[str], None]

_TABLES, _LOADED, _ROWS = 35, 21, 500  # tables of the server, those that a snapshot loads, and the rows of each

# Tables of three rows: those that change in a run, and those that are new, each in a schema of its own.
CHANGED, NEW = (200, 500), 300


@dataclass(frozen=True, slots=True)
class ColdCommand:
    """Medians. cpu: seconds of all processes."""

    command: str
    cpu: float
    seconds: float


def measure_cold(runs: int, progress: Progress) -> list[ColdCommand]:
    """Measures the demo with an empty folder, jobs that change none or all of a server's small tables, and runs of
    `apply` with many small tables. An uncounted first run compiles code, caches Spark's classes, and creates tables."""
    demo = _measured("demo", runs, progress, lambda: pgoutput_etl("demo", fresh(WORK / "cold")))
    return [demo, *_jobs_of_small_tables(runs, progress), *_many_tables(runs, progress)]


def _many_tables(runs: int, progress: Progress) -> Iterator[ColdCommand]:
    for tables in CHANGED:
        yield _measured(f"apply of {tables} changed tables", runs, progress, _nights(tables, False))
    yield _measured(f"apply of {NEW} new tables in {NEW} schemas", runs, progress, _nights(NEW, True))


def _nights(tables: int, are_new: bool) -> Callable[[], None]:
    """A run that lands and applies one night. are_new: every run starts with an empty target, and each table has a
    schema of its own."""
    work, landing = fresh(WORK / "cold"), fresh(WORK / "cold/landing")
    nights, config = Nights(landing, has_own_schemas=are_new), configured(work, landing)

    def run() -> None:
        if are_new:
            shutil.rmtree(work / "tables", ignore_errors=True)
            nights.night = 0
        nights.land(tables)
        pgoutput_etl("apply", work, "--config", str(config))

    return run


def configured(work: Path, landing: Path) -> Path:
    file = work / "small.yaml"
    source = f"{{name: small, landing: {landing}, snapshot: accept}}"
    file.write_text(f"source: {source}\ntarget: {{root: {work / 'tables'}}}\n")
    return file


def _jobs_of_small_tables(runs: int, progress: Progress) -> Iterator[ColdCommand]:
    work, landing = fresh(WORK / "cold"), fresh(WORK / "cold/landing")
    with Server(18) as server:
        server.psql("create publication p for all tables")
        server.create_slot("slot")
        server.psql("".join(map(_small_table, range(_TABLES))))
        server.recvlogical("slot", landing / "0.bin", publications=["p"])
        url = f"postgresql://postgres@127.0.0.1:{server.port}/postgres"

        def job(name: str, folder: str, *arguments: str) -> None:
            pgoutput_etl(name, work, "--config", str(config), "--set", f"target.root={work / folder}", *arguments)

        def snapshot() -> None:
            shutil.rmtree(work / "loaded", ignore_errors=True)
            job("snapshot", "loaded", "--server", url, "--tables", ",".join(f"public.t{n}" for n in range(_LOADED)))

        config = configured(work, landing)
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
    cpu, seconds = zip(*repeated(command, runs, progress, run), strict=True)
    return ColdCommand(command, median(cpu), median(seconds))


def repeated(command: str, runs: int, progress: Progress, run: Callable[[], object]) -> list[tuple[float, float]]:
    """The CPU seconds of all processes and the seconds of each run, without the first one."""
    costs = []
    for number in range(runs + 1):
        progress(f"{command}: run {number} of {runs}" if number else f"{command}: a first run")
        before, began = busy_seconds(), time.perf_counter()
        run()
        costs.append((busy_seconds() - before, time.perf_counter() - began))
    return costs[1:]


def pgoutput_etl(job: str, folder: Path, *arguments: str) -> None:
    start = "import sys; from pgoutput_etl.cli import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-c", start, job, *arguments], check=True, capture_output=True, cwd=folder, env=environment
    )
