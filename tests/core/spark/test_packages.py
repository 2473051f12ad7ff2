"""The packages that Spark downloads, and the folder that keeps them."""

from __future__ import annotations

import pwd
from dataclasses import dataclass
from pathlib import Path

import pytest

from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.spark.packages import DELTA_VERSION, check_cache, with_delta

DRIVER = "org.postgresql:postgresql:42.7.7"
DELTA = f"io.delta:delta-spark_4.1_2.13:{DELTA_VERSION}"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of Spark 4.1."""
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.1.2-preview.jar").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("settings", "packages"),
    [
        ({}, DELTA),
        ({"spark.jars.packages": DRIVER}, f"{DRIVER},{DELTA}"),
        ({"spark.jars": "/jars/postgresql.jar"}, DELTA),
        ({"spark.jars": "/jars/delta-spark_4.2_2.13-4.4.0.jar"}, None),
        ({"spark.jars.packages": f"{DELTA},{DRIVER}"}, f"{DELTA},{DRIVER}"),
    ],
)
def test_configured_packages_and_jars_are_kept_beside_delta(
    home: Path, settings: dict[str, str], packages: str | None
) -> None:
    assert with_delta(settings, str(home)).get("spark.jars.packages") == packages


def test_a_spark_that_has_delta_downloads_nothing(home: Path) -> None:
    (home / "jars" / "delta-spark_4.1_2.13-4.4.0.jar").touch()
    assert with_delta({}, str(home)) == {}


def test_a_folder_without_spark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"no Spark in {tmp_path}: set SPARK_HOME"):
        with_delta({}, str(tmp_path))


@dataclass(frozen=True, slots=True)
class User:
    pw_dir: str


def test_a_home_that_can_not_keep_packages_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pwd, "getpwuid", lambda _: User("/proc/none"))
    packages = {"spark.jars.packages": "a:b:1"}
    with pytest.raises(RunError, match=r"this user's home, /proc/none/.ivy2.5.2: name a folder with --conf spark.jars"):
        check_cache(packages, "")
    check_cache({}, "")
    check_cache({**packages, "spark.jars.ivy": "/tmp"}, "")
    check_cache(packages, "-Duser.home=/tmp")
