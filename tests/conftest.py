"""One Spark session per test run, started by the first test that asks for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A machine that is busy is no failure.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "3g",
    # Compiled once and lightly: a third of the time went into optimising code that no test runs for long.
    # Room for that: of itself the JVM then has 48 MB, and runs out of it, which makes it slow, or a call fail.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
    # A table of a few rows in 200 partitions is what makes Spark tests slow; so is AQE planning its stages one by one.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    # A fifth of the time went into compiling expressions that see a few rows.
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Checksum files beside every file, each with a process for its permissions.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",
    # The log lines of a passing test are nobody's business.
    "spark.log.level": "ERROR",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from pgoutput_etl.spark.session import start_session

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else the workers run whatever python3 the shell finds
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = start_session("pgoutput_etl tests", {**SETTINGS, "spark.sql.warehouse.dir": str(warehouse)})
    yield session
    session.stop()


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    folder = tmp_path / "landing"
    folder.mkdir()
    return folder
