"""`apply --follow`: looks again and again, ends after a batch, and makes room for other runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from pgoutput_etl.config.settings import Metrics
from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.work.batch import Watch, World
from pgoutput_etl.work.files import follow as follow_module
from pgoutput_etl.work.files import pipeline
from pgoutput_etl.work.files.follow import Follower, FollowReport, batch_json, batch_line, follow, stop_signal
from pgoutput_etl.work.files.report import RunSummary
from tests.spark.jobs.test_apply_job import ROOT
from tests.support.jobs import Nights
from tests.support.small_archives import copydata, insert, table, transaction

pytestmark = pytest.mark.spark


@dataclass(slots=True)
class Landed:
    """Lands transactions, each in a file, and follows them look by look."""

    nights: Nights
    follower: Follower
    batches: list[int]
    steps: list[str]
    ended: int = 0
    kept_up: list[int] = field(default_factory=list)

    def land(self, count: int = 1) -> None:
        for _ in range(count):
            self.ended += 1
            number = self.ended
            described = [table()] if number == 1 else []
            self.nights.land(transaction(number, 0x100 * number, *described, insert(str(number), "v")))

    def ids(self) -> list[str]:
        return [row[0] for row in self.nights.values("t")]


@pytest.fixture
def landed(nights: Nights) -> Landed:
    batches: list[int] = []
    steps: list[str] = []
    kept_up: list[int] = []
    config = replace(nights.job.loaded(), metrics=Metrics(json=str(nights.job.folder / "runs.jsonl")))
    world, watch = World.of(nights.job.spark, config), Watch(steps.append)

    def keep_up() -> None:
        kept_up.append(len(batches))

    follower = Follower(world, watch, lambda summary: batches.append(summary.batch), keep_up)
    return Landed(nights, follower, batches, steps, kept_up=kept_up)


def test_each_look_applies_what_has_landed_since(landed: Landed, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves it to another run that is at work."""
    runs = []
    apply_run = pipeline.apply_run

    def counted_run(world: World, watch: Watch, leaves_to_others: bool) -> list[RunSummary]:
        runs.append(world)
        return apply_run(world, watch, leaves_to_others)

    monkeypatch.setattr(follow_module, "apply_run", counted_run)
    monkeypatch.setattr(follow_module, "BATCHES_PER_UPKEEP", 2)
    for count in (1, 0, 0, 2):
        landed.land(count)
        landed.follower.look()

    assert (landed.batches, landed.ids()) == ([1, 2], ["1", "2", "3"])
    assert len(runs) == 2, "a look that finds the same files reads no ledger"
    assert landed.kept_up == [2]
    published = [json.loads(line) for line in (landed.nights.job.folder / "runs.jsonl").read_text().splitlines()]
    assert [run["files"] for run in published] == [1, 0, 0, 2]
    assert [run["last_commit_lsn"] for run in published] == [0x100, 0x100, 0x100, 0x300]

    landed.follower.looked_at = float("-inf")
    landed.follower.look()
    assert len(runs) == 3, "after a while, it reads the ledger anyway"

    landed.land()
    job = landed.nights.job
    other = DeltaLedger.at(job.spark, job.loaded().state.root, "test")
    last = other.batches.last()
    with other.batches.claimed(last, Batch.after(last, {}), lambda _: None):
        landed.follower.look()
        assert landed.batches == [1, 2]
        assert "waiting: another run is working on this source" in landed.steps[-1]
    landed.follower.look()
    assert (landed.batches, landed.ids()) == ([1, 2, 3], ["1", "2", "3", "4"])
    published = [json.loads(line) for line in (job.folder / "runs.jsonl").read_text().splitlines()]
    assert [run["error"] for run in published] == [None] * 6, "waiting is no failure"


