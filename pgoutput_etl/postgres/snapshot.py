"""Exports a server's snapshot at a known LSN with CREATE_REPLICATION_SLOT. The slot is dropped with its session.

Decoding would begin at the slot's consistent point: the snapshot has the transactions that committed before it and none
that commits later. So commit LSNs are compared with this point. The end of the WAL can't take its place, because a
commit is in the WAL before it is visible to others.
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
from pgoutput_etl.postgres.connection import guarded
from pgoutput_etl.postgres.jdbc import DRIVER
from pgoutput_etl.spark.connect import is_connect

# A replication connection supports neither version queries nor prepared statements.
_SESSION = {
    "replication": "database",
    "assumeMinServerVersion": "9.4",
    "preferQueryMode": "simple",
    "tcpKeepAlive": "true",
}

_NAME = re.compile(r"[0-9A-Fa-f]+(-[0-9A-Fa-f]+)+")


@dataclass(frozen=True, slots=True)
class ExportedSnapshot:
    """name: the name to pass to SET TRANSACTION SNAPSHOT."""

    name: str
    lsn: int


def given_snapshot(name: str, lsn: int) -> ExportedSnapshot:
    """Raises ConfigError for a name that no server would give."""
    if _NAME.fullmatch(name) is None:
        raise ConfigError("--snapshot: expected the snapshot's name from the server, such as 00000003-00000017-1")
    return ExportedSnapshot(name, lsn)


@contextmanager
def export_snapshot(
    spark: SparkSession, url: str, login: Mapping[str, str], progress: Callable[[str], None]
) -> Iterator[ExportedSnapshot]:
    """The snapshot is valid within the context. Waits for the transactions that are running on the server."""
    if is_connect(spark):
        raise ConfigError(
            "--jdbc over Spark Connect: a client has no JDBC of its own. Export a snapshot with psql, as in "
            "docs/snapshot.md, and pass --snapshot and --lsn"
        )
    jvm = spark._jvm
    assert jvm is not None
    jvm.org.apache.spark.sql.execution.datasources.jdbc.DriverRegistry.register(DRIVER)
    properties = jvm.java.util.Properties()
    for key, value in {**_SESSION, **login}.items():
        properties.setProperty(key, value)
    progress("creating a temporary replication slot, which waits for running transactions")
    connection = jvm.java.sql.DriverManager.getConnection(guarded(url), properties)
    try:
        name = f"pgoutput_etl_snapshot_{uuid4().hex[:16]}"
        command = f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT"
        slot = connection.createStatement().executeQuery(command)
        slot.next()
        yield ExportedSnapshot(slot.getString("snapshot_name"), parse_lsn(slot.getString("consistent_point")))
    finally:
        connection.close()
