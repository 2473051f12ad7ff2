"""A run's own machine: its clocks, its threads, and which of its processes are still running. Simulations replace
it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

_BOOT = Path("/proc/sys/kernel/random/boot_id")

_NAMESPACE = Path("/proc/self/ns/pid")


@dataclass(frozen=True, slots=True)
class Process:
    """Identifies a run's process despite reboots and reused process IDs. started: clock ticks since boot; 0 if unknown.
    machine: the scope of process IDs, which is the host, its boot, and the container. Two containers may have the same
    host name and both have a process 7.
    """

    machine: str
    pid: int
    started: int

    @classmethod
    def current(cls) -> Process:
        host, pid = socket.gethostname(), os.getpid()
        try:
            machine = f"{host} {_BOOT.read_text().strip()} {_NAMESPACE.readlink()}"
        except OSError:
            return cls(host, pid, 0)
        stat = _stat(pid)
        return cls(machine, pid, 0 if stat is None else stat[1])

    def __str__(self) -> str:
        return f"process {self.pid} of {self.machine.split()[0]}"

    def is_gone(self, here: Process) -> bool:
        """True only if the process ran on this machine and is no longer running."""
        return self.machine == here.machine and self.started != 0 and not _runs(self.pid, self.started)


def _stat(pid: int) -> tuple[str, int] | None:
    """A process's state and its start in clock ticks since boot, from /proc/PID/stat (proc(5)); None if unreadable."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (fields[0], int(fields[19])) if len(fields) > 19 else None


def _runs(pid: int, started: int) -> bool:
    """False even for a zombie: a killed process that its parent has not waited for."""
    if (stat := _stat(pid)) is not None:
        return stat[0] not in "ZXx" and stat[1] == started
    try:
        os.kill(pid, 0)  # /proc may hide other users' processes
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


class Event(Protocol):
    def set(self) -> None: ...

    def wait(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds for the event to be set. Returns True if it is set."""


class Thread(Protocol):
    def join(self, timeout: float) -> None: ...


class Machine(Protocol):
    """time: seconds since 1970, on a clock that may be set. monotonic: seconds on a clock that can't be set."""

    def time(self) -> float: ...

    def monotonic(self) -> float: ...

    def pool(self, workers: int) -> Executor: ...

    def event(self) -> Event: ...

    def start(self, work: Callable[[], None], name: str) -> Thread:
        """Starts a thread that doesn't keep its process alive."""

    def process(self) -> Process: ...

    def is_gone(self, process: Process) -> bool:
        """True only if the process ran on this machine and is no longer running."""


class LocalMachine:
    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def pool(self, workers: int) -> Executor:
        return ThreadPoolExecutor(workers)

    def event(self) -> Event:
        return threading.Event()

    def start(self, work: Callable[[], None], name: str) -> Thread:
        thread = threading.Thread(target=work, name=name, daemon=True)
        thread.start()
        return thread

    def process(self) -> Process:
        return Process.current()

    def is_gone(self, process: Process) -> bool:
        return process.is_gone(Process.current())


THIS_MACHINE = LocalMachine()


def now(machine: Machine) -> datetime:
    return datetime.fromtimestamp(machine.time(), timezone.utc)
