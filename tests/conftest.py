"""One Spark session per process, started by the first test that uses it, and the order of the tests."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

# A test must not fail because the machine is busy. Soak tests set their own numbers of examples.
settings.register_profile("unhurried", deadline=None, max_examples=30)
settings.load_profile("unhurried")

# For every process that the tests start: the JVM's first compiler tier only, as optimizing code that no test runs for
# long took a third of the time. Its code cache would be 48 MB; when it is full, the JVM becomes slow or a call fails.
# -Xshare is Java's default, but with it a job keeps no classes for the next one: that takes 13 s, and few JVMs of the
# tests would use them. And one cache of compiled kernels, also for copies of this repository.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC -Xshare:auto",
)
ROOT = Path(__file__).parents[1]
os.environ.setdefault("NUMBA_CACHE_DIR", str(ROOT / "build" / "kernels"))

# These need other tools, which `make neighbors` installs.
collect_ignore = [] if "NEIGHBORS" in os.environ else ["neighbors"]

SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "3g",
    "spark.ui.enabled": "false",
    # 200 partitions for a few rows make tests slow, and so does AQE, which plans stages one by one.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    # Compiling expressions that process a few rows took a fifth of the time.
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Without checksum files, each of which starts a process to set its permissions.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # Warnings in the log of a passing test are noise.
    "spark.log.level": "ERROR",
}


READ_AN_ARCHIVE = """
from pgoutput_etl.explore.archive import read_archive

archive = read_archive("tests/data/random16/v4b")
for name in ("acct", "blob_", "ev", "line"):
    archive.rows(f"public.{name}")
"""


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def pytest_configure(config: pytest.Config) -> None:
    """Compiles the kernels of a new clone while two processes collect the tests. Otherwise, they and the Python workers
    of their Sparks would compile the same ones at the same time, for 20 s each."""
    is_main = "PYTEST_XDIST_WORKER" not in os.environ and config.getoption("numprocesses", None)
    if is_main and not Path(os.environ["NUMBA_CACHE_DIR"]).exists():
        compiling = subprocess.Popen([sys.executable, "-c", READ_AN_ARCHIVE], cwd=ROOT)
        config.add_cleanup(partial(end, compiling))


# Python looks for garbage less often: a tenth of the simulation's time.
gc.set_threshold(50_000)


class LastFirst(pytest.Dir):  # type: ignore[misc] # final, but a folder has no other way to choose its order
    def collect(self) -> list[pytest.Item | pytest.Collector]:
        return [*super().collect()][::-1]


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Of two processes, one begins with the last file, so that each compiles half of the files: a third of the time
    that the collection takes in a new clone."""
    is_odd = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579"
    is_plain = not (path / "__init__.py").exists()
    return LastFirst.from_parent(parent, path=path) if is_odd and is_plain else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with Spark, and the simulation, run first: the short ones then fill both processes to the end."""

    def order(item: pytest.Item) -> tuple[bool, bool, Path]:
        return item.get_closest_marker("spark") is None, item.path.parent.name != "simulation", item.path

    items.sort(key=order)


def pytest_collection_finish() -> None:
    """Python does not look for garbage in what the collection of thousands of tests leaves."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadFileScheduling:
    """One process runs all tests of a file, and one all tests of the season, which is built once."""
    from xdist.scheduler import LoadFileScheduling

    class LoadSeasonAndFiles(LoadFileScheduling):  # type: ignore[misc]  # xdist ships no types
        def _split_scope(self, nodeid: str) -> str:
            path = Path(super()._split_scope(nodeid))
            return path.name if path.name == "test_season.py" else str(path)

    return LoadSeasonAndFiles(config, log)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pgoutput_etl.spark.session import start_session

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise the workers run the shell's python3
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = start_session("pgoutput_etl tests", {**SETTINGS, "spark.sql.warehouse.dir": str(warehouse)})
    yield session
    session.stop()


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    folder = tmp_path / "landing"
    folder.mkdir()
    return folder
