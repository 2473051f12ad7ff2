"""The command lines that reports print."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from pgoutput_etl.answers.command_line import job_line
from pgoutput_etl.config.settings import load_config
from pgoutput_etl.landing.selection import without

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


def test_a_command_that_ignores_a_file_ignores_the_configured_ones_too(configuration: str) -> None:
    names = ["/landing/${HOME}.bin", "\N{GRINNING FACE} $${A}, \"x'.bin"]
    config = load_config(configuration, ['source.ignore=["first.bin"]'], {})
    for name in names:
        options = shlex.split(job_line(config, *without(name)))
        overrides = [option for option in options if option.startswith("source.ignore=")]
        config = load_config(configuration, overrides, {})
    assert config.source.ignore == ("first.bin", *names)
