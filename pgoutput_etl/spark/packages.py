"""The packages that Spark downloads, including the matching Delta Lake, and this package as a ZIP file for its workers.

Doesn't import pyspark: see options.py.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from zipfile import ZipFile

from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.spark.options import EXCLUDES, JARS, PACKAGES, joined

DELTA_VERSION = "4.4.0"  # the newest release for each supported Spark

SPARKS = ("4.0", "4.1", "4.2")

# Delta's dependencies that every Spark already has; Spark would send 70 MB of them to the executors.
_IN_SPARK = (
    "com.fasterxml.jackson.core:*,com.github.luben:zstd-jni,com.google.code.findbugs:jsr305,"
    "commons-logging:commons-logging,commons-pool:commons-pool,io.airlift:aircompressor,"
    "javax.annotation:javax.annotation-api,org.apache.hadoop:hadoop-client-api,org.apache.hadoop:hadoop-client-runtime,"
    "org.apache.logging.log4j:*,org.apache.parquet:*,org.locationtech.jts:*,org.roaringbitmap:*,org.slf4j:*,"
    "org.xerial.snappy:*"
)

_CORE = re.compile(r"spark-core_([\d.]+)-(\d+\.\d+).*\.jar")


def delta_package(home: str) -> str:
    """The Maven coordinates of the Delta release for the Spark in `home`. Raises ConfigError if there is none."""
    found = next(filter(None, map(_CORE.fullmatch, _jars(home))), None)
    if found is None:
        raise ConfigError(f"no Spark in {home}: set SPARK_HOME, or install pyspark")
    scala, spark = found.groups()
    if spark not in SPARKS:
        raise ConfigError(
            f"Spark {spark} in {home}: expected {', '.join(SPARKS)}, or a Delta Lake for it, with --packages"
        )
    return f"io.delta:delta-spark_{spark}_{scala}:{DELTA_VERSION}"


def with_delta(settings: Mapping[str, str], home: str) -> dict[str, str]:
    """The settings, with Delta added to the packages unless they, the jars, or Spark's own jars include it. home:
    Spark's.

    Raises ConfigError like `delta_package`."""
    present = [settings.get(PACKAGES, ""), settings.get(JARS, ""), *_jars(home)]
    if any("delta-spark" in text for text in present):
        return dict(settings)
    return {
        **settings,
        PACKAGES: joined(settings.get(PACKAGES, ""), delta_package(home)),
        EXCLUDES: joined(settings.get(EXCLUDES, ""), _IN_SPARK),
    }


def _jars(home: str) -> list[str]:
    return [path.name for path in Path(home, "jars").glob("*.jar")]


def check_cache(settings: Mapping[str, str], java_options: str) -> None:
    """Raises RunError if Ivy, which downloads packages, can't write them and its locks below Java's home folder.
    java_options: all options of the JVM."""
    if not settings.get(PACKAGES) or "spark.jars.ivy" in settings or "-Duser.home=" in java_options:
        return
    try:
        home = pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        home = os.environ.get("HOME", ".")
    folder = Path(home, ".ivy2.5.2")
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise RunError(
            f"Java can't keep packages in this user's home, {folder}: name a folder with --conf spark.jars.ivy=FOLDER"
        )


def write_modules(folder: Path) -> Path:
    """Writes this package as a ZIP file for Spark's Python workers, which import its functions by name."""
    package, archive = Path(__file__).parents[1], folder / "pgoutput_etl.zip"
    with ZipFile(archive, "w") as modules:
        for path in sorted(package.rglob("*.py")):
            modules.write(path, path.relative_to(package.parent))
    return archive
