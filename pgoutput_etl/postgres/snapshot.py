"""A snapshot of a server that holds at an LSN: CREATE_REPLICATION_SLOT exports it. The slot goes with its session.

The slot's consistent point is where decoding would begin: what was committed before it is in the snapshot, what is
committed from there on is not. That is what a commit LSN is compared with. No time that a client asks for the WAL's end
would do: a commit is in the WAL before others see it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import uuid4

from pyspark.sql import SparkSession

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.lsn import parse_lsn
from pgoutput_etl.postgres.jdbc import DRIVER
from pgoutput_etl.spark.connect import is_connect

# What a replication connection understands: no version asked for, no prepared statements.
_SESSION = {
    "replication": "database",
    "assumeMinServerVersion": "9.4",
    "preferQueryMode": "simple",
    "tcpKeepAlive": "true",
}

_NAME = re.compile(r"[0-9A-Fa-f]+(-[0-9A-Fa-f]+)+")


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """name: for SET TRANSACTION SNAPSHOT."""

    name: str
    lsn: int


def given_snapshot(name: str, lsn: int) -> ExportedSnapshot:
    """Raises ConfigError for a name that no server gives."""
    if _NAME.fullmatch(name) is None:
        raise ConfigError("--snapshot: expected the name that the server gave, as in 00000003-00000017-1")
    return ExportedSnapshot(name, lsn)


@contextmanager
def export_snapshot(
    spark: SparkSession, url: str, login: Mapping[str, str], progress: Callable[[str], None]
) -> Iterator[ExportedSnapshot]:
    """Holds for as long as the context. Waits for the transactions that are at work on the server as it begins."""
    if is_connect(spark):
        raise ConfigError(
            "--jdbc over Spark Connect: a client has no JDBC of its own. Have the snapshot exported by psql, as "
            "docs/snapshot.md says, and name it: --snapshot and --lsn"
        )
    jvm = spark._jvm
    assert jvm is not None
    jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry.register(DRIVER)
    properties = jvm.java.util.Properties()
    for key, value in {**_SESSION, **login}.items():
        properties.setProperty(key, value)
    progress("making a temporary replication slot, which waits for the transactions that are at work")
    connection = jvm.java.sql.DriverManager.getConnection(url, properties)
    try:
        name = f"pgoutput_etl_snapshot_{uuid4().hex[:16]}"
        command = f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
        found = connection.createStatement().executeQuery(command)
        found.next()
        yield ExportedSnapshot(found.getString("snapshot_name"), parse_lsn(found.getString("consistent_point")))
    finally:
        connection.close()
