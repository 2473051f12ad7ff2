"""Makes single Delta commits (overwrite, append, move, empty, restore) and reads back what a commit did."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from itertools import takewhile

from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.errors import TableError
from pgoutput_etl.load.layout import (
    REFUSALS,
    StoredLayout,
    allow_names,
    allow_overwrite,
    keeping_comments,
    lay_out,
    possible,
    refused,
    tag_columns,
)
from pgoutput_etl.load.shared_table import check_shared, own_rows, replace_tagged, restore_tagged, tagged_rows
from pgoutput_etl.load.table_writer import PROPERTIES, DeltaTransaction, TableCommit, committing, properties_of_new
from pgoutput_etl.places import Place
from pgoutput_etl.schema.layout import NO_LAYOUT, Layout, Readers, with_feed
from pgoutput_etl.spark.delta import delta_table, is_delta_table, is_in_catalog, make_schema, read_table, save
from pgoutput_etl.spark.delta_history import application_of, commits_after, history_of, is_as_recorded, operations_since
from pgoutput_etl.spark.delta_log import DeltaCommit, newest_commit
from pgoutput_etl.spark.platform import marks_commits
from pgoutput_etl.spark.session import session_settings
from pgoutput_etl.targets.mismatches import Mismatches, added
from pgoutput_etl.targets.plan import TableTask


class TargetRows(Enum):
    """The rows in the target before the batch's changes."""

    NOTHING = "nothing"  # the table is new, was truncated, or replaces another table
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """A table after its commit. inserted, updated, deleted: row counts from Delta or from the net effect.

    not_found: DELETEs in a bag that matched no row, because the row predates the slot or has values that were never
    sent. rows: the table's row count, if the commit reports it. mismatches: changes that contradict the rows before the
    commit; None without any. remarks: notes about the table's layout.
    """

    version: int
    inserted: int
    updated: int
    deleted: int
    not_found: int = 0
    rows: int | None = None
    mismatches: Mismatches | None = None
    remarks: tuple[str, ...] = ()

    def plus(self, later: WriteResult) -> WriteResult:
        inserted, updated = self.inserted + later.inserted, self.updated + later.updated
        deleted, not_found = self.deleted + later.deleted, self.not_found + later.not_found
        mismatches = added(self.mismatches, later.mismatches)
        rows = later.rows_after(self.rows)
        remarks = (*self.remarks, *later.remarks)
        return WriteResult(later.version, inserted, updated, deleted, not_found, rows, mismatches, remarks)

    def rows_after(self, rows: int | None) -> int | None:
        """The table's row count, given the count before the commit; None if unknown."""
        if self.rows is not None or rows is None:
            return self.rows
        return rows + self.inserted - self.deleted


def check_target_exists(spark: SparkSession, path: Place, version: int = -1, application: str | None = None) -> None:
    """Raises TableError if the table is gone. version: the version that the application last wrote; another source may
    have created a table of the same name since."""
    exists = (is_in_catalog if path.is_in_catalog else is_delta_table)(spark, path)
    if not exists or (path.tag and version >= 0 and _is_another_table(spark, path, version, application)):
        raise TableError(
            f"there is no table at {path} any more: it was dropped or moved. Rebuild it from the archive, or load a "
            "snapshot of the server's table"
        )


