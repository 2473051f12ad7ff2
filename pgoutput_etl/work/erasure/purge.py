"""Removes all but the newest version of a Delta table: files of older versions, deletion vectors, the change feed, and
the statistics and file names in the log."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import SparkSession

from pgoutput_etl.errors import RunError
from pgoutput_etl.identifiers import text_literal
from pgoutput_etl.load.layout import alter
from pgoutput_etl.places import Place
from pgoutput_etl.spark.delta import delta_table, folder_of, read_table
from pgoutput_etl.spark.object_folder import ObjectFolder
from pgoutput_etl.spark.session import session_settings
from pgoutput_etl.work.upkeep.table_upkeep import DeltaFolder, versions_of_log

_AT_ONCE = {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}

_AT_ONCE_IN_WORDS = "interval 0 hours"

# Prefixes of files with rows, changes, and deletion vectors
_OF_VERSIONS = ("part-", "cdc-", "deletion_vector_")

# How long a checkpoint still names removed files
_KEEPS_NAMES = "delta.deletedFileRetentionDuration"


def refuse_what_stays(spark: SparkSession, places: Iterable[Place]) -> None:
    """Raises RunError if a table's older versions can't be removed."""
    for place in places:
        if DeltaFolder(spark, place).commits_since_checkpoint() is None:
            raise RunError(
                f"older versions of {place} can't be removed: this Spark has no access to Delta's log. Nothing was "
                "erased"
            )


def purge(spark: SparkSession, place: Place) -> int:
    """Returns the remaining version. Nobody else may write to the table in the meantime, because the files of
    unfinished commits are also removed.

    The last commits only set a property, so the remaining log entries have no statistics of removed rows.
    """
    table = DeltaFolder(spark, place)
    before = delta_table(spark, table.path).detail().select("properties").collect()[0][0].get(_KEEPS_NAMES)
    with session_settings(spark, _AT_ONCE) as session:
        session.sql(f"REORG TABLE {table.path.identifier} APPLY (PURGE)").collect()
        alter(session, table.path, f"SET TBLPROPERTIES ('{_KEEPS_NAMES}' = '{_AT_ONCE_IN_WORDS}')")
        table = DeltaFolder(session, place)
        table.vacuum(0)
        table.checkpoint()
        _delete_log(table.log)
        if before in (None, _AT_ONCE_IN_WORDS):  # left by a run that died
            alter(session, table.path, f"UNSET TBLPROPERTIES ('{_KEEPS_NAMES}')")
        else:
            alter(session, table.path, f"SET TBLPROPERTIES ('{_KEEPS_NAMES}' = {text_literal(before)})")
    return newest_version(spark, table.path)


def older_files(spark: SparkSession, place: Place) -> int:
    """The number of files of older versions. VACUUM leaves files that were removed or written by a clock that is ahead
    of this machine's."""
    table = place.table
    used = {name.rpartition("/")[2] for name in read_table(spark, table).inputFiles()}
    folder = folder_of(spark, table)
    names = (path.rpartition("/")[2] for path, _ in ObjectFolder(spark, folder).all_files())
    return sum(name.startswith(_OF_VERSIONS) and name not in used for name in names)


def newest_version(spark: SparkSession, path: Place) -> int:
    return int(delta_table(spark, path).history(1).select("version").collect()[0][0])


def _delete_log(log: ObjectFolder) -> None:
    """Deletes the log files of versions before the newest checkpoint."""
    versions = versions_of_log(log)
    newest = max(version for name, version in versions.items() if ".checkpoint." in name)
    for name, version in versions.items():
        if version < newest:
            log.delete(name)
