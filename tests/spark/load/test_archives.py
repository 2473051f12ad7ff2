"""Real archives, applied by the job: every table then equals the server's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.captures import CAPTURES, files_of, truth_tables
from tests.support.jobs import Job

# tests/archives replays every slot and framing without Spark; `make test` applies one in tests/spark/jobs/test_init.py.
SLOTS = ["pg10/v1", "pg14/v1", "pg14/v1_binary", "pg14/v2_stream", "pg16/v1", "pg16/v1_binary", "pg16/v2_stream"]
SLOTS += ["pg16/v3_twophase", "pg16/v3_twophase_only", "pg16/v4_parallel", "pg16/v4_twophase_parallel_binary"]
FILES = ["pg10/recv.bin", "pg14/recv.bin", "pg16/recv.bin"]
FILES += ["pg10/sqlbin.pgcopy.gz", "pg14/sqlbin.pgcopy.gz", "pg16/sqlbin.pgcopy.gz"]
RANDOM = ["random16/v1", "random16/v2", "random16/v3", "random16/v4b"]

pytestmark = [pytest.mark.spark, pytest.mark.soak]


def _land(files: list[Path], landing: Path) -> None:
    for file in files:
        shutil.copy(file, landing)


@pytest.mark.parametrize("slot", SLOTS)
def test_two_nights(slot: str, spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    server = slot.split("/", maxsplit=1)[0]
    first, second = files_of(CAPTURES / slot)
    job = Job(spark, tmp_path, landing)
    _land([first], landing)
    job.run()
    job.assert_equals(truth_tables(CAPTURES / server / "truth_mid"), server)
    _land([second], landing)
    summary = job.run()
    job.assert_equals(truth_tables(CAPTURES / server / "truth"), server)
    assert [table.table for table in summary.tables if table.held] == []
    versions = job.versions()
    job.run()
    assert job.versions() == versions


@pytest.mark.parametrize("file", FILES)
def test_one_file(file: str, spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    server = file.split("/", maxsplit=1)[0]
    job = Job(spark, tmp_path, landing)
    _land([path for path in (CAPTURES / file, CAPTURES / f"{file}.gz") if path.exists()], landing)
    job.run()
    job.assert_equals(truth_tables(CAPTURES / server / "truth"), server)


@pytest.mark.parametrize("slot", RANDOM)
def test_random_history_in_one_run(slot: str, spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    job = Job(spark, tmp_path, landing)
    _land(files_of(CAPTURES / slot), landing)
    summary = job.run()
    job.assert_equals(truth_tables(CAPTURES / "random16" / "truth"), "random16")
    assert [table.table for table in summary.tables if table.held] == []
    versions = job.versions()
    job.run()
    assert job.versions() == versions


@pytest.mark.parametrize("slot", RANDOM)
def test_random_history_file_by_file(slot: str, spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    job = Job(spark, tmp_path, landing)
    for file in files_of(CAPTURES / slot):
        _land([file], landing)
        job.run()
    job.assert_equals(truth_tables(CAPTURES / "random16" / "truth"), "random16")
