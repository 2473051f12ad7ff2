"""One run at a time: which run may work on a batch, and for how long a dead run blocks others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from pgoutput_etl import machine
from pgoutput_etl.errors import RunError
from pgoutput_etl.ledger import claims
from pgoutput_etl.ledger.claims import CLOCKS_DIFFER, LEASE, RELEASED, Claims, newest
from pgoutput_etl.machine import Process

OTHERS = Process("elsewhere", 4711, 99)


@dataclass
class Rows:
    """A ledger in memory: like Delta, it accepts each name once."""

    rows: list[Mapping[str, Any]] = field(default_factory=list)
    names: set[tuple[int, str]] = field(default_factory=set)

    def claims(self) -> Claims:
        return Claims(lambda batch: [row for row in self.rows if row["batch"] == batch], self.append)

    def append(self, row: Mapping[str, Any], batch: int, name: str) -> None:
        if (batch, name) not in self.names:
            self.names.add((batch, name))
            self.rows.append({**row, "batch": batch})

    def claimed(self, process: Process, ago: timedelta, attempt: int = 1) -> None:
        at = datetime.now(timezone.utc) - ago
        where = {"machine": process.machine, "pid": process.pid, "started": process.started}
        self.append({"attempt": attempt, "run": "other", **where, "status": "claimed", "at": at}, 1, str(attempt))


def hold(rows: Rows) -> None:
    with rows.claims().held(1):
        pass


def test_a_working_run_blocks_others_until_it_is_done() -> None:
    rows = Rows()
    with rows.claims().held(1):
        with (
            pytest.raises(RunError, match=r"another run is working on this source: process \d+ of"),
            rows.claims().held(1),
        ):
            pass
        with rows.claims().held(2):
            pass  # another batch is another claim
    with rows.claims().held(1):
        pass
    assert [(row["attempt"], row["status"]) for row in rows.rows if row["batch"] == 1] == [
        (1, "claimed"),
        (1, "released"),
        (2, "claimed"),
        (2, "released"),
    ]


def test_a_failed_run_releases_its_claim_at_once() -> None:
    rows = Rows()
    with pytest.raises(ZeroDivisionError), rows.claims().held(1):
        raise ZeroDivisionError
    with rows.claims().held(1):
        pass


@pytest.mark.parametrize(("ago", "is_dead"), [(LEASE / 2, False), (CLOCKS_DIFFER * 1.1, True)])
def test_the_date_of_a_claim_tells_whether_it_is_fresh_or_older_than_clocks_may_differ(
    ago: timedelta, is_dead: bool
) -> None:
    rows = Rows()
    rows.claimed(OTHERS, ago)
    if is_dead:
        with rows.claims().held(1):
            pass
    else:
        with (
            pytest.raises(RunError, match=r"process 4711 of elsewhere, last heard of 9\d s ago"),
            rows.claims().held(1),
        ):
            pass


def test_a_vanished_process_of_this_machine_blocks_no_run() -> None:
    code = "from pgoutput_etl.machine import Process; p = Process.current(); print(p.pid, p.started)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    here = Process.current()
    rows = Rows()
    rows.claimed(Process(here.machine, int(said[0]), int(said[1])), timedelta(0))
    with rows.claims().held(1):
        pass
    rows = Rows()
    rows.claimed(Process(here.machine, here.pid, here.started - 1), timedelta(0))  # a reused process ID
    with rows.claims().held(1):
        pass


def test_one_of_two_simultaneous_runs_continues() -> None:
    """Both find no claim; the second one's row is not accepted."""
    rows = Rows()
    at_once = threading.Barrier(2)
    went_on: list[int] = []
    refused: list[RunError] = []

    class Slow(Rows):
        def claims(self) -> Claims:
            first_look = True

            def read(batch: int) -> list[Mapping[str, Any]]:
                nonlocal first_look
                found = [row for row in rows.rows if row["batch"] == batch]
                if first_look:
                    first_look = False
                    at_once.wait(10)
                return found

            return Claims(read, rows.append)

    def run(number: int) -> None:
        try:
            with Slow().claims().held(1):
                went_on.append(number)
                at_once.wait(10)
        except RunError as error:
            refused.append(error)
            at_once.wait(10)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(went_on), len(refused)) == (1, 1)


def test_a_claim_is_renewed_while_the_run_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "RENEWAL", timedelta(milliseconds=5))
    rows = Rows()
    with rows.claims().held(1) as check:
        while len(rows.rows) < 4:
            check()
    assert {row["status"] for row in rows.rows} == {"claimed", "renewed", "released"}
    assert len({row["run"] for row in rows.rows}) == 1


