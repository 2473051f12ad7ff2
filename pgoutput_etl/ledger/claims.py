"""One run at a time: a batch is claimed before anything else of it is written, and a dead run's claim taken over.

A claim is a row of the ledger's table `claims`. The n-th attempt at a batch is appended under a Delta transaction
identifier of its own, which Delta takes once, so that of two runs which try at the same moment one finds the other's
row in its place. A run that works renews its claim; one that doesn't any more is dead after LEASE, or at once where it
was a process of this machine that is gone.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

from pgoutput_etl.errors import RunError

LEASE = timedelta(minutes=3)

RENEWAL = timedelta(minutes=1)

RETRY = timedelta(seconds=10)  # after a renewal that failed

CLAIMED, RENEWED, RELEASED = "claimed", "renewed", "released"

_BOOT = Path("/proc/sys/kernel/random/boot_id")

_NAMESPACE = Path("/proc/self/ns/pid")


@dataclass(frozen=True, slots=True)
class Process:
    """Which process a run is, across restarts and numbers used again. `started`: 0 where that can't be told.

    `machine` is whatever gives out process numbers: the host, since it was last started, and the container in it. Two
    containers may bear one host's name, and each have a process 7.
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
        return cls(machine, pid, _start_of(pid))

    def is_gone(self, here: Process) -> bool:
        """True only for a process of this machine that doesn't run any more."""
        return self.machine == here.machine and self.started != 0 and not _runs(self.pid, self.started)


def _stat(pid: int) -> list[str]:
    """proc(5), /proc/PID/stat, from its third field on: the state comes first. Empty where nothing is to be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _start_of(pid: int) -> int:
    """Clock ticks from the machine's start to the process's; 0 if there is none, or no /proc."""
    fields = _stat(pid)
    return int(fields[19]) if len(fields) > 19 else 0


def _runs(pid: int, started: int) -> bool:
    """A process that was killed, but whose parent hasn't asked for its end yet, is there and runs no more."""
    fields = _stat(pid)
    if len(fields) > 19:
        return fields[0] not in "ZXx" and int(fields[19]) == started
    try:
        os.kill(pid, 0)  # /proc may hide others' processes
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@dataclass(frozen=True, slots=True)
class Claim:
    """The newest row of one attempt at a batch."""

    batch: int
    attempt: int
    run: str
    process: Process
    status: str
    at: datetime

    def is_alive(self, now: datetime, here: Process) -> bool:
        return self.status != RELEASED and now - self.at < LEASE and not self.process.is_gone(here)


def newest(rows: Sequence[Mapping[str, Any]]) -> Claim | None:
    """The claim that counts, of all rows: that of the last attempt at the last batch, as it was said last."""
    if not rows:
        return None
    row = max(rows, key=lambda r: (r["batch"], r["attempt"], r["at"], r["status"] == RELEASED))
    process = Process(row["machine"], row["pid"], row["started"])
    at = row["at"].replace(tzinfo=timezone.utc)
    return Claim(row["batch"], row["attempt"], row["run"], process, row["status"], at)


