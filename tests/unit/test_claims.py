"""One run at a time: who may work on a batch, and for how long a dead run keeps others from it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from pgoutput_etl import claims
from pgoutput_etl.claims import LEASE, Claims, Process
from pgoutput_etl.errors import RunError

OTHERS = Process("elsewhere", 4711, 99)


@dataclass
class Rows:
    """What Delta does with rows that are appended under a name: each name is taken once."""

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


def test_a_run_at_work_keeps_others_out_and_lets_them_in_when_it_is_done() -> None:
    rows = Rows()
    with rows.claims().held(1):
        with (
            pytest.raises(RunError, match=r"another run is at work on this source: process \d+ of"),
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


def test_a_run_that_fails_lets_others_in_at_once() -> None:
    rows = Rows()
    with pytest.raises(ZeroDivisionError), rows.claims().held(1):
        raise ZeroDivisionError
    with rows.claims().held(1):
        pass


@pytest.mark.parametrize(("ago", "is_dead"), [(LEASE / 2, False), (LEASE * 1.1, True)])
def test_a_run_elsewhere_is_dead_when_it_was_not_heard_of_for_too_long(ago: timedelta, is_dead: bool) -> None:
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


def test_a_process_of_this_machine_that_is_gone_blocks_nobody() -> None:
    code = "from pgoutput_etl.claims import Process; p = Process.current(); print(p.pid, p.started)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    here = Process.current()
    rows = Rows()
    rows.claimed(Process(here.machine, int(said[0]), int(said[1])), timedelta(0))
    with rows.claims().held(1):
        pass
    rows = Rows()
    rows.claimed(Process(here.machine, here.pid, here.started - 1), timedelta(0))  # a number that is used again
    with rows.claims().held(1):
        pass


def test_of_two_that_try_at_the_same_moment_one_goes_on() -> None:
    """Both have found nobody there; the second one's row is not taken."""
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


def test_a_run_that_slept_too_long_finds_that_another_has_taken_over() -> None:
    rows = Rows()
    with rows.claims().held(1) as check:
        check()
        rows.claimed(OTHERS, timedelta(0), attempt=2)
        with pytest.raises(RunError, match="process 4711 of elsewhere"):
            check()
