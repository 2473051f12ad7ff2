"""A standalone cluster whose executors and workers are killed at random moments while a job runs."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.support.spark_servers import Cluster, children_of


@dataclass(slots=True)
class Killer:
    """Kills each executor once it has used a random amount of processor time, or its worker with it, or only one of its
    Python processes. A killed worker is replaced.

    least, most: processor seconds of an executor with its Python processes. Its start takes about three. Seconds on the
    clock would leave a busy machine no time for any work. kills: by kind.
    """

    cluster: Cluster
    random: Random
    least: float = 3
    most: float = 9
    kills: Counter[str] = field(default_factory=Counter)
    limits: dict[int, float] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=self._keep_killing, name="killer")
        thread.start()
        try:
            yield
        finally:
            self.stop.set()
            thread.join()
            self.stop.clear()

    def _keep_killing(self) -> None:
        while not self.stop.wait(0.1):
            for name, worker in list(self.cluster.workers.items()):
                for executor in _executors_of(worker.pid):
                    self._kill_if_due(name, executor)

    def _kill_if_due(self, worker: str, executor: int) -> None:
        limit = self.limits.setdefault(executor, self.random.uniform(self.least, self.most))
        if cpu_seconds(executor) < limit:
            return
        kind = self.random.choices(["executor", "worker", "python"], [6, 2, 2])[0]
        self.kills[kind] += 1
        if kind == "worker":
            self.cluster.kill_worker(worker)
            self.cluster.start_worker()
            return
        python = [process for process in below(executor) if "pyspark" in command_line(process)]
        victim = self.random.choice(python) if kind == "python" and python else executor
        del self.limits[executor]
        if victim != executor:
            self.limits[executor] = cpu_seconds(executor) + self.random.uniform(self.least, self.most)
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)


class Frozen:
    """A worker and everything below it, stopped, as on a machine that can't be reached for a while."""

    def __init__(self, worker: int) -> None:
        self.processes = [worker, *below(worker)]
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in self.processes:
            with suppress(ProcessLookupError):
                os.kill(process, number)


def _executors_of(worker: int) -> list[int]:
    return [process for process in children_of(worker) if "CoarseGrainedExecutorBackend" in command_line(process)]


def cpu_seconds(pid: int) -> float:
    """Of the process and everything below it, from /proc/PID/stat (proc(5)); 0 if it is gone."""
    ticks = 0
    for process in (pid, *below(pid)):
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def below(pid: int) -> list[int]:
    """The process's children and theirs."""
    return [process for child in children_of(pid) for process in (child, *below(child))]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