@dataclass(frozen=True, slots=True)
class Claims:
    """`read`: the rows of a batch and of those beside it; `append`: one row, taken once for each name that it gets."""

    read: Callable[[int], Sequence[Mapping[str, Any]]]
    append: Callable[[Mapping[str, Any], int, str], None]

    def refuse_others(self, batch: int) -> Claim | None:
        """Raises RunError if another run is at work on the batch, or still on one beside it. Gives the last claim."""
        now = datetime.now(timezone.utc)
        last = newest(self.read(batch))
        if last is not None and last.is_alive(now, Process.current()):
            raise _taken(last, now)
        return last

    @contextmanager
    def held(
        self,
        batch: int,
        progress: Callable[[str], None] = lambda _: None,
        last: Claim | None = None,
        confirm: Callable[[], None] = lambda: None,
    ) -> Iterator[Callable[[], None]]:
        """Raises RunError, at once and before anything else is written, if another run is at work on the batch.

        `last`: what refuse_others has given; where that is old by now, the ask below finds whoever came since. confirm:
        what else has to hold once the claim is there; it may raise. Gives a check, to be asked before every write: it
        raises RunError should another run have taken the claim over, which is one that had not heard of this one for
        longer than LEASE, as of a machine that was asleep.
        """
        last = last or self.refuse_others(batch)
        attempt = last.attempt + 1 if last is not None and last.batch == batch else 1
        mine = Claim(batch, attempt, uuid4().hex, Process.current(), CLAIMED, datetime.now(timezone.utc))
        holding = HeldClaim(self, mine, progress)
        self.report(mine, f"{attempt}")
        with ThreadPoolExecutor(1) as pool:
            confirmed = pool.submit(confirm)
            holding.confirm()
        renewing = threading.Thread(target=holding.keep_renewing, name="claim", daemon=True)
        renewing.start()
        try:
            confirmed.result()
            yield holding.check
        finally:
            holding.release.set()
            renewing.join(RETRY.total_seconds())  # no longer: storage that answers nothing must not keep the run
            try:
                self.report(_as(mine, RELEASED), f"{attempt} {RELEASED}")
            except Exception as error:  # noqa: BLE001  # what the run did, or failed with, is what counts
                progress(f"the claim could not be released, and ends by itself: {_first_line(error)}")

    def report(self, claim: Claim, name: str) -> None:
        process = {"machine": claim.process.machine, "pid": claim.process.pid, "started": claim.process.started}
        row = {"attempt": claim.attempt, "run": claim.run, **process, "status": claim.status, "at": claim.at}
        self.append(row, claim.batch, name)


@dataclass(slots=True)
class HeldClaim:
    """A claim that this run has. When it was renewed last, two clocks tell: one that others go by, and one that nobody
    sets."""

    claims: Claims
    mine: Claim
    progress: Callable[[str], None]
    release: threading.Event = field(default_factory=threading.Event)
    is_lost: RunError | None = None
    wall: float = field(default_factory=time.time)
    steady: float = field(default_factory=time.monotonic)
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def check(self) -> None:
        """Asks the ledger only where the renewals have failed to: a run pays nothing for it."""
        since = max(time.time() - self.wall, time.monotonic() - self.steady)
        if self.is_lost is None and since >= (LEASE - RENEWAL / 2).total_seconds():
            self.renew()
        if self.is_lost is not None:
            raise self.is_lost

    def keep_renewing(self) -> None:
        wait = RENEWAL
        while self.is_lost is None and not self.release.wait(wait.total_seconds()):
            wait = RENEWAL
            try:
                self.renew()
            except RunError:
                pass  # for the next check to raise
            except Exception as error:  # noqa: BLE001  # storage has its moments; nobody takes over before LEASE
                self.progress(f"the claim could not be renewed, and will be tried again: {_first_line(error)}")
                wait = min(RETRY, RENEWAL)

    def renew(self) -> None:
        wall, steady = time.time(), time.monotonic()
        self.claims.report(_as(self.mine, RENEWED), f"{self.mine.attempt} {RENEWED} {next(self.numbers)}")
        self.confirm()
        self.wall, self.steady = wall, steady

    def confirm(self) -> None:
        found = newest(self.claims.read(self.mine.batch))
        if found is None or found.run != self.mine.run:
            self.is_lost = _taken(found or self.mine, datetime.now(timezone.utc))
            raise self.is_lost


def _as(claim: Claim, status: str) -> Claim:
    return replace(claim, status=status, at=datetime.now(timezone.utc))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _taken(other: Claim, now: datetime) -> RunError:
    if other.status == RELEASED:
        return RunError(
            f"another run, process {other.process.pid} of {other.process.machine.split()[0]}, has done this one's "
            "work, as this one had not been heard of for too long. It changes nothing more. Run again"
        )
    seconds = int((now - other.at).total_seconds())
    return RunError(
        f"another run is at work on this source: process {other.process.pid} of {other.process.machine.split()[0]}, "
        f"last heard of {max(seconds, 0)} s ago. This run changes nothing. If that one is dead, a run can go on "
        f"{int(LEASE.total_seconds())} s after it was last heard of"
    )
