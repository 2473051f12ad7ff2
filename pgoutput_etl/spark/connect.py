"""Sessions of a Spark Connect server. Its client has no JVM and can't change the server's own settings."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from warnings import catch_warnings, simplefilter

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.extras import installing
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.packages import write_modules

REMOTE = "spark.remote"

_TIMEOUT = 60  # seconds

# Storage settings are often secret, and have no effect in a session. Spark rejects a master along with a server.
_NOT_SENT = ("spark.hadoop.", "spark.master")


def server_of(settings: Mapping[str, str]) -> str | None:
    """The server's URL: `spark.remote` in the settings, or Spark's environment variable SPARK_REMOTE."""
    return settings.get(REMOTE) or os.environ.get("SPARK_REMOTE") or None


def is_connect(spark: SparkSession) -> bool:
    return "connect" in type(spark).__module__


def frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A DataFrame with an explicit schema, which a Connect client needs for an empty table, and Spark for timestamps
    without a time zone."""
    if table.num_rows:
        # Spark stops at an empty batch, and rejects slices of lists with NULLs. `take` copies such slices.
        batches = [b.take(pa.array(range(b.num_rows))) for b in table.to_batches() if b.num_rows]
        table = pa.Table.from_batches(batches, table.schema)
    return spark.createDataFrame(table, spark_schema(table.schema))


def connect(url: str, app_name: str, settings: Mapping[str, str], required: Iterable[str]) -> SparkSession:
    """A session with these settings, whose workers have this package. required: keys to warn about if the server
    doesn't accept them.

    Raises ConfigError for an invalid URL or if there is no Connect client, and RunError if no server answers.
    """
    _check_server(url)
    builder = SparkSession.builder.appName(app_name).config(REMOTE, url)
    for key, value in settings.items():
        if not key.startswith(_NOT_SENT):
            builder = builder.config(key, value)
    with catch_warnings():
        simplefilter("ignore")  # otherwise, Java prints a page for each setting that can't be set
        spark = builder.getOrCreate()
    import_module("delta.connect")  # turns Delta's conflicts into Delta's exceptions
    # A server only accepts session settings; memory, jars, and storage credentials are fixed when it starts.
    current = spark.conf.getAll
    unset = sorted({key for key in required if key != REMOTE and current.get(key) != settings.get(key)})
    if unset:
        message = "the Spark Connect server has its own settings for %s: not set"
        logging.getLogger(__name__).warning(message, ", ".join(unset))
    send_code(spark)
    return spark


def _check_server(url: str) -> None:
    """Fails early: Spark's client would silently retry for ten minutes."""
    try:
        import grpc
        from pyspark.sql.connect.client import DefaultChannelBuilder

        address = DefaultChannelBuilder(url)
    except ImportError as error:
        raise ConfigError(
            f"a Spark Connect server needs its client: {installing('connect')} ({error.name} is missing)"
        ) from None
    except PySparkException:
        raise ConfigError(f"{REMOTE}: expected sc://HOST:PORT") from None
    with address.toChannel() as channel:
        try:
            grpc.channel_ready_future(channel).result(_TIMEOUT)
        except grpc.FutureTimeoutError:
            raise RunError(f"no Spark Connect server answers at {address.endpoint}") from None


def send_code(spark: SparkSession) -> None:
    """Sends this package to the server's Python workers."""
    with TemporaryDirectory() as folder:
        spark.addArtifacts(str(write_modules(Path(folder))), pyfile=True)
