"""jobs/apply.py with a fault: `python -m tests.support.faults FAULT LOG ARGUMENTS…` ends or stops itself at one effect.

An effect is a call that changes a Delta table: a write, a MERGE, a DELETE, a RESTORE, or an ALTER TABLE. Spark's and
Delta's own methods are wrapped, and the commits of the driver and of delta-rs, so that no effect is missed. A fault is
`signal moment number pattern`: `KILL after 2 write batches` sends this process SIGKILL after the second write to a
table `batches`. LOG gets a line before and after each effect.

With PYSPARK_GATEWAY_PORT, PYSPARK_GATEWAY_SECRET, and FAULTS_COUNTS set, the driver uses an existing JVM that outlives
it and completes its running operations, as on a cluster.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from fnmatch import fnmatch
from functools import wraps
from pathlib import Path
from typing import Any

from delta.tables import DeltaMergeBuilder, DeltaTable
from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrameWriter, SparkSession

import pgoutput_etl.spark.session
from pgoutput_etl.jobs.apply import COMMAND
from pgoutput_etl.ledger import claims, local_append
from pgoutput_etl.spark.delta_write import DeltaWrite

BEFORE, AFTER = "before", "after"


@dataclass(frozen=True, slots=True)
class Fault:
    """Sends a signal before or after an effect. number: counts the effects that match the pattern, from 1."""

    signal: str
    moment: str
    number: int
    pattern: str = "*"

    @classmethod
    def parse(cls, text: str) -> Fault:
        name, moment, number, pattern = text.split(maxsplit=3)
        return cls(name, moment, int(number), pattern)

    def __str__(self) -> str:
        return f"{self.signal} {self.moment} {self.number} {self.pattern}"


@dataclass(slots=True)
class Effects:
    """Counts and logs the effects of all threads, and triggers the fault."""

    fault: Fault
    log: Path
    matched: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    thread: threading.local = field(default_factory=threading.local)

    def around(self, owner: object, method: str, name: Callable[..., str | None]) -> None:
        """`name` maps the method's arguments to the effect's name, or to None if the call changes nothing."""
        original = getattr(owner, method)

        @wraps(original)
        def counted(*arguments: Any, **named: Any) -> Any:
            called = name(*arguments, **named)
            if called is None:
                return original(*arguments, **named)
            number = self._count(called)
            self._at(BEFORE, called, number)
            result = original(*arguments, **named)
            self._at(AFTER, called, number)
            return result

        setattr(owner, method, counted)

    def _count(self, name: str) -> int:
        if not fnmatch(name, self.fault.pattern):
            return 0
        with self.lock:
            self.matched += 1
            return self.matched

    def _at(self, moment: str, name: str, number: int) -> None:
        with self.lock, self.log.open("a") as log:
            log.write(f"{moment} {name}\n")
        if (moment, number) == (self.fault.moment, self.fault.number):
            os.kill(os.getpid(), getattr(signal, f"SIG{self.fault.signal}"))
            time.sleep(1)  # the signal may stop another thread first

    def watch(self) -> None:
        """Wraps the methods. A DeltaTable has no path, but the same thread has created it just before."""
        for_path = DeltaTable.forPath.__func__  # type: ignore[attr-defined]

        def remember(cls: type, session: SparkSession, path: str, *more: Any) -> DeltaTable:
            self.thread.path = path
            table: DeltaTable = for_path(cls, session, path, *more)
            return table

        DeltaTable.forPath = classmethod(remember)  # type: ignore[assignment, method-assign]
        self.around(DataFrameWriter, "save", lambda _, path, **__: f"write {Path(path).name}")
        self.around(DeltaWrite, "_put", lambda write, *_: f"store {Path(write.table.folder).name}")
        self.around(DeltaWrite, "_commit", lambda write, *_: f"write {Path(write.table.folder).name}")
        self.around(local_append, "append_once", lambda path, *_: f"write {Path(path).name}")
        self.around(DeltaMergeBuilder, "execute", lambda _: f"merge {self._table()}")
        self.around(DeltaTable, "delete", lambda *_: f"delete {self._table()}")
        self.around(DeltaTable, "restoreToVersion", lambda *_: f"restore {self._table()}")
        self.around(SparkSession, "sql", lambda _, text, **__: _statement(text))

    def _table(self) -> str:
        return Path(self.thread.path).name


def _statement(text: str) -> str | None:
    match = re.match(r"ALTER TABLE delta\.`(?P<path>[^`]*)` (?P<action>\w+ \w+)", text)
    return None if match is None else f"alter {Path(match['path']).name} {match['action']}"


def session_in_running_jvm() -> SparkSession:
    """The running JVM's context and session, for this driver. FaultyJob.start explains FAULTS_COUNTS."""
    SparkContext._ensure_initialized()
    gateway, jvm = SparkContext._gateway, SparkContext._jvm
    assert gateway is not None
    assert jvm is not None
    java_context = jvm.JavaSparkContext.fromSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
    context = SparkContext(gateway=gateway, jsc=java_context, conf=SparkConf(_jconf=java_context.getConf()))
    context._javaAccumulator = jvm.PythonAccumulatorV2(*json.loads(os.environ["FAULTS_COUNTS"]))
    context._jsc.sc().register(context._javaAccumulator)
    return SparkSession(context, jvm.SparkSession.getDefaultSession().get())


def main() -> int:
    fault, log, *arguments = sys.argv[1:]
    if "FAULTS_LEASE" in os.environ:
        claims.LEASE = timedelta(seconds=float(os.environ["FAULTS_LEASE"]))
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        session = session_in_running_jvm()
        session.stop = lambda: None  # type: ignore[method-assign]
        pgoutput_etl.spark.session.start_session = lambda *_: session
    Effects(Fault.parse(fault), Path(log)).watch()
    sys.argv = ["jobs/apply.py", *arguments]
    return COMMAND.main()


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # does not stop the context, which another driver owns
