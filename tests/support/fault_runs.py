"""Runs with faults, and the tables and ledger that they leave, for comparison."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.accumulators import _start_update_server
from pyspark.sql import SparkSession

from pgoutput_etl.replay.mirror import Replay
from pgoutput_etl.work.files.report import RunSummary
from tests.conftest import SETTINGS
from tests.support.delta_rows import delta_rows
from tests.support.faults import Fault
from tests.support.jobs import Job
from tests.support.small_archives import Messages, copydata

ROOT = Path(__file__).parents[2]
# Fields that differ between runs. The table `claims` differs as a whole.
_OF_THE_RUN = {"at", "ledger_id", "modified", "metrics"}
Contents = dict[str, Counter[str]]


@dataclass(frozen=True, slots=True)
class EndedRun:
    """The result of a run in its own process. effects: the lines of its log, see faults.py."""

    status: int
    output: str
    errors: str
    effects: tuple[str, ...]

    @property
    def was_killed(self) -> bool:
        return self.status == -signal.SIGKILL


@dataclass(slots=True)
class FaultyJob:
    """The nightly job on one folder: some runs use the test's session, others their own process, with a fault."""

    job: Job
    runs: int = 0
    running: dict[subprocess.Popen[str], Any] = field(default_factory=dict)
    """The drivers that use the test's JVM, each with the server of its accumulators."""

    def __enter__(self) -> FaultyJob:
        return self

    def __exit__(self, *_: object) -> None:
        for process in list(self.running):
            process.kill()
            self.end(process)

    def land(self, number: int, messages: Messages) -> None:
        (self.job.landing / f"{number:03}").write_bytes(copydata(messages, 0x1000000 * (number + 1)))

    def run(self) -> RunSummary:
        return self.job.run()

    def start_alone(self) -> subprocess.Popen[str]:
        """Starts jobs/apply.py without a fault, with its own JVM, in a process group that a test can kill."""
        self.job.write_config()
        command = [sys.executable, str(ROOT / "jobs/apply.py"), "--config", str(self.job.config), "--json"]
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
        environment = {**inherited, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
        return subprocess.Popen(
            [*command, "--set", f"spark={json.dumps({**SETTINGS, 'spark.master': 'local[1]'})}"],
            env=environment,
            text=True,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def start(self, fault: Fault, lease: float | None = None) -> subprocess.Popen[str]:
        """Starts another driver on the test's JVM, which survives the driver.

        Spark's scheduler sends the accumulators of each Python task to its driver and waits for the answer, so a
        stopped driver would stop all jobs. A thread of the test receives them instead.
        """
        self.runs += 1
        self.job.write_config()
        context = self.job.spark.sparkContext
        gateway = context._gateway
        assert gateway is not None
        token = secrets.token_hex()
        counts: Any = _start_update_server(token, False)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_GATEWAY_PORT": str(gateway.java_parameters.port),
            "PYSPARK_GATEWAY_SECRET": str(gateway.java_parameters.auth_token),
            "FAULTS_COUNTS": json.dumps([*counts.server_address, token]),
            **({} if lease is None else {"FAULTS_LEASE": str(lease)}),
        }
        settings = [part for setting in self.job.overrides for part in ("--set", setting)]
        arguments = [str(fault), str(self._log), "--config", str(self.job.config), *settings, "--json", "--quiet"]
        command = [sys.executable, "-m", "tests.support.faults", *arguments]
        process = subprocess.Popen(
            command,
            env=environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.running[process] = counts
        return process

    def end(self, process: subprocess.Popen[str]) -> EndedRun:
        output, errors = process.communicate(timeout=300)
        if counts := self.running.pop(process, None):
            counts.shutdown()
        log = self._log.read_text().splitlines() if self._log.exists() else []
        return EndedRun(process.returncode, output, errors, tuple(log))

    def run_with(self, fault: Fault) -> EndedRun:
        return self.end(self.start(fault))

    def wait_until_stopped(self, process: subprocess.Popen[str]) -> None:
        """Waits until the process has sent itself SIGSTOP."""
        change = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if change is None or change.si_code != os.CLD_STOPPED:
            raise AssertionError(self.end(process).errors)

    @property
    def _log(self) -> Path:
        return self.job.folder / f"effects.{self.runs}"

    def ledger(self, table: str) -> list[dict[str, Any]]:
        path = self.job.folder / "tables" / "_pgoutput_etl" / table
        return delta_rows(self.job.spark, path) if (path / "_delta_log").exists() else []

    def targets(self) -> dict[str, Path]:
        paths = (log.parent for log in (self.job.folder / "tables").glob("[!_]*/*/_delta_log"))
        return {f"{path.parent.name}.{path.name}": path for path in paths}

    def tables(self) -> Contents:
        return {name: _counted(delta_rows(self.job.spark, path)) for name, path in self.targets().items()}

    def ledger_contents(self) -> Contents:
        names = sorted(log.parent.name for log in (self.job.folder / "tables" / "_pgoutput_etl").glob("*/_delta_log"))
        return {name: _counted(map(self._comparable, self.ledger(name))) for name in names if name != "claims"}

    def _comparable(self, row: dict[str, Any]) -> dict[str, Any]:
        """Without Delta's versions, as a killed run may leave one more (see `assert_versions_are_right`), and without
        the memory, which is unknown after one."""
        row = {key: value for key, value in row.items() if key not in _OF_THE_RUN}
        if "files" in row:
            row["files"] = [{k: v for k, v in file.items() if k not in _OF_THE_RUN} for file in row["files"] or ()]
        if row.get("state"):
            row["state"] = json.dumps(json.loads(row["state"]), sort_keys=True)
        if row.get("tables"):
            row["tables"] = sorted(({**table, "version": None, "memory": None} for table in row["tables"]), key=repr)
        return row

    def assert_versions_are_right(self) -> None:
        """Checks that each table's version in the ledger's last closed batch has the table's current rows."""
        done = max((row for row in self.ledger("batches") if row["status"] == "done"), key=lambda row: row["batch"])
        for table in done["tables"]:
            if table["version"] >= 0 and table["status"] != "held":
                at_version, now = (delta_rows(self.job.spark, table["path"], n) for n in (table["version"], None))
                assert _counted(at_version) == _counted(now), table["path"]

    def assert_as_replayed(
        self, replay: Replay, keys: Mapping[str, tuple[str, ...]] | None = None, only: Collection[int] = ()
    ) -> None:
        """Checks that the tables equal a replay without Spark, which applies one change after the other. only: these
        tables, in place of all."""
        tables = replay.tables(keys)
        have = self.tables()
        for (schema, name), oid in replay.name_holders().items():
            if oid in (only or tables):
                assert have[f"{schema}.{name}"] == _counted(tables[oid].rows), f"{schema}.{name}"


def _counted(rows: Any) -> Counter[str]:
    return Counter(repr(sorted(_plain(row).items(), key=repr)) for row in rows)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    odd = row.get("_pg_unrepresentable")
    return {**row, **({"_pg_unrepresentable": sorted(dict(odd).items()) if odd else None} if "_pg_xid" in row else {})}


def forget_files(spark: SparkSession) -> None:
    """Clears Delta's cached table state, which is wrong after a test has restored a table's folder."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    spark.catalog.clearCache()


def put_back(spark: SparkSession, folder: Path, saved: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(saved, folder)
    forget_files(spark)
