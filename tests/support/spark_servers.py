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
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from pgoutput_etl.spark.packages import delta_package
from tests.conftest import SETTINGS

ROOT = Path(__file__).parents[2]
_TESTED = re.compile(r"<!-- tested -->\n```sh\n(.*?)```\n", re.DOTALL)
_STARTED_WITHIN = 180  # seconds, in which jars may have to be downloaded
_STOPPED_WITHIN = 20
_SMALL = {"SPARK_DAEMON_MEMORY": "256m"}

# The tests' settings that apply to a session on any Spark.
LIGHT = {name: value for name, value in SETTINGS.items() if name.startswith(("spark.sql.", "spark.databricks."))}

# Of an application on a `standalone_cluster`.
SMALL_APPLICATION = {
    "spark.driver.memory": "1g",
    "spark.executor.memory": "700m",
    "spark.ui.enabled": "false",
}


def conf_options(settings: Mapping[str, str]) -> list[str]:
    """Settings as options of Spark's scripts."""
    return [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]


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
    with _running(folder, name, *command, started=started, **variables) as (_, match):
        yield match


@contextmanager
def _running(
    folder: Path, name: str, *command: str | Path, started: str, **variables: str
) -> Iterator[tuple[subprocess.Popen[bytes], re.Match[str]]]:
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
            yield process, _wait_for(process, log, started)
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


@dataclass(slots=True)
class Cluster:
    """A master and workers with one core each. url: of the master. workers: their processes by name. Executors work
    below `folder/<worker>`."""

    folder: Path
    url: str
    running: ExitStack
    memory: str = "1g"
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    started: int = 0

    def start_worker(self) -> None:
        name = f"worker{self.started}"
        self.started += 1
        options = ("--cores", "1", "--memory", self.memory, "--work-dir", str(self.folder / name))
        worker = (*_started_by("org.apache.spark.deploy.worker.Worker"), *options, self.url)
        variables = {**_SMALL, "SPARK_LOCAL_DIRS": str(self.folder / f"{name}.local")}
        begun = "Successfully registered with master"
        process, _ = self.running.enter_context(_running(self.folder, name, *worker, started=begun, **variables))
        self.workers[name] = process

    def kill_worker(self, name: str) -> None:
        """Kills the worker and everything that it started, as if its machine were gone."""
        process = self.workers.pop(name)
        kill_tree(process.pid)
        process.wait()


def kill_tree(pid: int) -> None:
    """Kills a process and everything below it. Stops parents first, so that they start nothing more."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    for child in children_of(pid):
        kill_tree(child)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


def _started_by(server_class: str) -> tuple[str | Path, ...]:
    spark_class = spark_home() / "bin" / "spark-class"
    return (spark_class, server_class, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")


@contextmanager
def standalone_cluster(folder: Path, workers: int, memory: str = "1g") -> Iterator[Cluster]:
    """memory: of each worker."""
    with ExitStack() as running:
        master = _started_by("org.apache.spark.deploy.master.Master")
        started = r"Starting Spark master at (spark://\S+)"
        url = running.enter_context(server(folder, "master", *master, started=started, **_SMALL))[1]
        cluster = Cluster(folder, url, running, memory)
        for _ in range(workers):
            cluster.start_worker()
        yield cluster


@contextmanager
def connect_server(folder: Path, settings: Mapping[str, str]) -> Iterator[str]:
    """A Spark Connect server with Delta, started by the command in docs/deploy.md. Yields its URL."""
    [command] = _TESTED.findall((ROOT / "docs" / "deploy.md").read_text(encoding="utf-8"))
    assert delta_package(_find_spark_home()) in command
    properties = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        **settings,
    }
    started = r"Spark Connect server started at: \S*:(\d+)"
    shell = ("bash", "-c", f'exec {command.strip()} "$@"', "connect", *conf_options(properties))
    with server(folder, "connect", *shell, started=started, PYSPARK_PYTHON=sys.executable) as match:
        yield f"sc://127.0.0.1:{match[1]}"