def test_it_limits_batches_compacts_the_ledger_and_prints_lines(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow_module, "MOST_TRANSACTIONS", 1)
    monkeypatch.setattr(follow_module, "BATCHES_PER_UPKEEP", 2)
    requests = []
    monkeypatch.setattr(follow_module, "maintain", lambda *given: requests.append(given[2]))
    nights.land(transaction(1, 0x100, table(), insert("1", "v"), insert("2", "v")))
    nights.land(transaction(2, 0x200, insert("3", "v")))
    batches: list[RunSummary] = []
    looks = iter([False] * 4)
    report = follow(nights.job.spark, nights.job.loaded(), 0, lambda: next(looks, True), batches.append)
    assert [batch.files for batch in batches] == [1, 1]
    assert (report.batches, report.exit_code) == (2, 0)
    [request] = requests
    assert (request.tables, request.only, request.execute) == ((), ("optimize", "checkpoint"), True)
    assert_lines(batches[0])


def assert_lines(summary: RunSummary) -> None:
    """A batch is one line of text or JSON."""
    line = batch_line(summary)
    assert line.startswith("Batch 1: 1 file, 1 transaction, 2 changed rows in 1 table; through LSN 0/100, ")
    assert line.endswith(" d behind."), "the test's commit is of the year 2000"
    values = json.loads(batch_json(summary))
    assert (values["lsn"], values["batch"], values["exit_code"]) == ("0/100", 1, 0)
    assert values["lag_seconds"] > 800_000_000
    assert "\n" not in batch_json(summary)
    assert FollowReport(0, None).line() == "Stopped after 0 batches."
    assert json.loads(FollowReport(2, summary).to_json()) == {
        "stopped": True, "batches": 2, "batch": 1, "lsn": "0/100", "exit_code": 0
    }  # fmt: skip


def test_sigterm_ends_it_after_the_batch_that_it_is_in(nights: Nights) -> None:
    for n in (1, 2, 3):
        described = [table()] if n == 1 else []
        nights.land(transaction(n, 0x100 * n, *described, insert(str(n), "v")))
    steps: list[str] = []

    def progress(step: str) -> None:
        steps.append(step)
        if step.startswith("writing public.t"):
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    config = nights.job.loaded("merge.max_transactions=1")
    batches: list[RunSummary] = []
    with stop_signal(progress) as is_stopping:
        report = follow(nights.job.spark, config, 3600, is_stopping, batches.append, progress)
        assert signal.getsignal(signal.SIGTERM) == before, "the second signal ends the process"
    assert "SIGTERM: stopping after the current batch" in steps
    assert [batch.batch for batch in batches] == [1]
    assert (report.batches, report.last) == (1, batches[0])
    assert report.line() == "Stopped after 1 batch. All tables are consistent through LSN 0/100."
    assert [row[0] for row in nights.values("t")] == ["1"]
    assert nights.job.run().batch == 2


@pytest.mark.soak
def test_the_command_follows_until_sigterm(tmp_path: Path, landing: Path) -> None:
    config = tmp_path / "job.yaml"
    source = f"{{name: shop, landing: '{landing}', snapshot: accept}}"
    config.write_text(f"source: {source}\ntarget: {{root: '{tmp_path / 'out'}'}}\n")
    script, job = str(ROOT / "spark-submit.sh"), str(ROOT / "jobs/apply.py")
    command = [script, "--master=local[1]", job, "--config", str(config)]
    follower = subprocess.Popen([*command, "--follow", "1s", "--json", "--quiet"], stdout=subprocess.PIPE, text=True)
    try:
        assert follower.stdout is not None
        for n in (1, 2):
            described = [table()] if n == 1 else []
            messages = transaction(n, 0x100 * n, *described, insert(str(n), "v"))
            (landing / f".{n}.bin").write_bytes(copydata(messages))
            (landing / f".{n}.bin").rename(landing / f"{n}.bin")
            batch = json.loads(follower.stdout.readline())
            assert (batch["batch"], batch["files"], batch["lsn"]) == (n, 1, f"0/{n}00")
        time.sleep(2)  # it is idle, and another run finds nothing to do
        other = subprocess.run([*command, "--json", "--quiet"], capture_output=True, text=True, check=True)
        assert json.loads(other.stdout)["batches"][0]["files"] == 0
        follower.send_signal(signal.SIGTERM)
        rest, _ = follower.communicate(timeout=120)
        assert json.loads(rest) == {"stopped": True, "batches": 2, "batch": 2, "lsn": "0/200", "exit_code": 0}
        assert follower.returncode == 0
    finally:
        follower.kill()
