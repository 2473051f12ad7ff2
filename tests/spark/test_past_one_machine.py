"""The nightly job where Spark is more than one process: the tables are the same."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.captures import CAPTURES, files_of, truth_tables
from tests.conftest import SETTINGS
from tests.spark.jobs import Job
from tests.spark.spark_servers import JAVA_OPTIONS, environment, standalone_cluster

ROOT = Path(__file__).parents[2]
SLOT, TRUTH = CAPTURES / "random16" / "v4b", CAPTURES / "random16" / "truth"
# Few tasks, lightly compiled: the settings of the other tests' session that are no matter of where Spark runs.
LIGHT = {name: value for name, value in SETTINGS.items() if name.startswith(("spark.sql.", "spark.databricks."))}

pytestmark = pytest.mark.spark


def _run(*command: str | Path, **variables: str) -> dict[str, Any]:
    """The job's summary."""
    done = subprocess.run(command, cwd=ROOT, env=environment(**variables), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    return summary


def _options(settings: Mapping[str, str]) -> list[str]:
    return [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]


def test_a_standalone_cluster(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    job = Job(spark, tmp_path, landing)
    job.write_config()
    files = files_of(SLOT)
    with standalone_cluster(tmp_path, workers=2) as master:
        settings = {
            **LIGHT,
            "spark.executor.memory": "700m",
            "spark.executor.extraJavaOptions": JAVA_OPTIONS,
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.pyspark.python": sys.executable,
            "spark.ui.enabled": "false",
        }
        submit = (ROOT / "spark-submit.sh", "--master", master, "--driver-memory", "1g", *_options(settings))
        nights = []
        for night in (files[:5], files[5:]):
            for file in night:
                shutil.copy(file, landing)
            nights.append(_run(*submit, "jobs/apply.py", "--config", job.config, "--json", "--quiet"))

    assert [summary["files"] for summary in nights] == [5, 5]
    job.assert_equals(truth_tables(TRUTH), "random16")
    for worker in ("worker0", "worker1"):
        executors = [path.parent for path in (tmp_path / worker).glob("app-*/*/stderr")]
        assert len(executors) == len(nights), "an executor on each worker in each night"
        for executor in executors:
            assert "Finished task" in (executor / "stderr").read_text()
            assert (executor / "pgoutput_etl.zip").exists(), "the code came with the job"