def slept(monkeypatch: pytest.MonkeyPatch, for_how_long: timedelta) -> None:
    """Simulates a suspended machine or a stopped process: the clocks advance."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + for_how_long.total_seconds())


def test_a_run_stops_if_another_that_was_believed_dead_has_renewed_its_claim() -> None:
    """The second run has read the claims before the renewal, and claims after it."""
    rows = Rows()
    rows.claimed(OTHERS, CLOCKS_DIFFER * 1.1)

    def renewed_before_the_claim(row: Mapping[str, Any], batch: int, name: str) -> None:
        if row["status"] == "claimed":
            at = datetime.now(timezone.utc)
            rows.append({**rows.rows[-1], "status": "renewed", "at": at}, 1, "1 renewed")
        rows.append(row, batch, name)

    claims_of_second = Claims(
        lambda batch: [row for row in rows.rows if row["batch"] == batch], renewed_before_the_claim
    )
    with pytest.raises(RunError, match="process 4711 of elsewhere, last heard of 0 s ago"), claims_of_second.held(1):
        pytest.fail("two runs would be at work")
    assert [row["status"] for row in rows.rows] == ["claimed", "renewed", "claimed", "released"]


def test_a_suspended_run_finds_that_another_run_has_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows()
    with rows.claims().held(1) as check:
        check()
        rows.claimed(OTHERS, timedelta(0), attempt=2)
        slept(monkeypatch, LEASE)
        with pytest.raises(RunError, match="process 4711 of elsewhere"):
            check()
        monkeypatch.undo()
        with pytest.raises(RunError, match="process 4711 of elsewhere"):
            check()  # a lost claim stays lost


def test_a_suspended_run_finds_that_another_run_has_done_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows()
    with rows.claims().held(1) as check:
        rows.claimed(OTHERS, timedelta(0), attempt=2)
        rows.append({**rows.rows[-1], "status": "released"}, 1, "2 released")
        slept(monkeypatch, LEASE)
        with pytest.raises(RunError, match="has done this run's work"):
            check()


def test_a_suspended_run_renews_its_claim_if_no_other_run_has_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Rows()
    with rows.claims().held(1) as check:
        slept(monkeypatch, LEASE * 2)
        check()
        assert [row["status"] for row in rows.rows] == ["claimed", "renewed"]
        check()
        assert len(rows.rows) == 2, "the second check has nothing to ask for"


def test_checks_cost_nothing_while_the_claim_is_fresh() -> None:
    rows = Rows()
    reads = 0

    def read(batch: int) -> list[Mapping[str, Any]]:
        nonlocal reads
        reads += 1
        return [row for row in rows.rows if row["batch"] == batch]

    with Claims(read, rows.append).held(1) as check:
        before = reads
        for _ in range(1000):
            check()
        assert reads == before


def test_a_renewal_finds_that_another_run_has_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if only the other machine's clock says that the lease has ended."""
    monkeypatch.setattr(claims, "RENEWAL", timedelta(milliseconds=5))
    rows = Rows()
    with rows.claims().held(1) as check:
        rows.claimed(OTHERS, timedelta(0), attempt=2)
        with pytest.raises(RunError, match="process 4711 of elsewhere"):
            deque(iter(check, "never"), maxlen=0)


@dataclass
class Failing(Rows):
    """Storage that accepts the claim, then fails until it is repaired."""

    is_broken: bool = False
    said: list[str] = field(default_factory=list)

    def break_and_fail(self) -> None:
        self.is_broken = True
        raise ZeroDivisionError

    def append(self, row: Mapping[str, Any], batch: int, name: str) -> None:
        if self.is_broken:
            raise OSError("503 Slow Down\nat a long trace")
        super().append(row, batch, name)


def test_a_failed_renewal_is_reported_and_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "RENEWAL", timedelta(milliseconds=5))
    rows = Failing()
    with rows.claims().held(1, rows.said.append) as check:
        rows.is_broken = True
        while len(rows.said) < 3:
            check()
        rows.is_broken = False
        while len(rows.rows) < 3:
            check()
    assert set(rows.said) == {"the claim could not be renewed; the run will try again: OSError: 503 Slow Down"}
    assert {row["status"] for row in rows.rows} == {"claimed", "renewed", "released"}


def test_a_run_that_could_not_renew_during_its_lease_stops_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = Failing()
    with rows.claims().held(1, rows.said.append) as check:
        rows.is_broken = True
        check()
        slept(monkeypatch, LEASE)
        with pytest.raises(OSError, match="503"):
            check()
        rows.is_broken = False
        check()


def test_a_failed_release_fails_no_run_and_hides_no_error() -> None:
    rows = Failing()
    with rows.claims().held(1, rows.said.append):
        rows.is_broken = True
    assert rows.said == ["the claim could not be released and will expire: OSError: 503 Slow Down"]
    rows = Failing()
    with pytest.raises(ZeroDivisionError), rows.claims().held(1, rows.said.append):
        rows.break_and_fail()


def test_hanging_storage_does_not_block_the_end_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "RENEWAL", timedelta(milliseconds=5))
    monkeypatch.setattr(claims, "RETRY", timedelta(milliseconds=5))
    mended, hangs = threading.Event(), threading.Event()

    class Hanging(Rows):
        def append(self, row: Mapping[str, Any], batch: int, name: str) -> None:
            if row["status"] == "renewed":
                hangs.set()
                mended.wait(60)
            super().append(row, batch, name)

    rows = Hanging()
    with rows.claims().held(1):
        hangs.wait(60)
    assert [row["status"] for row in rows.rows] == ["claimed", "released"]
    mended.set()
    while len(rows.rows) < 3:
        time.sleep(0.001)
    hold(rows)  # a late renewal is ignored


