"""Ensures that only one run is active. A run claims a batch before it writes anything else, and may take over the claim
of a dead run.

A claim is a row in the ledger's table `claims`. Each attempt at a batch is appended with its own Delta transaction
identifier, which Delta accepts once; if two runs try at the same moment, one of them finds the other's row. An active
run renews its claim. A run that doesn't do so for LEASE is considered dead, as is one whose process ran on this machine
and no longer exists.

Clocks differ, and may be set back, so the date of a claim doesn't tell whether it was renewed within LEASE, unless it
is older than CLOCKS_DIFFER. Another one is observed for LEASE with a clock that can't be set. The times of a run's
renewals never decrease, so its newest row is always the latest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta, timezone
from itertools import count
from typing import Any
from uuid import uuid4

from pgoutput_etl.errors import AnotherRunError, RunError
from pgoutput_etl.machine import THIS_MACHINE, Event, Machine, Process, now

LEASE = timedelta(minutes=3)

RENEWAL = timedelta(minutes=1)

# Machines' clocks don't differ by more: an hour that a clock was set by, and another that a time zone got wrong
CLOCKS_DIFFER = timedelta(hours=2)

RETRY = timedelta(seconds=10)  # after a failed renewal

CLAIM_COLUMNS = ("batch", "attempt", "run", "machine", "pid", "started", "status", "at")

CLAIMED, RENEWED, RELEASED = "claimed", "renewed", "released"


@dataclass(frozen=True, slots=True)
class Claim:
    """The newest row of one attempt at a batch."""

    batch: int
    attempt: int
    run: str
    process: Process
    status: str
    at: datetime

    def has_ended(self, machine: Machine = THIS_MACHINE) -> bool:
        """True only if the claim was released, or its process is known to be gone."""
        return self.status == RELEASED or machine.is_gone(self.process)

    def is_fresh(self, at: datetime) -> bool:
        """True if the claim was renewed within LEASE by this machine's clock, or is in the future. at: the current
        time."""
        return at - self.at < LEASE


def newest(rows: Sequence[Mapping[str, Any]]) -> Claim | None:
    """The claim in the newest row of the last attempt at the last batch."""
    if not rows:
        return None
    row = max(rows, key=lambda r: (r["batch"], r["attempt"], r["at"], r["status"] == RELEASED))
    process = Process(row["machine"], row["pid"], row["started"])
    at = row["at"].replace(tzinfo=timezone.utc)
    return Claim(row["batch"], row["attempt"], row["run"], process, row["status"], at)


def sign_of_life(
    claim: Claim,
    read_again: Callable[[], Claim | None],
    machine: Machine,
    progress: Callable[[str], None] = lambda _: None,
) -> Claim | None:
    """The newest claim if a run is active, or has just ended; None if the claim's run is dead. Waits for up to LEASE if
    only a renewal can tell; the claim that it finds then is dated by this machine's clock.

    read_again: reads the newest claim.
    """
    at = now(machine)
    if claim.has_ended(machine) or at - claim.at > CLOCKS_DIFFER:
        return None
    if claim.is_fresh(at) and claim.at - at <= LEASE:
        return claim
    progress(
        f"{claim.process} has not released its claim, which is dated {claim.at:%Y-%m-%d %H:%M:%S} UTC: waiting up to "
        f"{int(LEASE.total_seconds())} s for its renewal, as clocks may differ"
    )
    until, pause = machine.monotonic() + LEASE.total_seconds(), machine.event()
    while machine.monotonic() < until:
        pause.wait(RETRY.total_seconds())
        if (found := read_again()) != claim:
            return replace(found or claim, at=now(machine))
    return None


@dataclass(frozen=True, slots=True)
class Claims:
    """read: the rows for a batch and its neighbors; append: adds a row, accepted once per batch and name."""

    read: Callable[[int], Sequence[Mapping[str, Any]]]
    append: Callable[[Mapping[str, Any], int, str], None]
    machine: Machine = THIS_MACHINE

    def refuse_others(self, batch: int, progress: Callable[[str], None] = lambda _: None) -> Claim | None:
        """Returns the last claim. Raises RunError if another run is active on the batch or a neighbor."""
        last = newest(self.read(batch))
        active = None if last is None else sign_of_life(last, lambda: newest(self.read(batch)), self.machine, progress)
        if active is not None and active.status == RELEASED:
            raise just_finished()
        if active is not None:
            raise _taken(active, now(self.machine))
        return last

    @contextmanager
    def held(
        self,
        batch: int,
        progress: Callable[[str], None] = lambda _: None,
        last: Claim | None = None,
        confirm: Callable[[], None] = lambda: None,
    ) -> Iterator[Callable[[], None]]:
        """Claims the batch. Raises RunError, before anything else is written, if another run is active on it.

        last: the result of `refuse_others`, which may be old, because the claim itself detects later runs. confirm:
        another condition, checked once the claim is written; may raise. Yields a function to call before every write:
        it raises RunError if another run has taken over because this run hasn't renewed the claim for LEASE (for
        example, while its machine was suspended).
        """
        last = last or self.refuse_others(batch, progress)
        attempt = last.attempt + 1 if last is not None and last.batch == batch else 1
        machine = self.machine
        mine = Claim(batch, attempt, uuid4().hex, machine.process(), CLAIMED, now(machine))
        steady = machine.monotonic()
        holding = HeldClaim(self, mine, progress, machine.event(), steady, machine.time(), steady)
        self.report(mine, f"{attempt}")
        with machine.pool(1) as pool:
            confirmed = pool.submit(confirm)
            others = holding.confirm()
        renewing = machine.start(holding.keep_renewing, "claim")
        try:
            if others is not None and others != last and not others.has_ended(machine):
                raise _taken(others, now(machine))  # the other run seemed dead, but has renewed its claim since
            confirmed.result()
            yield holding.check
        finally:
            holding.release.set()
            renewing.join(RETRY.total_seconds())  # not longer: hanging storage must not keep the run from ending
            try:
                self.report(holding.with_status(RELEASED), f"{attempt} {RELEASED}")
            except Exception as error:  # noqa: BLE001  # must not hide the run's own result or error
                progress(f"the claim could not be released and will expire: {_first_line(error)}")

    def report(self, claim: Claim, name: str) -> None:
        process = asdict(claim.process)
        row = {"attempt": claim.attempt, "run": claim.run, **process, "status": claim.status, "at": claim.at}
        self.append(row, claim.batch, name)


@dataclass(slots=True)
class HeldClaim:
    """A claim held by this run. Two clocks measure the time since the last renewal: the wall clock, which other runs
    compare, and a monotonic clock, which can't be set. began: the monotonic time of the claim's first row."""

    claims: Claims
    mine: Claim
    progress: Callable[[str], None]
    release: Event
    began: float
    wall: float
    steady: float
    lost: RunError | None = None
    numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def check(self) -> None:
        """Reads the ledger only if renewals are overdue."""
        machine = self.claims.machine
        since = max(machine.time() - self.wall, machine.monotonic() - self.steady)
        if self.lost is None and since >= (LEASE - RENEWAL / 2).total_seconds():
            self.renew()
        if self.lost is not None:
            raise self.lost

    def keep_renewing(self) -> None:
        wait = RENEWAL
        while self.lost is None and not self.release.wait(wait.total_seconds()):
            wait = RENEWAL
            try:
                self.renew()
            except RunError:
                pass  # the next check raises it
            except Exception as error:  # noqa: BLE001  # storage may fail temporarily; no takeover before LEASE
                self.progress(f"the claim could not be renewed; the run will try again: {_first_line(error)}")
                wait = min(RETRY, RENEWAL)

    def renew(self) -> None:
        wall, steady = self.claims.machine.time(), self.claims.machine.monotonic()
        renewed = self.with_status(RENEWED)
        self.claims.report(renewed, f"{self.mine.attempt} {RENEWED} {next(self.numbers)}")
        self.confirm()
        self.wall, self.steady = wall, steady

    def with_status(self, status: str) -> Claim:
        """The claim's next row, later than all before it even if the wall clock was set back."""
        machine = self.claims.machine
        elapsed = timedelta(seconds=machine.monotonic() - self.began)
        return replace(self.mine, status=status, at=max(now(machine), self.mine.at + elapsed))

    def confirm(self) -> Claim | None:
        """Returns the newest claim of another run. Raises RunError if that run has taken over."""
        rows = self.claims.read(self.mine.batch)
        last = newest(rows)
        if last is None or last.run != self.mine.run:
            self.lost = _taken(last or self.mine, now(self.claims.machine))
            raise self.lost
        return newest([row for row in rows if row["run"] != self.mine.run])


def _first_line(error: Exception) -> str:
    """The first line of the error's text. It contains no values of rows, because a claim has none."""
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def just_finished() -> AnotherRunError:
    return AnotherRunError("another run has just finished; this run changes nothing. Run again")


def _taken(other: Claim, at: datetime) -> AnotherRunError:
    if other.status == RELEASED:
        return AnotherRunError(
            f"another run, {other.process}, has done this run's work, because this run was not heard of for too long. "
            "This run changes nothing more. Run again"
        )
    seconds = int((at - other.at).total_seconds())
    return AnotherRunError(
        f"another run is working on this source: {other.process}, last heard of {max(seconds, 0)} s ago. This run "
        "changes nothing. If the other run is dead, a run that starts "
        f"{int(LEASE.total_seconds())} s after it was last heard of takes over"
    )
