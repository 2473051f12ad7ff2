"""One run at a time: a batch is claimed before it is read, and the claim of a run that died is taken over.

A claim is a row of the ledger's table `claims`. The n-th attempt at a batch is appended under a Delta transaction
identifier of its own, which Delta takes once, so that of two runs which try at the same moment one finds the other's
row in its place. A run that works renews its claim; one that doesn't any more is dead after LEASE, or at once where it
was a process of this machine that is gone.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

from pgoutput_etl.errors import RunError

LEASE = timedelta(minutes=3)
RENEWAL = timedelta(minutes=1)
CLAIMED, RENEWED, RELEASED = "claimed", "renewed", "released"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class Process:
    """Which process a run is: of all machines, across restarts and numbers used again. 0 where that can't be told."""

    machine: str
    pid: int
    started: int

    @classmethod
    def current(cls) -> Process:
        boot = _BOOT.read_text().strip() if _BOOT.exists() else ""
        return cls(f"{socket.gethostname()} {boot}".strip(), os.getpid(), _start_of(os.getpid()))

    def is_gone(self, here: Process) -> bool:
        """True only for a process of this machine that doesn't run any more."""
        return self.machine == here.machine and self.started != 0 and _start_of(self.pid) != self.started


def _start_of(pid: int) -> int:
    """Clock ticks from the machine's start to the process's (proc(5), field 22); 0 if there is none, or no /proc."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


@dataclass(frozen=True, slots=True)
class Claim:
    """The newest row of one attempt at a batch."""

    attempt: int
    run: str
    process: Process
    status: str
    at: datetime

    def is_alive(self, now: datetime, here: Process) -> bool:
        return self.status != RELEASED and now - self.at < LEASE and not self.process.is_gone(here)


def newest(rows: Sequence[Mapping[str, Any]]) -> Claim | None:
    """The claim that counts, of all rows of a batch: that of the last attempt, as it was said last."""
    if not rows:
        return None
    row = max(rows, key=lambda r: (r["attempt"], r["at"], r["status"] == RELEASED))
    process = Process(row["machine"], row["pid"], row["started"])
    return Claim(row["attempt"], row["run"], process, row["status"], row["at"].replace(tzinfo=timezone.utc))


@dataclass(frozen=True, slots=True)
class Claims:
    """`read`: the rows of a batch; `append`: one row, taken once for each name that it is given."""

    read: Callable[[int], Sequence[Mapping[str, Any]]]
    append: Callable[[Mapping[str, Any], int, str], None]

    @contextmanager
    def held(self, batch: int) -> Iterator[Callable[[], None]]:
        """Raises RunError, at once and before anything else is written, if another run is at work on the batch.

        Gives a check, which raises it as well should the claim have been taken over since: by a run that had not heard
        of this one for longer than LEASE, as of a machine that was asleep.
        """
        here, now = Process.current(), datetime.now(timezone.utc)
        last = newest(self.read(batch))
        if last is not None and last.is_alive(now, here):
            raise _taken(last, now)
        mine = Claim(1 if last is None else last.attempt + 1, uuid4().hex, here, CLAIMED, now)
        self._say(batch, mine, f"{mine.attempt}")

        def check() -> None:
            found = newest(self.read(batch))
            if found is None or found.run != mine.run:
                raise _taken(found or mine, datetime.now(timezone.utc))

        check()
        stopped = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(batch, mine, stopped), daemon=True)
        renewing.start()
        try:
            yield check
        finally:
            stopped.set()
            renewing.join()
            self._say(batch, _as(mine, RELEASED), f"{mine.attempt} {RELEASED}")

    def _renew(self, batch: int, mine: Claim, stopped: threading.Event) -> None:
        number = 0
        while not stopped.wait(RENEWAL.total_seconds()):
            number += 1
            self._say(batch, _as(mine, RENEWED), f"{mine.attempt} {RENEWED} {number}")

    def _say(self, batch: int, claim: Claim, name: str) -> None:
        process = {"machine": claim.process.machine, "pid": claim.process.pid, "started": claim.process.started}
        row = {"attempt": claim.attempt, "run": claim.run, **process, "status": claim.status, "at": claim.at}
        self.append(row, batch, name)


def _as(claim: Claim, status: str) -> Claim:
    return Claim(claim.attempt, claim.run, claim.process, status, datetime.now(timezone.utc))


def _taken(other: Claim, now: datetime) -> RunError:
    seconds = int((now - other.at).total_seconds())
    return RunError(
        f"another run is at work on this source: process {other.process.pid} of {other.process.machine.split()[0]}, "
        f"last heard of {max(seconds, 0)} s ago. This run changes nothing. If that one is dead, a run can go on "
        f"{int(LEASE.total_seconds())} s after it was last heard of"
    )
