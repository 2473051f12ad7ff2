"""The Spark session of a benchmark, and its working folders."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from benchmarks.corpora import BUILD
from pgoutput_etl.spark.session import start_session

WORK = BUILD / "work"


@contextmanager
def session(cores: int = 2, memory: str = "4g", settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A local session, stopped at the end. settings: further ones of Spark."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # for the workers
    chosen = {
        "spark.master": f"local[{cores}]",
        "spark.driver.memory": memory,
        "spark.ui.enabled": "false",
        "spark.log.level": "FATAL",
        "spark.sql.warehouse.dir": str(WORK / "warehouse"),
        **(settings or {}),
    }
    spark = start_session("benchmarks", chosen)
    try:
        yield spark
    finally:
        spark.stop()


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def copied(spark: SparkSession, source: Path, target: Path) -> None:
    """Replaces `target` by a copy of a folder with Delta tables, and drops Spark's cached state of them."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    jvm = spark._jvm
    assert jvm is not None
    jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    spark.catalog.clearCache()


def linked(source: Path, target: Path) -> None:
    """Lands a night's files as hard links, which are quick for 10,000 files and keep modification times."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        os.link(path, target / f"{source.name}-{path.name}")
