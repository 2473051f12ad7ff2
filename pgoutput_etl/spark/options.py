"""Spark's options on a job's command line, passed on in pyspark's own environment variable, PYSPARK_SUBMIT_ARGS.

Doesn't import pyspark: spark-submit.sh sorts its arguments before it has chosen a Python.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

_VARIABLE = "PYSPARK_SUBMIT_ARGS"

_PROGRAM = "pyspark-shell"  # the variable's last word

_SETTING = ("--conf", "-c")

_FILE = "--properties-file"

PACKAGES, EXCLUDES, JARS, MODULES = "spark.jars.packages", "spark.jars.excludes", "spark.jars", "spark.submit.pyFiles"

# Options with a value, and the settings that they stand for (org.apache.spark.deploy.SparkSubmitArguments).
_SETTING_OF = {
    "--archives": "spark.archives",
    "--deploy-mode": "spark.submit.deployMode",
    "--driver-class-path": "spark.driver.extraClassPath",
    "--driver-cores": "spark.driver.cores",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--driver-library-path": "spark.driver.extraLibraryPath",
    "--driver-memory": "spark.driver.memory",
    "--exclude-packages": EXCLUDES,
    "--executor-cores": "spark.executor.cores",
    "--executor-memory": "spark.executor.memory",
    "--files": "spark.files",
    "--jars": JARS,
    "--keytab": "spark.kerberos.keytab",
    "--master": "spark.master",
    "--name": "spark.app.name",
    "--num-executors": "spark.executor.instances",
    "--packages": PACKAGES,
    "--principal": "spark.kerberos.principal",
    "--py-files": MODULES,
    "--queue": "spark.yarn.queue",
    "--remote": "spark.remote",
    "--repositories": "spark.jars.repositories",
    "--total-executor-cores": "spark.cores.max",
}

_WITHOUT_SETTING = (_FILE, "--proxy-user", "--class")

_COLLECTED = (PACKAGES, EXCLUDES, MODULES)  # each option adds to the list

# A line of spark-defaults.conf: the subset of Java's properties format that Spark's settings need.
_LINE = re.compile(r"\s*([^\s=:#!]+)(?:\s*[=:]\s*|\s+)(.*?)\s*")


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separates Spark's options, each followed by its value, from the other arguments, which include all from `--` on.

    Raises ValueError for an option without its value.
    """
    spark: list[str] = []
    others: list[str] = []
    words = iter(arguments)
    for word in words:
        option, equals, value = word.partition("=")
        if word == "--":
            others += [word, *words]
        elif option in _SETTING or option in _SETTING_OF or option in _WITHOUT_SETTING:
            given = value if equals else next(words, None)
            if given is None:
                raise ValueError(f"{option} needs a value")
            spark += [option, given]
        else:
            others.append(word)
    return spark, others


def keep(options: Sequence[str]) -> None:
    """Adds the options to those of this process and its children."""
    if options:
        os.environ[_VARIABLE] = shlex.join([*_words(), *options, _PROGRAM])


def settings_of(options: Sequence[str]) -> dict[str, str]:
    """The settings that these options, from `split`, stand for."""
    settings: dict[str, str] = {}
    for option, value in _pairs(options):
        key, text = value.partition("=")[::2] if option in _SETTING else (_SETTING_OF.get(option, ""), value)
        if key in _COLLECTED:
            text = joined(settings.get(key, ""), text)
        if key:
            settings[key] = text
    return settings


def joined(*lists: str) -> str:
    """Joins comma-separated lists, as Spark uses them."""
    return ",".join(item for text in lists for item in text.split(",") if item)


def submitted(home: str | None = None) -> dict[str, str]:
    """The settings from this process's options and from Spark's defaults file. home: Spark's, if known."""
    return {**of_file(home), **of_process()}


def of_process() -> dict[str, str]:
    """The settings from this process's options."""
    return settings_of(split(_words())[0])


def of_file(home: str | None = None) -> dict[str, str]:
    """The settings that Spark itself reads from its defaults file."""
    options, _ = split(_words())
    folder = os.environ.get("SPARK_CONF_DIR") or (home and Path(home, "conf"))
    file = dict(_pairs(options)).get(_FILE) or (folder and Path(folder, "spark-defaults.conf"))
    lines = Path(file).read_text(encoding="utf-8").splitlines() if file and Path(file).is_file() else []
    return {match[1]: match[2] for match in map(_LINE.fullmatch, lines) if match is not None}


def is_local(settings: Mapping[str, str]) -> bool:
    """True if Spark's master runs in a JVM on this machine, which is the default."""
    return settings.get("spark.master", "local").startswith("local")


def submitting(settings: Mapping[str, str]) -> dict[str, str]:
    """The environment variable for a JVM with these settings, which override this process's options."""
    options, flags = split(_words())
    others = [word for pair in _pairs(options) if pair[0] in _WITHOUT_SETTING for word in pair]
    confs = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    return {_VARIABLE: shlex.join([*flags, *others, *confs, _PROGRAM])}


def _pairs(options: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(options[::2], options[1::2], strict=True))


def _words() -> list[str]:
    return [word for word in shlex.split(os.environ.get(_VARIABLE, "")) if word != _PROGRAM]
