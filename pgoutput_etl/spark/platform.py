"""Spark that a platform runs, and what it doesn't let a session do: Databricks, on job clusters and serverless.

There a session is made before the job begins and stays when it ends, most settings are the platform's own, and
serverless compute keeps no DataFrame (persist).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.spark.connect import is_connect, send_code

_REFUSED = {"CONFIG_NOT_AVAILABLE", "CANNOT_MODIFY_CONFIG", "CANNOT_MODIFY_STATIC_CONFIG"}

_NOT_THERE = "NOT_SUPPORTED_WITH_SERVERLESS"

# A session has no use for them: storage's credentials, and where Spark is.
_NOT_OF_SESSION = ("spark.hadoop.", "spark.master", "spark.jars")

_TIME_ZONE = "spark.sql.session.timeZone"

# Delta's transaction identifier of what is written in a session: MERGE takes it in no other way.
MARK = "spark.databricks.delta.write.txnAppId"


def is_platform_session() -> bool:
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def active_session(settings: Mapping[str, str]) -> SparkSession:
    """The platform's session, with those of the settings that it takes; a line says which it doesn't.

    Raises ConfigError if its times would be those of another zone.
    """
    spark = SparkSession.builder.getOrCreate()
    left_out = [
        key
        for key, value in sorted(settings.items())
        if key.startswith(_NOT_OF_SESSION) or not is_set(spark, key, value)
    ]
    if left_out:
        logging.getLogger(__name__).warning("this Spark has its own settings for %s: not set", ", ".join(left_out))
    if spark.conf.get(_TIME_ZONE) not in ("UTC", "Etc/UTC"):
        raise ConfigError(f"{_TIME_ZONE} has to be UTC, and this Spark doesn't take it")
    send_code(spark)
    return spark


def is_set(spark: SparkSession, key: str, value: str) -> bool:
    """Sets it, unless this session has no such setting or may not change it."""
    try:
        spark.conf.set(key, value)
    except PySparkException as error:
        if error.getCondition() not in _REFUSED:
            raise
        return False
    return True


def value_of(spark: SparkSession, key: str) -> str | None:
    try:
        return spark.conf.get(key, None)
    except PySparkException as error:
        if error.getCondition() not in _REFUSED:
            raise
        return None


def marks_commits(spark: SparkSession) -> bool:
    """Whether what is written can bear Delta's transaction identifier, by which a commit is known again.

    Tried in a session of its own, where there can be one: several threads ask, and others write meanwhile.
    """
    tried = spark if is_connect(spark) else spark.newSession()
    before = value_of(tried, MARK)
    if not is_set(tried, MARK, before or "pgoutput_etl"):
        return False
    if before is None:
        tried.conf.unset(MARK)
    return True


def persist(frame: DataFrame, level: StorageLevel) -> DataFrame:
    """Computed once, until `unpersist`: persisted, or put down as a checkpoint where nothing is persisted."""
    try:
        return frame.persist(level)
    except PySparkException as error:
        if error.getCondition() != _NOT_THERE:
            raise
        return frame.localCheckpoint()


def unpersist(frame: DataFrame) -> None:
    try:
        frame.unpersist()
    except PySparkException as error:
        if error.getCondition() != _NOT_THERE:
            raise
