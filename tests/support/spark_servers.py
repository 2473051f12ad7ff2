"""Spark's own servers as processes of a test's own, from the distribution in pyspark: for as long as it needs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from pgoutput_etl.spark.session import delta_package

ROOT = Path(__file__).parents[2]
_TESTED = re.compile(r"<!-- tested -->\n```sh\n(.*?)```\n", re.DOTALL)
_STARTED_WITHIN = 180  # seconds, in which jars may have to come from afar
_STOPPED_WITHIN = 20
# Compiled lightly and collected by one thread: what runs for a minute has no time to earn more.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"


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
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOPPED_WITHIN)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def standalone_cluster(folder: Path, workers: int) -> Iterator[str]:
    """A master and its workers, one core each. Gives the master's URL; a worker's executors work below `worker<n>`."""
    spark_class = spark_home() / "bin" / "spark-class"
    small = {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS}
    anywhere = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as running:
        master = (spark_class, "org.apache.spark.deploy.master.Master", *anywhere)
        told = server(folder, "master", *master, started=r"Starting Spark master at (spark://\S+)", **small)
        url = running.enter_context(told)[1]
        for number in range(workers):
            name = f"worker{number}"
            place = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / name))
            worker = (spark_class, "org.apache.spark.deploy.worker.Worker", *anywhere, *place, url)
            own = {**small, "SPARK_LOCAL_DIRS": str(folder / f"{name}.local")}
            running.enter_context(server(folder, name, *worker, started="Successfully registered with master", **own))
        yield url


@contextmanager
def connect_server(folder: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """A Spark Connect server with Delta, by the command in docs/spark-connect.md. Gives its URL."""
    [command] = _TESTED.findall((ROOT / "docs" / "spark-connect.md").read_text(encoding="utf-8"))
    assert delta_package() in command
    chosen = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        **settings,
    }
    options = [part for name, value in chosen.items() for part in ("--conf", f"{name}={value}")]
    said = r"Spark Connect server started at: \S*:(\d+)"
    shell = ("bash", "-c", f'exec {command.strip()} "$@"', "connect", *options)
    with server(folder, "connect", *shell, started=said, PYSPARK_PYTHON=sys.executable) as found:
        yield f"sc://127.0.0.1:{found[1]}"