def overwrite(table: TableCommit, rows: DataFrame, layout: Layout = NO_LAYOUT) -> WriteResult:
    """Replaces the table's rows and schema, or creates the table. Settings that the layout doesn't mention are kept.

    Usually makes one commit. Parts of a layout that Delta accepts only for an existing table need further commits, and
    so do the columns of a table that several sources share.
    """
    if table.place.tag:
        replace_tagged(table, rows, layout)
        return written(table)
    spark, path = table.spark, table.place
    stored = StoredLayout.of(spark, path) if is_delta_table(spark, path) else None
    if stored is not None:
        if tag_columns(stored.schema):
            check_shared(spark, path)
        allow_names(spark, path, rows.columns)
        layout = stored.after_overwrite(layout)
    kept = {} if stored is None else stored.comments
    layout, rows = possible(layout, rows.schema), keeping_comments(rows, {**kept, **layout.column_comments})
    feed_stops = stored is not None and allow_overwrite(spark, path, stored, layout, rows.schema)
    writer = table.writer_of(rows).mode("overwrite").option("overwriteSchema", "true")
    if stored is None:
        writer = writer.options(**properties_of_new(layout, rows.columns))
        if path.is_in_catalog:
            make_schema(spark, path)
    if layout.partition_by:
        writer = writer.partitionBy(*layout.partition_by)
    try:
        save(writer, path)
    except REFUSALS as error:
        if not replace(layout, readers=Readers.SPARK):
            raise
        raise refused(path, error) from None
    result = written(table)
    layout = with_feed(layout, is_on=True) if feed_stops else layout
    if layout and lay_out(spark, path, layout).statements:
        result = replace(result, version=written(table).version)
    if feed_stops:
        result = replace(result, remarks=(f"its change data feed begins anew with version {result.version}",))
    return result


def _is_another_table(spark: SparkSession, path: Place, version: int, application: str | None) -> bool:
    """True if a shared table was created after the application's last write. Delta forgets old commits, so the
    application's absence from the history proves this only if the history still has the table's first commit."""
    commits = _history_with(spark, path, application)
    is_known = any(application_of(commit) == application for commit in commits)
    return commits[0].version < version or (not is_known and commits[-1].version == 0)


def append(table: TableCommit, rows: DataFrame) -> WriteResult:
    """Raises TableError if the table is gone; Spark would create a table with only these rows."""
    check_target_exists(table.spark, table.place)
    rows = tagged_rows(table.spark, table.place, rows) if table.place.tag else rows
    save(table.writer_of(rows).mode("append"), table.place)
    return written(table)


def initialize(table: TableCommit, rows: DataFrame, layout: Layout = NO_LAYOUT) -> WriteResult:
    """Overwrites the table. The result has the table's row count, because Delta reports every row as inserted."""
    result = overwrite(table, rows, layout)
    return replace(result, rows=result.inserted)


def move(
    spark: SparkSession,
    old_path: Place,
    old_version: int,
    path: Place,
    commit: DeltaTransaction,
    task: TableTask | None,
) -> None:
    """Copies a table's rows at `old_version` from its old path over whatever is at the new path. task: the table's, if
    known."""
    # Another table may have been put at the old path since.
    is_own = is_as_recorded(operations_since(spark, old_path, old_version))
    stored = StoredLayout.of(spark, old_path) if is_own else None
    layout = NO_LAYOUT if stored is None else _layout_of_copy(spark, old_path, path, stored, task)
    if path.tag:
        layout = NO_LAYOUT if task is None else task.shape.layout
    # OPTIMIZE and VACUUM may have deleted that version's files.
    is_shared = bool(old_path.tag)
    is_unchanged = is_own and not (is_shared and _has_written(spark, old_path, old_version, commit.ledger))
    version = None if is_unchanged else old_version
    if task is None or not is_shared:
        rows = read_table(spark, old_path, version)
    else:
        rows = own_rows(spark, old_path, version, task.stored_columns, task.mode)
    with committing(spark, path, commit) as table:
        overwrite(table, rows, layout)


def _layout_of_copy(
    spark: SparkSession, old_path: Place, path: Place, stored: StoredLayout, task: TableTask | None
) -> Layout:
    """The stored layout. With `readers: auto`, a renamed table keeps its features; other tables neither gain nor lose
    any."""
    if task is None or task.shape.layout.readers is not Readers.AUTO:
        return stored.to_copy(PROPERTIES[stored.layout.readers])
    is_renamed = task.moved_from is not None and task.moved_from[0] == old_path
    if is_renamed and not is_delta_table(spark, path):
        readers = Readers.SPARK if stored.maps_columns else Readers.AUTO
        return replace(stored.to_copy(PROPERTIES[readers]), readers=readers)
    layout = stored.to_copy({})
    others = {name: value for name, value in layout.properties.items() if name not in PROPERTIES[Readers.AUTO]}
    return replace(layout, properties={**others, **task.shape.layout.properties}, readers=Readers.AUTO)


