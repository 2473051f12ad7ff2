"""The files of a small table, without a Spark job: Delta lists them in the checksum file next to the log.

As in delta_log.py, these classes are not part of Delta's API: if they differ, functions return None.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pyspark.sql import SparkSession

from pgoutput_etl.places import Place
from pgoutput_etl.spark.delta_log import (
    MOST_COMMITS,
    Action,
    actions_of,
    defaults,
    features_of,
    json_of,
    of_log,
    updated,
)
from pgoutput_etl.spark.object_folder import ObjectFolder
from pgoutput_etl.spark.platform import local_path


@dataclass(frozen=True, slots=True)
class DeltaFiles:
    """A version of a table.

    local: its folder, if it is on this machine. schema: Delta's, as JSON. features: names of the table's features.
    properties: its configuration. files: its `add` actions (Delta's protocol, *Add File and Remove File*).
    """

    spark: SparkSession
    folder: str
    local: str | None
    version: int
    schema: Action
    partition_columns: tuple[str, ...]
    features: frozenset[str]
    properties: Mapping[str, str]
    files: tuple[Action, ...]

    @classmethod
    def of(cls, spark: SparkSession, log: Any, of: Any, files: tuple[Action, ...], version: int) -> DeltaFiles:
        """log: Delta's DeltaLog. of: a Delta snapshot or transaction with this version and these files."""
        metadata = json.loads(of.metadata().json())["metaData"]
        folder = str(log.dataPath().toString())
        return cls(
            spark=spark,
            folder=folder,
            local=local_path(spark, folder),
            version=version,
            schema=json.loads(metadata["schemaString"]),
            partition_columns=tuple(metadata["partitionColumns"]),
            features=frozenset(features_of(of)),
            properties=metadata["configuration"],
            files=files,
        )

    def read(self, file: Action) -> bytes:
        name = unquote(file["path"])
        return (
            self.objects.read_bytes(name, file["size"]) if self.local is None else Path(self.local, name).read_bytes()
        )

    @property
    def objects(self) -> ObjectFolder:
        return ObjectFolder(self.spark, self.folder)


def open_files(spark: SparkSession, place: Place, most: int) -> DeltaFiles | None:
    """The newest version. None unless the log's checksum files list all of its files, with a total of at most `most`
    bytes."""

    def read(log: Any) -> DeltaFiles | None:
        snapshot = updated(log)
        files = known_files(spark, log, snapshot, most)
        return None if files is None else DeltaFiles.of(spark, log, snapshot, files, int(snapshot.version()))

    return of_log(spark, place, read)


def names_of_files(spark: SparkSession, place: Place) -> list[str] | None:
    """The paths of the data files of a small table's newest version, relative to its folder."""

    def read(log: Any) -> list[str] | None:
        files = known_files(spark, log, updated(log))
        return None if files is None else [unquote(file["path"]) for file in files]

    return of_log(spark, place, read)


def known_files(spark: SparkSession, log: Any, snapshot: Any, most: int | None = None) -> tuple[Action, ...] | None:
    """The `add` actions of a snapshot's files, from the newest checksum file that has them and the commits since then;
    checksum files after an ALTER TABLE lack them. None if no such file exists, or for more than `most` bytes. log:
    Delta's DeltaLog.
    """
    newest = snapshot.checksumOpt()
    if most is not None and not (newest.isDefined() and newest.get().tableSizeBytes() <= most):
        return None
    version = int(snapshot.version())
    for known in range(version, max(version - MOST_COMMITS, 0) - 1, -1):
        checksum = newest if known == version else log.readChecksum(known, *defaults(log, "readChecksum", 2))
        listed = checksum.get().allFiles() if checksum.isDefined() else checksum
        if listed.isDefined():
            files = {file["path"]: file for file in (json.loads(text)["add"] for text in json_of(listed.get()))}
            for later in range(known + 1, version + 1):
                actions = actions_of(spark, log, later)
                for removed in (action["remove"]["path"] for action in actions if "remove" in action):
                    files.pop(removed, None)
                files |= {action["add"]["path"]: action["add"] for action in actions if "add" in action}
            return tuple(files.values())
    return None
