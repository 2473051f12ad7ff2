"""Simulated processes on one thread: their threads are greenlets, which only the scheduler resumes.

A greenlet gives up control where it touches the simulated world: before an effect (a read or a write of storage), and
where it waits. Simulated time passes only then. So a seed decides which of all possible orders happens, and a run of
the same seed repeats it exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

from greenlet import getcurrent, greenlet

from pgoutput_etl.machine import Process

T = TypeVar("T")


class Killed(BaseException):  # as KeyboardInterrupt, nobody handles it
    """Unwinds the threads of a process that no longer exists. No code of theirs has any further effect."""


class StorageError(OSError):
    """An operation of storage that failed, or whose answer was lost."""


@dataclass(slots=True)
class Waiting:
    """A thread that doesn't run: until `is_over`, or until a time; at once if it has neither."""

    thread: greenlet
    process: SimProcess
    is_over: Callable[[], bool] | None = None
    until: float | None = None


@dataclass(eq=False, slots=True)
class SimProcess:
    """skew: seconds by which the clock of its machine is ahead. stopped_until: it doesn't run before that time.
    suspended: seconds that the monotonic clock doesn't count."""

    name: str
    host: str
    identity: Process
    skew: float
    is_dead: bool = False
    stopped_until: float = 0.0
    suspended: float = 0.0


@dataclass(slots=True)
class Scheduler:
    """now: the true time, in seconds since 1970."""

    chance: Random
    now: float = 1_800_000_000.0
    waiting: list[Waiting] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    keeps_trace: bool = False
    late: list[tuple[float, Callable[[], object]]] = field(default_factory=list)
    hub: greenlet = field(default_factory=getcurrent)

    def note(self, text: str) -> None:
        if self.keeps_trace:
            self.trace.append(f"{self.now - 1_800_000_000.0:9.1f} {text}")

    def start(self, process: SimProcess, work: Callable[[], object]) -> None:
        def run() -> None:
            with suppress(Killed):
                work()

        self.waiting.append(Waiting(greenlet(run, self.hub), process))

    def wait(self, process: SimProcess, is_over: Callable[[], bool] | None = None, until: float | None = None) -> None:
        """Gives up control. Raises Killed if the process is killed meanwhile."""
        if process.is_dead:
            raise Killed
        self.waiting.append(Waiting(getcurrent(), process, is_over, until))
        self.hub.switch()
        if process.is_dead:
            raise Killed

    def kill(self, process: SimProcess) -> None:
        self.note(f"{process.name}: killed")
        process.is_dead = True

    def at(self, time: float, work: Callable[[], object]) -> None:
        """Does something that no process waits for, at a time."""
        self.late.append((time, work))

    def step(self, until: float) -> bool:
        """Resumes one thread, or lets time pass. False if nothing can happen until that time."""
        due = [entry for entry in self.late if entry[0] <= self.now]
        if due:
            self.late.remove(due[0])
            due[0][1]()
            return True
        ready = [waiting for waiting in self.waiting if self._is_ready(waiting)]
        if ready:
            chosen = ready[0] if len(ready) == 1 else self.chance.choice(ready)
            self.waiting.remove(chosen)
            chosen.thread.switch()
            return True
        times = [time for time, _ in self.late]
        for waiting in self.waiting:
            own = waiting.until if waiting.is_over is None or waiting.until is not None else None
            if waiting.is_over is not None and waiting.is_over():
                own = self.now
            if own is not None:
                times.append(max(own, waiting.process.stopped_until))
        next_time = min(times, default=until)
        if next_time >= until:
            self.now = max(self.now, until)
            return False
        self.now = max(self.now, next_time)
        return True

    def _is_ready(self, waiting: Waiting) -> bool:
        process = waiting.process
        if process.is_dead:
            return True
        if process.stopped_until > self.now:
            return False
        if waiting.is_over is None and waiting.until is None:
            return True
        return (waiting.is_over is not None and waiting.is_over()) or (
            waiting.until is not None and waiting.until <= self.now
        )


class SimFuture(Future[T]):
    scheduler: Scheduler
    process: SimProcess

    def result(self, timeout: float | None = None) -> T:
        assert timeout is None
        if not self.done():
            self.scheduler.wait(self.process, self.done)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        assert timeout is None
        if not self.done():
            self.scheduler.wait(self.process, self.done)
        return super().exception(0)


@dataclass(slots=True)
class SimPool(Executor):
    scheduler: Scheduler
    process: SimProcess
    workers: int
    running: int = 0
    futures: list[SimFuture[Any]] = field(default_factory=list)

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> SimFuture[T]:
        future = SimFuture[T]()
        future.scheduler, future.process = self.scheduler, self.process
        self.futures.append(future)

        def work() -> None:
            if self.running >= self.workers:
                self.scheduler.wait(self.process, lambda: self.running < self.workers or future.cancelled())
            if not future.set_running_or_notify_cancel():
                return
            self.running += 1
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                self.running -= 1
                future.set_exception(error)
                if isinstance(error, Killed):
                    raise
            else:
                self.running -= 1
                future.set_result(result)

        self.scheduler.start(self.process, work)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for future in self.futures if cancel_futures else ():
            future.cancel()
        if wait and not all(future.done() for future in self.futures):
            self.scheduler.wait(self.process, lambda: all(future.done() for future in self.futures))


@dataclass(slots=True)
class SimEvent:
    scheduler: Scheduler
    process: SimProcess
    is_set: bool = False

    def set(self) -> None:
        self.is_set = True

    def wait(self, timeout: float) -> bool:
        self.scheduler.wait(self.process, lambda: self.is_set, self.scheduler.now + timeout)
        return self.is_set


@dataclass(slots=True)
class SimThread:
    scheduler: Scheduler
    process: SimProcess
    is_done: bool = False

    def join(self, timeout: float) -> None:
        if not self.is_done:
            self.scheduler.wait(self.process, lambda: self.is_done, self.scheduler.now + timeout)


@dataclass(slots=True)
class SimMachine:
    """The machine of one process. processes: all that ever ran."""

    scheduler: Scheduler
    own: SimProcess
    processes: list[SimProcess]

    def time(self) -> float:
        return self.scheduler.now + self.own.skew

    def monotonic(self) -> float:
        return self.scheduler.now - self.own.suspended

    def pool(self, workers: int) -> SimPool:
        return SimPool(self.scheduler, self.own, workers)

    def event(self) -> SimEvent:
        return SimEvent(self.scheduler, self.own)

    def start(self, work: Callable[[], None], name: str) -> SimThread:  # noqa: ARG002
        thread = SimThread(self.scheduler, self.own)

        def run() -> None:
            try:
                work()
            finally:
                thread.is_done = True

        self.scheduler.start(self.own, run)
        return thread

    def process(self) -> Process:
        return self.own.identity

    def is_gone(self, process: Process) -> bool:
        here = self.own.identity.machine
        return process.machine == here and all(other.is_dead for other in self.processes if other.identity == process)
