"""Sessions of a platform that runs Spark itself: Databricks, on job clusters and serverless.

The platform creates the session before the job and keeps it afterwards, controls most settings, and on serverless
compute doesn't support DataFrame.persist.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.spark.connect import is_connect, send_code
from pgoutput_etl.spark.java import hadoop_path, java_class

_REFUSED = {"CONFIG_NOT_AVAILABLE", "CANNOT_MODIFY_CONFIG", "CANNOT_MODIFY_STATIC_CONFIG"}

_SERVERLESS = {"NOT_SUPPORTED_WITH_SERVERLESS"}

# Not session settings: storage credentials, the master, and jars.
_NOT_SESSION = ("spark.hadoop.", "spark.master", "spark.jars")

_TIME_ZONE = "spark.sql.session.timeZone"

SUBSTITUTE = "spark.sql.variable.substitute"

_VARIABLE = "${" + _TIME_ZONE + "}"

# The transaction identifier of a session's writes; the only way to give one to MERGE.
TRANSACTION_APPLICATION = "spark.databricks.delta.write.txnAppId"


@dataclass(frozen=True, slots=True)
class SuppressConditions:
    """A context manager that suppresses Spark errors with one of these conditions."""

    conditions: Collection[str]

    def __enter__(self) -> None:
        pass

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> bool:
        return isinstance(error, PySparkException) and error.getCondition() in self.conditions


def is_platform_session() -> bool:
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def local_path(spark: SparkSession, path: str) -> str | None:
    """The path on this machine that Spark would use, for other libraries to read and write. None if it is elsewhere, or
    if Delta commits in a special way there."""
    if is_connect(spark) or is_platform_session():
        return None
    if any(spark.conf.get(key, None) for key in ("spark.delta.logStore.file.impl", "spark.delta.logStore.class")):
        return None
    given = hadoop_path(spark, path)
    files = given.getFileSystem(cast(Any, spark)._jsparkSession.sessionState().newHadoopConf())
    # Relative to Spark's own working directory; a percent sign is literal: /a%20b is not /a b.
    return str(files.makeQualified(given).toUri().getPath()) if files.getUri().getScheme() == "file" else None


def local_matches(spark: SparkSession, pattern: str) -> list[str]:
    """The local folders and files that match a Hadoop glob."""
    given = hadoop_path(spark, pattern)
    files = given.getFileSystem(cast(Any, spark)._jsparkSession.sessionState().newHadoopConf())
    return [str(status.getPath().toUri().getPath()) for status in files.globStatus(given) or ()]


def active_session(settings: Mapping[str, str]) -> SparkSession:
    """The platform's session with the settings that it accepts; logs a warning about the others.

    Raises ConfigError if the session's time zone is not UTC.
    """
    spark = SparkSession.builder.getOrCreate()
    items = sorted(settings.items())
    unset = [key for key, value in items if key.startswith(_NOT_SESSION) or not is_set(spark, key, value)]
    if unset:
        logging.getLogger(__name__).warning("this Spark has its own settings for %s: not set", ", ".join(unset))
    if spark.conf.get(_TIME_ZONE) not in ("UTC", "Etc/UTC"):
        raise ConfigError(f"{_TIME_ZONE} must be UTC, but this Spark doesn't accept it")
    send_code(spark)
    return spark


def is_set(spark: SparkSession, key: str, value: str) -> bool:
    """Sets a setting. Returns False if the session doesn't have it or may not change it."""
    with SuppressConditions(_REFUSED):
        spark.conf.set(key, value)
        return True
    return False


def value_of(spark: SparkSession, key: str) -> str | None:
    with SuppressConditions(_REFUSED):
        return spark.conf.get(key, None)
    return None


def read_sql_as_it_stands(spark: SparkSession) -> None:
    """Turns off variable substitution in a session's SQL. With it, Spark would replace ${env:NAME} by the environment
    variable even within a quoted column name, and names come from the archive.

    Raises ConfigError if the session refuses, unless it substitutes nothing.
    """
    if value_of(spark, SUBSTITUTE) == "false" or is_set(spark, SUBSTITUTE, "false"):
        return
    if spark.sql(f"SELECT 1 AS `{_VARIABLE}`").columns != [_VARIABLE]:
        raise ConfigError(
            f"{SUBSTITUTE} must be false, but this Spark doesn't accept it: it would replace ${{…}} in the names of "
            "columns"
        )


def check_digits(spark: SparkSession) -> None:
    """Raises ConfigError if Java's locale uses digits of another script: Delta would write them into the names of its
    log files, where other programs wouldn't find them. A platform's own Java is trusted."""
    if is_platform_session():
        return
    if is_connect(spark):
        [row] = spark.sql("SELECT java_method('java.time.format.DecimalStyle', 'ofDefaultLocale')").collect()
        zero = str(row[0]).partition("[")[2][:1]  # DecimalStyle[0+-.]
    else:
        zero = java_class(spark, "java.time.format.DecimalStyle").ofDefaultLocale().getZeroDigit()
    if zero != "0":
        raise ConfigError(
            "the language of Spark's Java has other digits than 0 to 9, and Delta would use them in names of files: "
            "start Spark with -Duser.language=en -Duser.country=US in spark.driver.extraJavaOptions"
        )


def marks_commits(spark: SparkSession) -> bool:
    """True if the session can give its commits Delta's transaction identifier, which makes them recognizable.

    Tries it in a new session if possible, because several threads call this while others write.
    """
    session = spark if is_connect(spark) else spark.newSession()
    before = value_of(session, TRANSACTION_APPLICATION)
    if not is_set(session, TRANSACTION_APPLICATION, before or "pgoutput_etl"):
        return False
    if before is None:
        session.conf.unset(TRANSACTION_APPLICATION)
    return True


def persist(frame: DataFrame, level: StorageLevel) -> DataFrame:
    """Computes the DataFrame once, until `unpersist`: persists it or, on serverless compute, makes a local
    checkpoint."""
    with SuppressConditions(_SERVERLESS):
        return frame.persist(level)
    return frame.localCheckpoint()


def unpersist(frame: DataFrame) -> None:
    with SuppressConditions(_SERVERLESS):
        frame.unpersist()
