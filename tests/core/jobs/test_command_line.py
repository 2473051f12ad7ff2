"""The command lines that reports print."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pgoutput_etl.config.settings import load_config
from pgoutput_etl.jobs.command_line import job_line

MINIMAL = "source: {name: shop, landing: ./landing}\ntarget: {root: ./warehouse}\n"


@pytest.fixture
def configuration(tmp_path: Path) -> str:
    path = tmp_path / "my shop.yaml"
    path.write_text(MINIMAL, encoding="utf-8")
    return str(path)


def test_an_installed_command(configuration: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/pgoutput-etl", "apply"])
    config = load_config(configuration, ["target.root=/data", "spark.spark.hadoop.fs.s3a.secret.key=hidden"])
    line = job_line(config, "backfill", "--tables", "public.*")
    assert line == f"pgoutput-etl backfill --config '{configuration}' --set target.root=/data --tables 'public.*'"


def test_in_a_clone(configuration: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert job_line(load_config(configuration), "apply").startswith("./spark-submit.sh jobs/apply.py --config ")


def test_a_job_without_spark_in_a_clone(configuration: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(sys, "argv", ["jobs/status.py"])
    assert job_line(load_config(configuration), "apply").startswith("./spark-submit.sh jobs/apply.py --config ")
