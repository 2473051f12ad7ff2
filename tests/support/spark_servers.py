"""Spark's servers as processes for the duration of a test, from the distribution in pyspark."""

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
_STARTED_WITHIN = 180  # seconds, in which jars may have to be downloaded
_STOPPED_WITHIN = 20


def spark_home() -> Path:
    pyspark = find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    return Path(pyspark.origin).parent


def environment(**more: str) -> dict[str, str]:
    """The environment for Spark's scripts, without the caller's Spark settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return {**inherited, "SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": "127.0.0.1", **more}


@contextmanager
def server(folder: Path, name: str, *command: str | Path, started: str, **variables: str) -> Iterator[re.Match[str]]:
    """Runs one of Spark's servers in `folder` until the end of the block, which also ends its child processes.

    Its output goes to `<name>.log`. The block begins when a line there matches `started`; yields the match.
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
        output = log.read_text(errors="replace")
        if match := re.search(started, output):
            return match
        assert not ended, f"{log.name}: ended with {process.returncode}\n{output[-3000:]}"
        time.sleep(0.1)
    raise AssertionError(f"{log.name}: no {started!r} within {_STARTED_WITHIN} s\n{log.read_text()[-3000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Terminates the process, and kills the rest of its process group. A worker ends its executors itself."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOPPED_WITHIN)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def standalone_cluster(folder: Path, workers: int) -> Iterator[str]:
    """A master and workers with one core each. Yields the master's URL. Executors work below `worker<n>`."""
    spark_class = spark_home() / "bin" / "spark-class"
    small = {"SPARK_DAEMON_MEMORY": "256m"}
    anywhere = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with ExitStack() as running:
        master = (spark_class, "org.apache.spark.deploy.master.Master", *anywhere)
        started = r"Starting Spark master at (spark://\S+)"
        url = running.enter_context(server(folder, "master", *master, started=started, **small))[1]
        for number in range(workers):
            name = f"worker{number}"
            options = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / name))
            worker = (spark_class, "org.apache.spark.deploy.worker.Worker", *anywhere, *options, url)
            env = {**small, "SPARK_LOCAL_DIRS": str(folder / f"{name}.local")}
            running.enter_context(server(folder, name, *worker, started="Successfully registered with master", **env))
        yield url


@contextmanager
def connect_server(folder: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """A Spark Connect server with Delta, started by the command in docs/deploy.md. Yields its URL."""
    [command] = _TESTED.findall((ROOT / "docs" / "deploy.md").read_text(encoding="utf-8"))
    assert delta_package() in command
    properties = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        **settings,
    }
    options = [part for name, value in properties.items() for part in ("--conf", f"{name}={value}")]
    started = r"Spark Connect server started at: \S*:(\d+)"
    shell = ("bash", "-c", f'exec {command.strip()} "$@"', "connect", *options)
    with server(folder, "connect", *shell, started=started, PYSPARK_PYTHON=sys.executable) as match:
        yield f"sc://127.0.0.1:{match[1]}"
