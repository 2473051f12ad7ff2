"""The promises of docs/guarantees.md in thousands of simulated histories, and faults planted in the protocol.

The simulation must find each of them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation import __main__ as simulation
from tests.simulation.mutations import MUTATIONS
from tests.simulation.runner import Tally, first_seed_that_finds, run_seed, run_seeds, shrink

ROOT = Path(__file__).parents[2]
SEEDS, OF_SOAK, AT_ONCE = 100, 40_000, 100

FOUND_WITHIN, FOUND_LATE_WITHIN = 200, 20_000  # seeds, from 0 on
# Where the search begins for what few seeds find: it took seconds each from 0 on.
BEGIN = {
    "a lost catalog Message goes unnoticed": 21,
    "a rolled back definition counts": 53,
    "a run does not look at the ledger once it has the claim": 12_300,
    "a truncate removes the past from a table that keeps it": 16,
    "an interrupted batch is finished with the files that are new now": 16,
    "an interrupted snapshot counts as done": 199,
    "catalog Messages out of order count as sent again": 78,
    "tables keep rows that were masked in another way": 180,
    "the digests of catalog Messages are not checked": 46,
}
FOUND_LATE = {
    "rows of open transactions are deleted before the batch is done",
    "the date of a claim tells that its run is dead",
    "a run does not look at the ledger once it has the claim",
    "files that were renamed during the scan are applied",
    "a run does not check its claim before it writes",
    "an interrupted backfill counts as done",
    "an erasure leaves what a clock ahead has dated",
    "what an erasure has found is not kept",
    "a backfill reads files under the names that they had",
    "a range of commits is repaired in a table that keeps the past",
    "a snapshot's staged rows are discarded before its batch is done",
    "a snapshot is loaded without the commits after it",
    "maintenance records what another program has written",
    "claims that count are deleted",
    "waiting changes are not masked again",
}
# Not within 10,000 seeds. test_backfill.py and tests/spark/jobs/test_maintain.py have a test for the first two. Seed
# 5,004 found the third until runs waited for claims whose dates tell nothing.
NOT_FOUND = {
    "a backfill does not look at the ledger once it has the claim",
    "old transactions are deleted without a record",
    "rows of open transactions are deleted by a run that looks at an older batch",
}


def check(tally: Tally) -> None:
    assert tally.failures == {}, "python -m tests.simulation --seed N shows a seed"
    assert tally.batches > AT_ONCE
    assert {"kill", "pause", "fail", "lose"} <= tally.faults.keys()


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_every_promise_is_kept(first: int) -> None:
    check(run_seeds(range(first, first + AT_ONCE)))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, OF_SOAK, AT_ONCE))
def test_thousands_more(first: int) -> None:
    check(run_seeds(range(first, first + AT_ONCE)))


def test_a_run_that_is_stopped_before_it_puts_a_commit_on_s3_does_not_go_on() -> None:
    """In this seed it would replace the beginning of a batch that another run has finished by now."""
    world, failure = run_seed(205_429)
    assert (failure, world.scenario.is_atomic) == (None, False)


@pytest.mark.parametrize("seed", [7_042, 700_418, 706_248, 710_599, 713_358, 713_914, 714_089, 717_813, 726_963])
def test_a_seed_that_found_a_defect_keeps_every_promise(seed: int) -> None:
    """Maintenance took the number of a batch that another run had begun; a redrive took the next file under a damaged
    one's name for its repaired content, or read it because the name was used again after the listing; a segment's
    messages were taken for a long Truncate; the next file was taken for a compressed one; and, as clocks differed, a
    run took over from an erasure that was at work."""
    assert run_seed(seed)[1] is None


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(name, marks=pytest.mark.soak) if name in FOUND_LATE else name
        for name in MUTATIONS
        if name not in NOT_FOUND
    ],
)
def test_a_planted_fault_is_found(mutation: str) -> None:
    within = FOUND_LATE_WITHIN if mutation in FOUND_LATE else FOUND_WITHIN
    begin = BEGIN.get(mutation, 0)
    assert first_seed_that_finds(mutation, (*range(begin, within), *range(begin))) is not None


def test_a_failing_seed_shrinks_to_the_faults_that_it_needs() -> None:
    mutation = "an interrupted batch is finished with the files that are new now"
    seed = first_seed_that_finds(mutation, range(BEGIN[mutation], FOUND_WITHIN))
    assert seed is not None
    needed = shrink(seed, mutation)
    assert run_seed(seed, needed, mutation=mutation)[1] is not None
    for fault in needed:
        assert run_seed(seed, needed - {fault}, mutation=mutation)[1] is None
    assert len(needed) < len(run_seed(seed, mutation=mutation)[0].storage.faults.happened) or len(needed) <= 1


def digest_of_traces() -> str:
    traces = (run_seed(seed, keeps_trace=True)[0].scheduler.trace for seed in range(40))
    return hashlib.sha256("\n".join(line for trace in traces for line in trace).encode()).hexdigest()


def test_a_seed_repeats_itself_in_another_process() -> None:
    """Whatever the order of sets and dictionaries of strings is there."""
    code = "from tests.simulation.test_simulation import digest_of_traces; print(digest_of_traces())"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == digest_of_traces()


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", "--seeds", "10", "--processes", "1"])
    assert simulation.main() == 0
    said = capsys.readouterr().out
    assert said.startswith("10 seeds in")
    assert "broken promises: 0" in said
    monkeypatch.setattr(sys, "argv", ["simulation", "--seed", "3"])
    assert simulation.main() == 0
    assert "seed 3: every promise was kept" in capsys.readouterr().out


def test_the_result_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally(seeds=1, faults=Counter(kill=2), failures={7: "a promise"})
    monkeypatch.setattr(simulation, "_run", lambda *_: tally)
    monkeypatch.setattr(simulation, "_explain", lambda _: 1)
    monkeypatch.setattr(sys, "argv", ["simulation", "--seeds", "1", "--json"])
    assert simulation.main() == 1
    printed = json.loads(capsys.readouterr().out)
    assert (printed["faults"], printed["failures"]) == ({"kill": 2}, {"7": "a promise"})


def test_an_interrupted_command_reports_the_seeds_that_are_done() -> None:
    """Two at once, as it ends those that it has begun."""
    code = "from tests.simulation import __main__ as simulation; simulation._AT_ONCE = 2; exit(simulation.main())"
    # What a shell starts in the background ignores SIGINT, and so would its child.
    command = ["env", "--default-signal=INT", sys.executable, "-c", code, "--seeds", "10000"]
    with subprocess.Popen(
        [*command, "--processes", "1"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        shown = b""
        while b" of " not in shown:  # some seeds are done
            assert process.poll() is None
            shown += process.stderr.read(1)
        process.send_signal(signal.SIGINT)
        said = process.stdout.read().decode()
    assert process.returncode == 1
    assert re.match(r"[1-9]\d* seeds in .* s: [1-9]\d* batches", said)
