"""A session of a Spark Connect server: its client has no JVM, and can't set what the server was started with."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from warnings import catch_warnings, simplefilter
from zipfile import ZipFile

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.spark.arrow_types import spark_schema

REMOTE = "spark.remote"

_ANSWERS_WITHIN = 60  # seconds

# Storage's settings are often secret, and without effect in a session; a master beside a server is an error of Spark's.
_NOT_SENT = ("spark.hadoop.", "spark.master")


def server_of(settings: Mapping[str, str]) -> str | None:
    """The server's URL: `spark.remote` of the settings, or Spark's own SPARK_REMOTE in the environment."""
    return settings.get(REMOTE) or os.environ.get("SPARK_REMOTE") or None


def is_connect(spark: SparkSession) -> bool:
    return "connect" in type(spark).__module__


def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """With its schema said: a Connect client takes an empty table only so, and a time without a zone keeps none."""
    return spark.createDataFrame(table, spark_schema(table.schema))


def connect(url: str, app_name: str, settings: Mapping[str, str], asked_for: Iterable[str]) -> SparkSession:
    """A session with these settings, whose workers have this package. `asked_for`: those that are missed if left out.

    Raises ConfigError if the URL is none or this Python has no Connect client, RunError if nothing answers.
    """
    _check_that_it_answers(url)
    builder = SparkSession.builder.appName(app_name).config(REMOTE, url)
    for key, value in settings.items():
        if not key.startswith(_NOT_SENT):
            builder = builder.config(key, value)
    with catch_warnings():
        simplefilter("ignore")  # one for each that can't be set, with a page of Java
        spark = builder.getOrCreate()
    import_module("delta.connect")  # after it, Delta's conflicts arrive as Delta's exceptions
    _say_what_is_left_out(spark, settings, asked_for)
    send_code(spark)
    return spark


def _check_that_it_answers(url: str) -> None:
    """Spark's client would go on trying for ten minutes, and not say so."""
    try:
        import grpc
        from pyspark.sql.connect.client import DefaultChannelBuilder

        address = DefaultChannelBuilder(url)
    except ImportError as error:
        said = f"a Spark Connect server needs its client: pip install 'pgoutput-etl[connect]' ({error.name} is missing)"
        raise ConfigError(said) from None
    except PySparkException:
        raise ConfigError(f"{REMOTE}: expected sc://HOST:PORT") from None
    with address.toChannel() as channel:
        try:
            grpc.channel_ready_future(channel).result(_ANSWERS_WITHIN)
        except grpc.FutureTimeoutError:
            raise RunError(f"no Spark Connect server answers at {address.endpoint}") from None


def _say_what_is_left_out(spark: SparkSession, settings: Mapping[str, str], asked_for: Iterable[str]) -> None:
    """A server takes what belongs to a session. The rest (memory, jars, storage's credentials) it was started with."""
    there = spark.conf.getAll
    left_out = [key for key in asked_for if key != REMOTE and there.get(key) != settings.get(key)]
    if left_out:
        names = ", ".join(sorted(left_out))
        logging.getLogger(__name__).warning("the Spark Connect server has its own settings for %s: not set", names)


def send_code(spark: SparkSession) -> None:
    """The server's Python workers run functions of this package, which they know by name only."""
    package = Path(__file__).parents[1]
    with TemporaryDirectory() as folder:
        archive = Path(folder) / "pgoutput_etl.zip"
        with ZipFile(archive, "w") as sent:
            for path in sorted(package.rglob("*.py")):
                sent.write(path, path.relative_to(package.parent))
        spark.addArtifacts(str(archive), pyfile=True)
