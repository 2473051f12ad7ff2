"""The nightly job on a cluster whose executors and workers are killed: each night finishes by itself, and is right.

Tables and ledger must equal those of a run without faults, and the mirrors a replay of one change after the other.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from tests.support.busy_nights import MIRRORS, RULES, BusyNights
from tests.support.fault_runs import FaultyJob, forget_files
from tests.support.jobs import Job
from tests.support.lost_machines import Frozen, Killer
from tests.support.spark_servers import (
    LIGHT,
    SMALL_APPLICATION,
    Cluster,
    conf_options,
    environment,
    kill_tree,
    standalone_cluster,
)

ROOT = Path(__file__).parents[3]
ON_A_CLUSTER = {
    **SMALL_APPLICATION,
    "spark.pyspark.python": sys.executable,
    # The documented settings for machines that are lost often.
    "spark.task.maxFailures": "20",
    "spark.stage.maxConsecutiveAttempts": "20",
}
MORE = {
    "as it is": {},
    "dynamic allocation and speculation": {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.executorIdleTimeout": "2s",
        "spark.dynamicAllocation.cachedExecutorIdleTimeout": "4s",  # with the blocks that it has
        "spark.speculation": "true",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.4",
    },
}
# As if the night were larger: changes of a table are exchanged between executors before they are merged. And as if the
# driver ran on the machine of this name, where nobody knows the processes of other machines.
SCRIPT = """
import sys
from dataclasses import replace
from datetime import timedelta
from pgoutput_etl import machine
from pgoutput_etl.ledger import claims
from pgoutput_etl.load import change_source
change_source.SINGLE_TASK_BYTES = 1 << 19
claims.LEASE, claims.RENEWAL = timedelta(seconds=20), timedelta(seconds=5)
process = replace(machine.Process.current(), machine={machine!r})
machine.Process.current = lambda: process
from pgoutput_etl.cli import command
sys.exit(command("apply").main())
"""

pytestmark = [pytest.mark.spark, pytest.mark.soak]


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """The nightly job, submitted to a cluster."""

    job: Job

    def write_config(self) -> None:
        self.job.write_config()
        with self.job.config.open("a") as config:
            config.write(f"spark: {json.dumps(LIGHT)}\n{RULES.replace('=', ': ', 1)}\n")

    def start(self, cluster: Cluster, machine: str = "here", **more: str) -> subprocess.Popen[str]:
        """machine: the driver's."""
        script = self.job.folder / f"{machine}.py"
        script.write_text(SCRIPT.format(machine=machine))
        self.write_config()
        settings = conf_options({**ON_A_CLUSTER, **more})
        command: list[str | Path] = [ROOT / "spark-submit.sh", "--master", cluster.url, *settings, script]
        return subprocess.Popen(
            [*command, "--config", self.job.config, "--json"],
            cwd=ROOT,
            env=environment(),
            text=True,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def end(self, process: subprocess.Popen[str]) -> tuple[int, str]:
        """The exit code, and what it wrote to standard error."""
        try:
            _, errors = process.communicate(timeout=900)
        finally:
            kill_tree(process.pid)
        (self.job.folder / "errors").write_text(errors)
        return process.returncode, errors

    def submit(self, cluster: Cluster, **more: str) -> None:
        code, errors = self.end(self.start(cluster, **more))
        assert code == 0, errors[-5000:]

    def parquet_files(self) -> set[str]:
        """Of the target tables, also those that no commit names."""
        return {str(path) for path in (self.job.folder / "tables" / "public").rglob("*.parquet")}


@pytest.fixture
def undisturbed(spark: SparkSession, tmp_path: Path) -> FaultyJob:
    """The same nights without faults, in the test's own session."""
    folder = tmp_path / "undisturbed"
    (folder / "landing").mkdir(parents=True)
    return FaultyJob(Job(spark, folder, folder / "landing", [RULES]))


@pytest.mark.parametrize("settings", MORE)
@pytest.mark.parametrize("seed", range(3))
def test_executors_and_workers_are_killed(
    undisturbed: FaultyJob, tmp_path: Path, landing: Path, seed: int, settings: str, capsys: pytest.CaptureFixture[str]
) -> None:
    nights = BusyNights(Random(seed))
    job = Job(undisturbed.job.spark, tmp_path, landing, [RULES])
    submitted = SubmittedJob(job)
    with standalone_cluster(tmp_path, workers=2) as cluster:
        killer = Killer(cluster, Random(seed))
        for night in (nights.first, nights.second):
            nights.land(night(), landing, undisturbed.job.landing)
            undisturbed.run()
            with killer.at_work():
                submitted.submit(cluster, **MORE[settings])
    with capsys.disabled():
        print(f"\n{settings}, seed {seed}: killed {dict(killer.kills)}")  # noqa: T201
    assert killer.kills.total() >= 5
    forget_files(job.spark)
    assert_as(FaultyJob(job), undisturbed, nights)


@pytest.mark.parametrize("seed", range(3))
def test_a_driver_is_killed_while_a_machine_can_not_be_reached(
    undisturbed: FaultyJob, tmp_path: Path, landing: Path, seed: int
) -> None:
    """The job is submitted again, on another machine, until the lease of the killed one has ended. Meanwhile the first
    one's executor wakes up, in the middle of its writes."""
    nights = BusyNights(Random(seed))
    job = Job(undisturbed.job.spark, tmp_path, landing, [RULES])
    submitted = SubmittedJob(job)
    with standalone_cluster(tmp_path, workers=1) as cluster:
        for night in (nights.first, nights.second):
            nights.land(night(), landing, undisturbed.job.landing)
            undisturbed.run()
            before = submitted.parquet_files()
            killed = submitted.start(cluster)
            while submitted.parquet_files() == before:
                assert killed.poll() is None, "the job ended too early"
                time.sleep(0.05)
            time.sleep(Random(seed).uniform(0, 1))
            frozen = Frozen(cluster.workers.popitem()[1].pid)
            kill_tree(killed.pid)
            killed.communicate()
            cluster.start_worker()
            waking = threading.Timer(Random(seed).uniform(25, 40), frozen.wake)
            waking.start()
            code, errors = 1, ""
            while code == 1:
                code, errors = submitted.end(submitted.start(cluster, "another"))
                assert code == 0 or "another run is working on this source" in errors, errors[-5000:]
            waking.join()
            assert frozen.processes, "an executor was asleep"
    forget_files(job.spark)
    assert_as(FaultyJob(job), undisturbed, nights)


def assert_as(disturbed: FaultyJob, undisturbed: FaultyJob, nights: BusyNights) -> None:
    assert disturbed.tables() == undisturbed.tables()
    disturbed.assert_as_replayed(nights.replay, only=MIRRORS)
    statuses = sorted((row["batch"], row["status"]) for row in disturbed.ledger("batches"))
    assert statuses == [(1, "begun"), (1, "done"), (2, "begun"), (2, "done")]
    for table in ("transactions", "open_transactions", "relations"):
        assert len(disturbed.ledger(table)) == len(undisturbed.ledger(table)), table
