"""Counts what a small night costs: Spark jobs, from Spark's event log, and CPU seconds of all processes.

A night changes some rows in some small tables, whose rows already exist. Nights of one session are counted after it has
warmed up, first as runs of `apply`, then as polls of `apply --follow`. One more night is a separate job, including the
start of its session.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from benchmarks.corpora import ROOT
from benchmarks.event_log import event_log, logged_work, now
from benchmarks.jobs import configured, run_job
from benchmarks.processes import busy_seconds, cpu_seconds
from benchmarks.sessions import WORK, fresh, session
from pgoutput_etl.console import no_progress
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.work.batch import Watch, World
from pgoutput_etl.work.files.follow import Follower
from tests.support.small_archives import copydata, insert, table, transaction, update

Progress = Callable[[str], None]
_TABLES, _ROWS = 10, 3
_FOLLOWED = 50  # tables that change while `apply --follow` runs
_WARM_UP = 4  # nights


@dataclass(frozen=True, slots=True)
class SmallNight:
    """Medians. cpu: seconds of the driver's Python, the JVM and the workers. jobs: Spark jobs, if counted."""

    night: str
    tables: int
    jobs: float | None
    cpu: float
    seconds: float


@dataclass(frozen=True, slots=True)
class _Measured:
    """began, ended: in milliseconds since 1970, as in Spark's event log."""

    night: str
    tables: int
    began: int
    ended: int
    cpu: float


def measure_small_nights(runs: int, progress: Progress) -> list[SmallNight]:
    work = fresh(WORK / "small")
    landing, events = work / "landing", work / "events"
    landing.mkdir()
    config = configured(landing, work / "tables")
    nights = Nights(landing)
    measured = []
    with session(settings=event_log(events)) as spark:
        for tables in (_FOLLOWED, *[1] * (_WARM_UP - 1)):
            progress("warming up")
            nights.land(tables)
            run_job(spark, config, no_progress)
        for run in range(runs):
            for tables in (1, _TABLES, 0):
                progress(f"run {run + 1} of {runs}: {tables} tables change")
                nights.land(tables)
                measured.append(_measured("warm", tables, lambda: run_job(spark, config, no_progress)))
        follower = Follower(World.of(spark, config), Watch(), lambda _: None, lambda: None)
        follower.look()
        for run in range(runs):
            for tables in (1, _FOLLOWED, 0):
                progress(f"run {run + 1} of {runs}: {tables} tables change while it follows")
                nights.land(tables)
                measured.append(_measured("followed", tables, follower.look))
    jobs = logged_work(events).jobs
    kinds = dict.fromkeys((night.night, night.tables) for night in measured)
    results = [_summary(*kind, measured, jobs) for kind in kinds]
    progress("a job of its own")
    return [*results, _separate(nights, runs)]


def small_night(night: int, tables: int, has_own_schemas: bool = False) -> bytes:
    """One file. Night 0 inserts some rows into each table, later ones update them. Its last transaction began after the
    next night's first one, as on any busy server. has_own_schemas: each table has a schema of its own."""
    change = update if night else insert
    messages = []
    for n in range(_ROWS):
        number = night * _ROWS + n + 1
        rows = [change(str(n), f"night {night}", oid=oid) for oid in range(tables)]
        relations = [_table(oid, has_own_schemas) for oid in range(tables)] if not n else []
        xid = number + (n == _ROWS - 1) - (n == 0 and night > 0)
        messages += transaction(xid, 1000 * number, *relations, *rows)
    return copydata(messages)


def _table(oid: int, has_own_schema: bool) -> Relation:
    described = table(oid=oid, name=f"t{oid}")
    return replace(described, namespace=f"s{oid}") if has_own_schema else described


class Nights:
    """Lands one file per night."""

    def __init__(self, landing: Path, has_own_schemas: bool = False) -> None:
        self.landing, self.has_own_schemas, self.night = landing, has_own_schemas, 0

    def land(self, tables: int) -> None:
        if not tables:
            return
        content = small_night(self.night, tables, self.has_own_schemas)
        (self.landing / f"{self.night:04}.bin").write_bytes(content)
        self.night += 1


def _measured(night: str, tables: int, work: Callable[[], object]) -> _Measured:
    before, began = cpu_seconds().total(), now()
    work()
    return _Measured(night, tables, began, now(), cpu_seconds().total() - before)


def _summary(kind: str, tables: int, measured: list[_Measured], jobs: Sequence[int]) -> SmallNight:
    nights = [night for night in measured if (night.night, night.tables) == (kind, tables)]
    counts = [sum(night.began <= job <= night.ended for job in jobs) for night in nights]
    seconds = median(night.ended - night.began for night in nights) / 1000
    return SmallNight(kind, tables, median(counts), median(night.cpu for night in nights), seconds)


def _separate(nights: Nights, runs: int) -> SmallNight:
    file = WORK / "small" / "apply.yaml"
    cpu, seconds = [], []
    for _ in range(runs):
        nights.land(1)
        before, began = busy_seconds(), time.perf_counter()
        command = [str(part) for part in (ROOT / "spark-submit.sh", ROOT / "jobs/apply.py", "--config", file)]
        subprocess.run(command, check=True, capture_output=True)
        cpu.append(busy_seconds() - before)
        seconds.append(time.perf_counter() - began)
    return SmallNight("with its session", 1, None, median(cpu), median(seconds))