def _has_written(spark: SparkSession, place: Place, since: int, ledger: str) -> bool:
    """True if a run of this ledger has made a commit after `since`."""
    commits = commits_after(spark, place, since)
    return any((application_of(commit) or "").startswith(ledger) for commit in commits)


def empty(spark: SparkSession, path: Place, commit: DeltaTransaction) -> None:
    """Deletes all rows at a path that a table has left, if a table still exists there. Time travel still reaches
    them."""
    if not is_delta_table(spark, path):
        return
    with session_settings(spark, commit.settings()) as session:
        delta_table(session, path).delete()


def restore(spark: SparkSession, path: Place, version: int | None, commit: DeltaTransaction) -> None:
    """Undoes the application's commits after a version, or empties the table if the version is None. commit: identifies
    the application. Earlier commits by other programs stay, and so do the rows of other applications in a shared
    table."""
    if not is_delta_table(spark, path):
        return
    if path.tag:
        own = _own_commits(spark, path, commit.application)
        if version is None or (own and own[0].version > version):
            with committing(spark, path, commit, is_once=False) as table:
                restore_tagged(table, version)
        return
    with session_settings(spark, commit.user_metadata()) as session:
        stored = delta_table(session, path)
        if version is None:
            stored.delete()
            return
        start = _start_of_own(spark, path, version, commit.application)
        if start is not None:
            stored.restoreToVersion(start)


def _start_of_own(spark: SparkSession, path: Place, version: int, application: str) -> int | None:
    """The version before the application's first commit that follows `version` and its last restore; None if there is
    no such commit. On a platform that can't mark commits, every commit counts as the application's."""
    later = commits_after(spark, path, version)
    if not marks_commits(spark):
        return version if later else None
    own = (commit for commit in later if application_of(commit) == application)
    written = list(takewhile(lambda commit: commit.operation != "RESTORE", own))
    return written[-1].version - 1 if written else None


def written(table: TableCommit) -> WriteResult:
    """The commit's effect."""
    return write_result(table.spark, table.place, table.transaction.application)


def write_result(spark: SparkSession, path: Place, application: str) -> WriteResult:
    """The effect of the last commit that changed rows, with the table's newest version. application: in a shared table,
    only its commits count."""
    if path.tag:
        commits = _own_commits(spark, path, application)
        if not commits:  # Delta has forgotten them
            return WriteResult(history_of(spark, path, 1)[0].version, 0, 0, 0)
        newest = commits[0]
    else:
        newest = newest_commit(spark, path) or history_of(spark, path, 1)[0]
        commits = history_of(spark, path) if is_as_recorded([newest.operation]) else [newest]
    last = next((commit for commit in commits if not is_as_recorded([commit.operation])), newest)
    return WriteResult(newest.version, *_rows_of(last))


def _rows_of(commit: DeltaCommit) -> tuple[int, int, int]:
    """How many rows the commit inserted, updated, and deleted."""
    count = commit.metrics.get
    match commit.operation:
        case "MERGE":
            return count("numTargetRowsInserted", 0), count("numTargetRowsUpdated", 0), count("numTargetRowsDeleted", 0)
        case "UPDATE":
            return 0, count("numUpdatedRows", 0), 0
        case "DELETE":
            return 0, 0, count("numDeletedRows", 0)
        case _:  # an overwrite of a tag's rows also copies rows of other tags from the same files
            return count("numOutputRows", 0) - count("numCopiedRows", 0), 0, 0


_RECENT = 50  # commits by all sources of a shared table; a run's own is usually among them


def _own_commits(spark: SparkSession, path: Place, application: str | None) -> list[DeltaCommit]:
    """The application's commits, newest first: at least its last one, if it has any."""
    commits = _history_with(spark, path, application)
    return [commit for commit in commits if application_of(commit) == application]


def _history_with(spark: SparkSession, path: Place, application: str | None) -> list[DeltaCommit]:
    """Commits by all applications, newest first: recent ones if the application's are among them, otherwise all."""
    recent = history_of(spark, path, _RECENT)
    is_enough = len(recent) < _RECENT or any(application_of(commit) == application for commit in recent)
    return recent if is_enough else history_of(spark, path)
