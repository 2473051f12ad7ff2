"""Spark's own servers as processes of a test's own, from the distribution in pyspark: for as long as it needs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

_STARTED_WITHIN = 120  # seconds, on a machine that does something else as well
_STOPPED_WITHIN = 20
# Compiled lightly and collected by one thread: what runs for a minute has no time to earn more.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def spark_home() -> Path:
    pyspark = find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    return Path(pyspark.origin).parent


def environment(**more: str) -> dict[str, str]:
    """What Spark's scripts look at, whatever the caller's shell is set up for."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return {**inherited, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1", **more}


@contextmanager
def server(folder: Path, name: str, *command: str | Path, started: str, **variables: str) -> Iterator[re.Match[str]]:
    """A process of Spark's that works in `folder` and ends with the block, with all that it has started.

    Its output goes to `<name>.log`; the block begins once a line there matches `started`.
    """
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            env=environment(**variables),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield _wait_for(process, log, started)
        finally:
            _stop(process)


def _wait_for(process: subprocess.Popen[bytes], log: Path, started: str) -> re.Match[str]:
    until = time.monotonic() + _STARTED_WITHIN
    while time.monotonic() < until:
        ended = process.poll() is not None
        said = log.read_text(errors="replace")
        if found := re.search(started, said):
            return found
        assert not ended, f"{log.name}: ended with {process.returncode}\n{said[-3000:]}"
        time.sleep(0.1)
    raise AssertionError(f"{log.name}: no {started!r} within {_STARTED_WITHIN} s\n{log.read_text()[-3000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """A worker takes its executors along; whatever of its process group is left is ended the hard way."""
    process.terminate()
    try:
        process.wait(_STOPPED_WITHIN)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


@contextmanager
def standalone_cluster(folder: Path, workers: int) -> Iterator[str]:
    """A master and its workers, one core each. Gives the master's URL; a worker's executors work below `worker<n>`."""
    spark_class = spark_home() / "bin" / "spark-class"
    daemon: Mapping[str, str] = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS}
    anywhere = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as running:
        command = (spark_class, "org.apache.spark.deploy.master.Master", *anywhere)
        told = server(folder, "master", *command, started=r"Starting Spark master at (spark://\S+)", **daemon)
        url = running.enter_context(told)[1]
        for number in range(workers):
            name = f"worker{number}"
            command = (spark_class, "org.apache.spark.deploy.worker.Worker", *anywhere, "--cores", "1")
            own = {**daemon, "SPARK_LOCAL_DIRS": str(folder / f"{name}.local"), "PYSPARK_PYTHON": sys.executable}
            command = (*command, "--memory", "1g", "--work-dir", str(folder / name), url)
            running.enter_context(server(folder, name, *command, started="Successfully registered with master", **own))
        yield url
