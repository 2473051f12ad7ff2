"""Spark's options on a command line, in pyspark's environment variable, and in Spark's file of defaults."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from pgoutput_etl.spark.options import is_local, keep, settings_of, split, submitted, submitting

VARIABLE = "PYSPARK_SUBMIT_ARGS"


def test_options_stand_anywhere_before_two_dashes() -> None:
    arguments = ["--master", "local[2]", "a", "--json", "--conf=k=v=w", "-c", "l=m", "--", "--name", "b"]
    options, others = split(arguments)
    assert others == ["a", "--json", "--", "--name", "b"]
    assert settings_of(options) == {"spark.master": "local[2]", "k": "v=w", "l": "m"}


@pytest.mark.parametrize("option", ["--master", "--conf", "--properties-file"])
def test_an_option_needs_its_value(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} needs a value"):
        split(["a", option])


def test_packages_are_collected_and_other_settings_replaced() -> None:
    options, _ = split(["--packages", "a,b", "--conf", "spark.jars.packages=c", "--master=x", "--master=y"])
    assert settings_of(options) == {"spark.jars.packages": "a,b,c", "spark.master": "y"}


def test_options_join_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "--driver-memory 2g --verbose pyspark-shell")
    keep(["--conf", "spark.a=b c", "--proxy-user", "d"])
    assert submitted() == {"spark.driver.memory": "2g", "spark.a": "b c"}
    words = shlex.split(submitting({**submitted(), "spark.driver.memory": "3g"})[VARIABLE])
    assert words[:3] == ["--verbose", "--proxy-user", "d"]
    assert words[3:] == ["--conf", "spark.driver.memory=3g", "--conf", "spark.a=b c", "pyspark-shell"]


def test_the_file_of_defaults_is_read_as_spark_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    (tmp_path / "conf").mkdir()
    lines = ["# spark.a 1", "! spark.b 1", "", "  spark.c   1 2  ", "spark.d=3", "spark.e : 4", "spark.f\t5"]
    (tmp_path / "conf" / "spark-defaults.conf").write_text("\n".join(lines))
    expected = {"spark.c": "1 2", "spark.d": "3", "spark.e": "4", "spark.f": "5"}
    assert submitted(str(tmp_path)) == expected
    assert submitted() == {}

    own = tmp_path / "own.conf"
    own.write_text("spark.c 6\n")
    keep(["--properties-file", str(own), "--conf", "spark.g=7"])
    assert submitted(str(tmp_path)) == {"spark.c": "6", "spark.g": "7"}


def test_a_master_is_local_by_default_and_with_any_number_of_cores() -> None:
    masters = ("local", "local[2]", "", "yarn", "spark://h:7077")
    assert [is_local({"spark.master": master}) for master in masters] == [True, True, False, False, False]
    assert is_local({})
