"""Classifies commits in a Delta table's history: who made them, and whether they changed rows or files."""

from __future__ import annotations

import json
from collections.abc import Iterable

from pyspark.sql import SparkSession

from pgoutput_etl.places import Place
from pgoutput_etl.spark.delta import delta_table
from pgoutput_etl.spark.delta_log import DeltaCommit, logged_after, metrics_of

# The setting whose value Delta stores with a session's commits
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"

_APPLICATIONS = "pgoutput_etl:"

_VACUUM = frozenset({"VACUUM START", "VACUUM END"})

_LAYOUT = frozenset({"CLUSTER BY", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES"})

# Commits made by DROP FEATURE (load/layout.py)
_WITHOUT_FEATURE = frozenset({"DROP FEATURE", "Deletion Vector Tombstones", "Empty Commit"})

_REWRITES_FILES = frozenset({"OPTIMIZE", "REORG", "REMOVE COLUMN MAPPING"})

_KEEP_ROWS = frozenset({*_REWRITES_FILES, *_VACUUM, *_LAYOUT, *_WITHOUT_FEATURE})


def is_as_recorded(operations: Iterable[str]) -> bool:
    """True if a table still has the rows that the last batch left. operations: of the commits since then."""
    return _KEEP_ROWS.issuperset(operations)


def changes_files(operation: str) -> bool:
    """True if the commit may have changed the set of files."""
    return operation not in _VACUUM | _LAYOUT | _WITHOUT_FEATURE


def operations_since(spark: SparkSession, place: Place, version: int) -> list[str]:
    """The operations of the commits after a version, newest first. For a shared table, without those of the sources
    that share it, because each changes only rows with its own tag."""
    return own_operations(place, commits_after(spark, place, version))


def is_written_by_runs(spark: SparkSession, place: Place, version: int, last: int) -> bool:
    """True if every commit after `version`, through `last`, was made by a run or leaves the rows unchanged."""
    commits = [commit for commit in commits_after(spark, place, version) if commit.version <= last]
    return len(commits) == last - version and is_as_recorded(_foreign_operations(commits))


def own_operations(place: Place, commits: Iterable[DeltaCommit]) -> list[str]:
    """Like `operations_since`, for these commits."""
    if not place.tag:
        return [commit.operation for commit in commits]
    return _foreign_operations(commits)


def _foreign_operations(commits: Iterable[DeltaCommit]) -> list[str]:
    applications = ((commit.operation, application_of(commit) or "") for commit in commits)
    return [operation for operation, application in applications if not application.startswith(_APPLICATIONS)]


def commits_after(spark: SparkSession, place: Place, version: int) -> list[DeltaCommit]:
    """A table's commits after a version, newest first."""
    logged = logged_after(spark, place, version)
    if logged is not None:
        return logged
    return [commit for commit in history_of(spark, place) if commit.version > version]


def history_of(spark: SparkSession, place: Place, limit: int | None = None) -> list[DeltaCommit]:
    """The commits that Delta still has, newest first; only the last `limit` if given."""
    table = delta_table(spark, place)
    rows = (table.history() if limit is None else table.history(limit)).collect()
    return [DeltaCommit(row.version, row.operation, metrics_of(row.operationMetrics), row.userMetadata) for row in rows]


def application_of(commit: DeltaCommit) -> str | None:
    """The application (load.commit.DeltaTransaction) that made a commit; None for another program."""
    entry = recorded_entry(commit.user_metadata)
    return str(entry["application"]) if "application" in entry else None


def recorded_entry(user_metadata: str | None) -> dict[str, object]:
    """A commit's metadata; empty if it isn't a JSON object, as other programs' may not be."""
    try:
        entry = json.loads(user_metadata or "")
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}
