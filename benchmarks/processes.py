"""The processes of a night, by role: processor time and resident memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from multiprocessing import get_context
from typing import ParamSpec, TypeVar

import psutil

_P = ParamSpec("_P")
_T = TypeVar("_T")

_INTERVAL = 0.1  # seconds
_EXECUTOR, _SERVERS = "CoarseGrainedExecutorBackend", ("deploy.master.Master", "deploy.worker.Worker")


class Role(Enum):
    """A process of this benchmark. Under local[n], the driver's JVM is the executor, too."""

    DRIVER_PYTHON = "driver's Python"
    DRIVER_JVM = "driver's JVM"
    EXECUTOR_JVM = "executors' JVM"
    WORKER = "Python workers"
    SERVER = "Spark's master and workers"


def processes() -> Iterator[tuple[Role, psutil.Process]]:
    """This process, which is the driver's Python, and its descendants; not shells."""
    driver = psutil.Process()
    yield Role.DRIVER_PYTHON, driver
    for process in driver.children(recursive=True):
        try:
            role = _role_of(process)
        except psutil.NoSuchProcess:
            continue
        if role is not None:
            yield role, process


def _role_of(process: psutil.Process) -> Role | None:
    name = process.name()
    if "python" in name:
        return Role.WORKER
    if name != "java":
        return None
    command = " ".join(process.cmdline())
    if any(server in command for server in _SERVERS):
        return Role.SERVER
    return Role.EXECUTOR_JVM if _EXECUTOR in command else Role.DRIVER_JVM


def in_new_process(function: Callable[_P, _T], *arguments: _P.args, **named: _P.kwargs) -> _T:
    """Calls a module's function in a process of its own, and so with its own JVM. Raises BrokenProcessPool if the
    process dies; multiprocessing.Pool would wait forever."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(function, *arguments, **named).result()


def cpu_seconds() -> Counter[Role]:
    """Seconds so far. Children that have ended count as Python workers if a JVM or a worker started them; the driver's
    own ended children aren't counted. Compare two calls between which no JVM ends."""
    seconds: Counter[Role] = Counter()
    for role, process in processes():
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        seconds[role] += times.user + times.system
        if role is not Role.DRIVER_PYTHON:
            seconds[Role.WORKER] += times.children_user + times.children_system
    return seconds


def busy_seconds() -> float:
    """CPU seconds of the whole machine since it started; nothing else runs beside a benchmark. Java outlives the
    process that starts it, so no process's children include its seconds."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system)


@dataclass(slots=True)
class Peaks:
    """Bytes of resident memory: by role, of the largest Python worker, and of all processes at one time."""

    by_role: dict[Role, int] = field(default_factory=dict)
    worker: int = 0
    total: int = 0

    def update(self) -> None:
        sizes: Counter[Role] = Counter()
        for role, process in processes():
            try:
                size = process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            sizes[role] += size
            if role is Role.WORKER:
                self.worker = max(self.worker, size)
        for role, size in sizes.items():
            self.by_role[role] = max(self.by_role.get(role, 0), size)
        self.total = max(self.total, sizes.total())

    def of(self, role: Role) -> int:
        return self.by_role.get(role, 0)


@contextmanager
def watched() -> Iterator[Peaks]:
    peaks, ended = Peaks(), threading.Event()

    def watch() -> None:
        while not ended.wait(_INTERVAL):
            peaks.update()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peaks
    finally:
        ended.set()
        thread.join()
