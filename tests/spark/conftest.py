"""Fixtures for tests of the jobs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.jobs import Job, Nights
from tests.support.season import Season, apply_season


@pytest.fixture
def nights(spark: SparkSession, tmp_path: Path, landing: Path) -> Nights:
    return Nights(Job(spark, tmp_path, landing))


@pytest.fixture(scope="session")
def season(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Season:
    """Five nights, applied once. Tests must not change it."""
    folder = tmp_path_factory.mktemp("season")
    landing = folder / "landing"
    landing.mkdir()
    return apply_season(Nights(Job(spark, folder, landing)))
