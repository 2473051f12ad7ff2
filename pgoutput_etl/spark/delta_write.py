"""Commits files to a small Delta table through Delta's own transaction in the JVM.

To write a DataFrame, Delta runs several Spark jobs, mostly to compute the table's state. For a small table, the
checksum file next to the log has all of that state: its files, and the transaction identifiers of its applications.
Delta still checks the commit for conflicts and against the table's rules, and writes it, its checksum, and checkpoints.

As in delta_log.py, these classes are not part of Delta's API: if they differ, no transaction is returned.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from pgoutput_etl.places import Place
from pgoutput_etl.spark.delta_files import DeltaFiles, known_files
from pgoutput_etl.spark.delta_log import Action, defaults, items_of, json_of, of_log
from pgoutput_etl.spark.java import java_class, scala_object, scala_option, to_scala_map, to_scala_seq
from pgoutput_etl.spark.retries import CONFLICTS

_DELTA = "org.apache.spark.sql.delta"
_ACTION, _OPERATIONS = f"{_DELTA}.actions.Action", f"{_DELTA}.DeltaOperations"

_SOURCE_ROWS = "operationNumSourceRows"  # Delta requires this metric, although it uses another name elsewhere


class WriteKind(Enum):
    """The name of a commit in the table's history. Values: of Spark's SaveMode."""

    MERGE = None
    APPEND = "Append"
    OVERWRITE = "Overwrite"


@dataclass(frozen=True, slots=True)
class DeltaWrite:
    """A transaction that has read the whole table, so Delta refuses it if anything else is committed meanwhile.

    table: as the transaction read it. applications: the last version of each transaction identifier.
    """

    table: DeltaFiles
    applications: Mapping[str, int]
    _transaction: Any
    _operation: Any

    def _put(self, name: str, content: bytes) -> None:
        if self.table.local is None:
            self.table.objects.put(name, content, may_exist=False)
        else:
            Path(self.table.local).mkdir(parents=True, exist_ok=True)
            Path(self.table.local, name).write_bytes(content)

    def commit(
        self,
        application: tuple[str, int],
        content: bytes | None,
        statistics: Mapping[str, Any],
        metrics: Mapping[str, int],
        removed: Sequence[Action] = (),
    ) -> int:
        """Adds a file with this content, unless it is None, removes others, and returns the new version.

        application: the transaction identifier and its version. statistics: of the file's rows, in Delta's form.
        metrics: for the table's history. Raises Delta's errors if another commit came first; the file is then deleted.
        """
        now = _now()
        actions: list[Action] = [
            {"txn": {"appId": application[0], "version": application[1], "lastUpdated": now}},
            *({"remove": _removal(file, now)} for file in removed),
        ]
        name = f"part-00000-{uuid.uuid4()}-c000.snappy.parquet"
        if content is None:
            return self._commit(actions, metrics)
        self._put(name, content)
        file = {"path": quote(name), "partitionValues": {}, "size": len(content), "modificationTime": now}
        actions.append({"add": {**file, "dataChange": True, "stats": json.dumps(statistics)}})
        metrics = {**metrics, "numFiles": 1, "numOutputBytes": len(content)}
        try:
            return self._commit(actions, metrics)
        except CONFLICTS:
            with suppress(Exception):  # VACUUM removes it later
                self.table.objects.delete(name)
            raise

    def _commit(self, actions: Sequence[Action], metrics: Mapping[str, int]) -> int:
        spark, session = self.table.spark, cast(Any, self.table.spark)._jsparkSession
        parse = scala_object(spark, _ACTION).fromJson
        make = java_class(spark, "org.apache.spark.sql.execution.metric.SQLMetrics").createMetric
        zero = make(session.sparkContext(), "0")
        names = (*self._operation.operationMetrics().mkString(",").split(","), _SOURCE_ROWS)
        counts = dict.fromkeys(names, zero)
        for name, value in metrics.items():
            counts[name] = make(session.sparkContext(), name)
            counts[name].set(value)
        self._transaction.registerSQLMetrics(session, to_scala_map(spark, counts))
        parsed = to_scala_seq(spark, [parse(json.dumps(action)) for action in actions])
        return int(self._transaction.commit(parsed, self._operation))


def open_write(spark: SparkSession, place: Place, most: int, kind: WriteKind) -> DeltaWrite | None:
    """None unless the log's checksum files list all of the table's files, with a total of at most `most` bytes. spark:
    its settings provide the commit's metadata."""

    def begin(log: Any) -> DeltaWrite | None:
        transaction = _transaction(spark, log)
        snapshot = transaction.snapshot()
        files = known_files(spark, log, snapshot, most)
        if files is None:
            return None
        applications = snapshot.checksumOpt().get().setTransactions()
        if not applications.isDefined():
            return None
        transaction.readWholeTable()
        entries = (json.loads(text)["txn"] for text in json_of(applications.get()))
        versions = {entry["appId"]: entry["version"] for entry in entries}
        table = DeltaFiles.of(spark, log, transaction, files, int(snapshot.version()))
        return DeltaWrite(table, versions, transaction, _operation(spark, kind))

    return of_log(spark, place, begin)


def open_new(
    spark: SparkSession, place: Place, schema: StructType, properties: Mapping[str, str], comment: str | None
) -> DeltaWrite | None:
    """A transaction that creates a table. properties: like a writer's options. None if a table exists, or if a catalog
    must register it."""

    def begin(log: Any) -> DeltaWrite | None:
        transaction = _transaction(spark, log)
        if transaction.snapshot().version() >= 0:
            return None
        settings = to_scala_map(spark, dict(properties))
        metadata: Action = {
            "id": str(uuid.uuid4()),
            "description": comment,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema.json(),
            "partitionColumns": [],
            "configuration": items_of(scala_object(spark, f"{_DELTA}.DeltaConfigs").validateConfigurations(settings)),
            "createdTime": _now(),
        }
        action = scala_object(spark, _ACTION).fromJson(json.dumps({"metaData": metadata}))
        transaction.updateMetadataForNewTable(action)  # adds the columns' names in Parquet, and the protocol's features
        table = DeltaFiles.of(spark, log, transaction, (), -1)
        return DeltaWrite(table, {}, transaction, _operation(spark, WriteKind.OVERWRITE))

    return None if place.is_in_catalog else of_log(spark, place, begin)


def _transaction(spark: SparkSession, log: Any) -> Any:
    session = cast(Any, spark)._jsparkSession
    java_class(spark, "org.apache.spark.sql.classic.SparkSession").setActiveSession(session)  # Delta reads its settings
    return log.startTransaction()


def _removal(file: Action, now: int) -> Action:
    kept: Action = {name: file[name] for name in ("path", "partitionValues", "size", "stats") if name in file}
    return {**kept, "deletionTimestamp": now, "dataChange": True, "extendedFileMetadata": True}


def _now() -> int:
    """Milliseconds since 1970."""
    return round(time.time() * 1000)


def _operation(spark: SparkSession, kind: WriteKind) -> Any:
    if kind is WriteKind.MERGE:
        nothing = to_scala_seq(spark, [])
        return scala_object(spark, f"{_OPERATIONS}$Merge").apply(scala_option(spark, None), nothing, nothing, nothing)
    write, modes = scala_object(spark, f"{_OPERATIONS}$Write"), java_class(spark, "org.apache.spark.sql.SaveMode")
    return write.apply(modes.valueOf(kind.value), *defaults(write, "apply", 2))