def test_a_claim_also_covers_the_next_batch() -> None:
    """A run that has closed its batch may still be working on it."""
    rows = Rows()
    rows.claimed(OTHERS, timedelta(0))
    everything = Claims(lambda _: rows.rows, rows.append)
    with pytest.raises(RunError, match="process 4711 of elsewhere"), everything.held(2):
        pass


def test_a_zombie_process_blocks_no_run() -> None:
    """Its parent has not waited for it, so it is still in the list of processes."""
    code = (
        "import signal; from pgoutput_etl.machine import Process; p = Process.current(); "
        "print(p.pid, p.started, flush=True); signal.pause()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        pid, started = map(int, child.stdout.readline().split())
        here = Process.current()
        process = Process(here.machine, pid, started)
        assert not process.is_gone(here)
        child.send_signal(signal.SIGSTOP)
        assert not process.is_gone(here), "a stopped process may continue"
        child.kill()
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert process.is_gone(here)


def test_only_processes_of_the_same_machine_boot_and_container_are_known_to_be_gone() -> None:
    here = Process.current()
    for part in here.machine.split():
        assert not Process(here.machine.replace(part, "another"), 2**22 + 1, 1).is_gone(here)
    assert Process(here.machine, 2**22 + 1, 1).is_gone(here), "no process has this number"
    assert not Process(here.machine, here.pid, here.started).is_gone(here)
    assert not Process(here.machine, 2**22 + 1, 0).is_gone(here), "its start is unknown"


def test_no_process_is_known_to_be_gone_if_the_machine_is_ambiguous(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine, "_NAMESPACE", tmp_path / "none")
    here = Process.current()
    assert (here.pid, here.started) == (os.getpid(), 0)
    assert not Process(here.machine, 2**22 + 1, here.started).is_gone(here)


HOUR = timedelta(hours=1)


@pytest.mark.parametrize("ago", [LEASE * 1.1, HOUR, -HOUR])
def test_a_claim_that_nobody_renews_while_it_is_observed_is_dead(
    monkeypatch: pytest.MonkeyPatch, ago: timedelta
) -> None:
    monkeypatch.setattr(claims, "LEASE", timedelta(milliseconds=200))
    monkeypatch.setattr(claims, "RETRY", timedelta(milliseconds=10))
    rows = Rows()
    waits: list[str] = []
    rows.claimed(OTHERS, ago)
    began = time.monotonic()
    with rows.claims().held(1, waits.append):
        assert time.monotonic() - began >= 0.2
    assert [(row["attempt"], row["status"]) for row in rows.rows] == [(1, "claimed"), (2, "claimed"), (2, "released")]
    assert waits[0].startswith("process 4711 of elsewhere has not released its claim, which is dated ")


@pytest.mark.parametrize("ago", [LEASE * 1.1, HOUR, -HOUR])
@pytest.mark.parametrize(
    ("status", "error"),
    [
        ("renewed", "process 4711 of elsewhere, last heard of 0 s ago"),
        ("released", "another run has just finished"),
    ],
)
def test_a_claim_that_is_renewed_while_it_is_observed_blocks_whatever_its_date(
    monkeypatch: pytest.MonkeyPatch, ago: timedelta, status: str, error: str
) -> None:
    monkeypatch.setattr(claims, "RETRY", timedelta(milliseconds=10))
    rows = Rows()
    rows.claimed(OTHERS, ago)
    reads = 0

    def read(batch: int) -> list[Mapping[str, Any]]:
        nonlocal reads
        reads += 1
        if reads == 3:
            rows.append({**rows.rows[-1], "status": status, "at": rows.rows[-1]["at"] + LEASE / 3}, 1, f"1 {status}")
        return [row for row in rows.rows if row["batch"] == batch]

    with pytest.raises(RunError, match=error), Claims(read, rows.append).held(1):
        pytest.fail("two runs would be at work")
    assert reads == 3
    assert [row["status"] for row in rows.rows] == ["claimed", status]


def test_a_claim_that_is_ahead_by_less_than_its_lease_blocks_at_once() -> None:
    rows = Rows()
    rows.claimed(OTHERS, -LEASE / 2)
    with pytest.raises(RunError, match="last heard of 0 s ago"):
        hold(rows)


def test_a_run_whose_clock_is_set_back_is_heard_of_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its rows is later than those before it, by the time that has passed."""
    monkeypatch.setattr(claims, "RENEWAL", timedelta(milliseconds=5))
    rows = Rows()
    with rows.claims().held(1) as check:
        slept(monkeypatch, -HOUR)
        while len(rows.rows) < 4:
            check()
    times = [row["at"] for row in rows.rows]
    assert times == sorted(set(times))
    assert times[-1] - times[0] < LEASE
    last = newest(rows.rows)
    assert last is not None
    assert last.status == RELEASED
