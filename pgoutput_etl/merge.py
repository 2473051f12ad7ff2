"""A table's changes to one commit of its Delta table.

Each commit carries Delta's transaction identifier (source, table; number of the batch), so that a batch that is run
again after it died leaves alone what it had committed.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, MapType, StringType, StructField, TimestampType

from pgoutput_etl.changes import INSERTED, TableShape
from pgoutput_etl.delta_table import delta_table, is_delta_table, is_in_catalog, make_schema, read_table, save
from pgoutput_etl.errors import TableError
from pgoutput_etl.key_facts import Ranges
from pgoutput_etl.key_match import key_ranges, keys_are_absent, same_key
from pgoutput_etl.managed import value_of
from pgoutput_etl.modes import STAMP_COLUMNS
from pgoutput_etl.naming import is_catalog_place, quoted
from pgoutput_etl.net_effect import (
    Events,
    bag_content,
    entries_of,
    entries_of_target,
    event_content,
    net_as_it_is,
    net_of_bag,
    net_rows,
    no_entries,
    resolve_moves,
    with_sequence,
)
from pgoutput_etl.spark import FOR_FEW_ROWS, session_settings, temporarily
from pgoutput_etl.storage import to_event, to_target
from pgoutput_etl.write_method import WriteFacts, WriteMethod, absence_matters, need_reduction, write_method

_STAMP_TYPES = (LongType(), TimestampType(), LongType(), MapType(StringType(), StringType()))
STAMPS = tuple(StructField(name, kind) for name, kind in zip(STAMP_COLUMNS, _STAMP_TYPES, strict=True))
# Deletion vectors: a MERGE marks rows instead of rewriting their files. Column mapping: names that Parquet refuses,
# and columns renamed or dropped without rewriting the table. Both were measured to pay. A column of wall-clock times
# can only be added later if the feature was there from the beginning. Type widening is switched on where it is needed
# first (evolving.py), as the Rust reader refuses tables that have it.
_PROPERTIES = {
    "delta.enableDeletionVectors": "true",
    "delta.columnMapping.mode": "name",
    "delta.feature.timestampNtz": "supported",
}


_PARTITIONS = "spark.sql.shuffle.partitions"
_PARTITION_BYTES = 1 << 25
_FEW_ROWS = 50_000
_ALWAYS = {"spark.databricks.delta.merge.materializeSource": "none"}  # what is merged is kept already


class Before(Enum):
    """What of the target's rows is there before the batch's changes."""

    NOTHING = "nothing"  # a new table, one that was truncated, or one that takes another's place
    ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Commit:
    """How a write is told from all others: Delta takes each application's version once."""

    application: str  # the ledger and the table
    step: str
    batch: int
    last_commit_lsn: int

    def settings(self) -> dict[str, str]:
        return {
            "spark.databricks.delta.write.txnAppId": f"{self.application}:{self.step}",
            "spark.databricks.delta.write.txnVersion": str(self.batch),
            **self.note(),
        }

    def note(self) -> dict[str, str]:
        """What stands in the table's history beside the commit."""
        return {"spark.databricks.delta.commitInfo.userMetadata": json.dumps(asdict(self))}


@dataclass(frozen=True, slots=True)
class Written:
    """A table after its commit. The counts are of rows, as Delta or the net effect counted them.

    not_found: deletes in a bag that took nothing: what they name was there before the slot, or has values that were
    never sent. rows: all that the table has, where the commit says so.
    """

    version: int
    inserted: int
    updated: int
    deleted: int
    not_found: int = 0
    rows: int | None = None

    def plus(self, later: Written) -> Written:
        inserted, updated = self.inserted + later.inserted, self.updated + later.updated
        deleted, not_found = self.deleted + later.deleted, self.not_found + later.not_found
        return Written(later.version, inserted, updated, deleted, not_found, later.rows_after(self.rows))

    def rows_after(self, rows: int | None) -> int | None:
        """How many there are, if there were `rows` before."""
        if self.rows is not None or rows is None:
            return self.rows
        return rows + self.inserted - self.deleted


def has_rows(spark: SparkSession, path: str) -> bool:
    if not is_delta_table(spark, path):
        return False
    return bool(read_table(spark, path).limit(1).count())


def check_that_it_is_there(spark: SparkSession, path: str) -> None:
    """Raises TableError if a table that was written is gone."""
    if not (is_in_catalog if is_catalog_place(path) else is_delta_table)(spark, path):
        raise TableError(
            f"there is no table at {path} any more: somebody took it away. jobs/backfill.py makes it again from the "
            "archive, jobs/snapshot.py from the server"
        )


def write(
    spark: SparkSession,
    path: str,
    shape: TableShape,
    events: Events,
    before: Before,
    commit: Commit,
    rows: int | None = None,
) -> Written:
    """One commit. `events` are all of the table's since its last truncate in the batch. `rows`: how many it has, if
    that is known."""
    is_small = events.is_here and (before is Before.NOTHING or (rows is not None and rows <= _FEW_ROWS))
    sizes = {**_ALWAYS, **FOR_FEW_ROWS} if is_small else for_size(spark, events.size)
    with session_settings(spark, {**commit.settings(), **sizes}) as session:
        if shape.is_bag:
            return _write_bag(session, path, shape, events, before)
        facts = _facts(session, path, shape, events, before, rows)
        net = _net(session, path, shape, events, before) if need_reduction(facts) else net_as_it_is(events.frame, shape)
        method = write_method(facts)
        match method:
            case WriteMethod.OVERWRITE:
                return begin_with(session, path, _net_rows_as_target(net.where(~F.col("_delete")), shape))
            case WriteMethod.APPEND:
                append(session, path, _net_rows_as_target(net, shape))
            case _:
                is_few = rows is not None and rows <= _FEW_ROWS
                _merge(session, path, shape, net, events, is_few, method is WriteMethod.MERGE)
        return written(session, path)


def _facts(
    spark: SparkSession, path: str, shape: TableShape, events: Events, before: Before, rows: int | None
) -> WriteFacts:
    facts = WriteFacts(
        has_key=True,
        is_empty=before is Before.NOTHING,
        only_inserts=events.only_inserts,
        keys_are_unique=events.is_net,
    )
    if not absence_matters(facts) or events.keys is None:
        return facts
    return replace(facts, keys_are_absent=keys_are_absent(spark, path, shape, events.keys, rows))


def for_size(spark: SparkSession, size: int | None) -> dict[str, str]:
    """What is merged is kept already; a shuffle has partitions of a size that a task takes at once."""
    partitions = max(int(spark.conf.get(_PARTITIONS, "8") or 8), (size or 0) // _PARTITION_BYTES)
    return {**_ALWAYS, _PARTITIONS: str(partitions)}


def _net(spark: SparkSession, path: str, shape: TableShape, events: Events, before: Before) -> DataFrame:
    ordered = with_sequence(events.frame)
    if shape.moves_toast:
        target = read_table(spark, path) if before is Before.ROWS else None
        ordered = resolve_moves(ordered, shape, target)
    return net_rows(ordered, shape)


def _merge(
    spark: SparkSession, path: str, shape: TableShape, net: DataFrame, events: Events, is_few: bool, deletes: bool
) -> None:
    """What is merged is computed once and kept, so that Delta need not do so, and the key's range is known. `is_few`:
    rows of the target."""
    if events.is_here:
        _merge_kept(spark, path, shape, net, events.ranges or {}, deletes)
        return
    net = net.localCheckpoint()  # persisted, it would be refused
    ranges = key_ranges(net, shape) if events.ranges is None else events.ranges
    is_few = is_few and net.limit(_FEW_ROWS).count() < _FEW_ROWS
    with temporarily(spark, FOR_FEW_ROWS if is_few else {}):
        _merge_kept(spark, path, shape, net, ranges, deletes)


def _merge_kept(
    spark: SparkSession, path: str, shape: TableShape, net: DataFrame, ranges: Ranges, deletes: bool
) -> None:
    target = delta_table(spark, path).alias("t")
    deleted = F.col("s._delete")
    merge = target.merge(net.alias("s"), same_key(shape, ranges))
    if deletes:
        merge = merge.whenMatchedDelete(deleted)
    merge = merge.whenMatchedUpdate(set=quoted_names(_updated_values(shape)))
    merge = merge.whenNotMatchedInsert(~deleted, values=quoted_names(_inserted_values(shape, "s.")))
    merge.execute()


def quoted_names(values: dict[str, Column]) -> dict[str, Any]:
    return {quoted(name): value for name, value in values.items()}


def stamp_values(alias: str) -> dict[str, Column]:
    return {
        "_pg_commit_lsn": F.col(f"{alias}_lsn"),
        "_pg_commit_ts": F.col(f"{alias}_ts"),
        "_pg_xid": F.col(f"{alias}_xid"),
    }


def _inserted_values(shape: TableShape, alias: str = "") -> dict[str, Column]:
    """A row that was not there. A value that the archive never sent is NULL, and noted with a NULL text."""
    values = {column.name: to_target(F.col(f"{alias}c{i}"), column.type) for i, column in enumerate(shape.columns)}
    entries = F.coalesce(F.col(f"{alias}_unrep"), no_entries())
    for i in shape.toast if not shape.is_bag else ():
        unknown = F.array(
            F.struct(F.lit(shape.columns[i].name).alias("key"), F.lit(None).cast("string").alias("value"))
        )
        entries = F.concat(entries, F.when(F.col(f"{alias}keep{i}"), unknown).otherwise(no_entries()))
    return {**values, **stamp_values(alias), "_pg_unrepresentable": as_map(entries)}


def _updated_values(shape: TableShape) -> dict[str, Column]:
    values = {column.name: to_target(F.col(f"s.c{i}"), column.type) for i, column in enumerate(shape.columns)}
    entries = F.coalesce(F.col("s._unrep"), no_entries())
    for i in shape.toast:
        name = shape.columns[i].name
        keep = F.col(f"s.keep{i}")
        values[name] = F.when(keep, F.col(f"t.{quoted(name)}")).otherwise(values[name])
        kept = entries_of(entries_of_target("t."), name)
        entries = F.concat(entries, F.when(keep, kept).otherwise(no_entries()))
    return {**values, **stamp_values("s."), "_pg_unrepresentable": as_map(entries)}


def as_map(entries: Column) -> Column:
    """NULL on ordinary rows."""
    return F.when(F.size(entries) > 0, F.map_from_entries(entries))


def _net_rows_as_target(net: DataFrame, shape: TableShape) -> DataFrame:
    return net.select(*(value.alias(name) for name, value in _inserted_values(shape).items()))


def overwrite(spark: SparkSession, path: str, rows: DataFrame) -> None:
    """In one commit, which makes the table if there is none."""
    writer = writer_of(spark, rows).mode("overwrite").option("overwriteSchema", "true")
    if not is_delta_table(spark, path):
        writer = writer.options(**_PROPERTIES)
        if is_catalog_place(path):
            make_schema(spark, path)
    save(writer, path)


def append(spark: SparkSession, path: str, rows: DataFrame) -> None:
    """In one commit. Raises TableError if there is no table, where Spark would make one of these rows alone."""
    check_that_it_is_there(spark, path)
    save(writer_of(spark, rows).mode("append"), path)


def begin_with(spark: SparkSession, path: str, rows: DataFrame) -> Written:
    """They are all that the table has."""
    overwrite(spark, path, rows)
    first = written(spark, path)
    return replace(first, rows=first.inserted)


def writer_of(spark: SparkSession, rows: DataFrame) -> Any:
    """With the session's transaction identifier said again, as `rows` may be another session's."""
    prefix = "spark.databricks.delta."
    names = {
        "txnAppId": "write.txnAppId",
        "txnVersion": "write.txnVersion",
        "userMetadata": "commitInfo.userMetadata",
    }
    options = {option: value_of(spark, prefix + name) for option, name in names.items()}
    return rows.write.format("delta").options(**{name: value for name, value in options.items() if value is not None})


def _write_bag(spark: SparkSession, path: str, shape: TableShape, events: Events, before: Before) -> Written:
    net = events.frame
    if not events.only_inserts:
        net = net_of_bag(with_sequence(events.frame), shape).localCheckpoint()
    rows = _net_rows_as_target(net.where(F.col("_op") == INSERTED), shape)
    taken = net.where(F.col("_op") != INSERTED)
    named = 0 if events.only_inserts else taken.count()
    match write_method(WriteFacts(has_key=False, is_empty=before is Before.NOTHING, only_inserts=not named)):
        case WriteMethod.OVERWRITE:
            return replace(begin_with(spark, path, rows), not_found=named)
        case WriteMethod.APPEND:
            append(spark, path, rows)
            return written(spark, path)
        case _:
            return _rewrite_bag(spark, path, shape, rows, taken, named)


def _rewrite_bag(
    spark: SparkSession, path: str, shape: TableShape, rows: DataFrame, taken: DataFrame, named: int
) -> Written:
    """`taken`: the DELETEs of the target's rows, so many as are `named`."""
    target = read_table(spark, path)
    there, inserted = target.count(), rows.count()
    overwrite(spark, path, _survivors(target, taken, shape).unionByName(rows))
    after = written(spark, path)
    deleted = there + inserted - after.inserted  # what Delta counted is all rows that there are now
    return replace(after, inserted=inserted, deleted=deleted, not_found=named - deleted, rows=after.inserted)


def _survivors(target: DataFrame, taken: DataFrame, shape: TableShape) -> DataFrame:
    """The target's rows without as many of each distinct one as are taken, the newest first.

    A row goes through as one struct, so that its columns' names meet none of those used here.
    """
    own = bag_content(shape, (to_event(F.col(quoted(c.name)), c.type) for c in shape.columns), entries_of_target())
    stored = target.select(F.struct(*(quoted(name) for name in target.columns)).alias("row"), own.alias("content"))
    deletes = taken.groupBy(event_content(shape).alias("gone")).agg(F.count("*").alias("copies"))
    newest_first = Window.partitionBy("content").orderBy(F.desc("row._pg_commit_lsn"))
    ranked = stored.join(deletes, F.col("content") == F.col("gone"), "left")
    ranked = ranked.withColumn("rank", F.row_number().over(newest_first))
    return ranked.where(F.col("copies").isNull() | (F.col("rank") > F.col("copies"))).select("row.*")


def move(spark: SparkSession, old_path: str, old_version: int, path: str, commit: Commit) -> None:
    """Copies a renamed table's rows, as they were at a version of its old place, over whatever is at the new one."""
    rows = read_table(spark, old_path, old_version)
    with session_settings(spark, commit.settings()) as session:
        overwrite(session, path, rows)


def vacate(spark: SparkSession, path: str, commit: Commit) -> None:
    """Empties the place that a table has left; its rows stay in reach of time travel."""
    with session_settings(spark, commit.settings()) as session:
        delta_table(session, path).delete()


def take_back(spark: SparkSession, path: str, version: int | None) -> None:
    """The table as it was at a version, or empty if it is new."""
    if not is_delta_table(spark, path):
        return
    table = delta_table(spark, path)
    if version is None:
        table.delete()
    elif table.history(1).collect()[0]["version"] > version:
        table.restoreToVersion(version)


def written(spark: SparkSession, path: str) -> Written:
    last = delta_table(spark, path).history(1).collect()[0]
    metrics = {key: int(value) for key, value in (last.operationMetrics or {}).items() if str(value).isdigit()}
    if last.operation == "MERGE":
        counts = [metrics.get(f"numTargetRows{what}", 0) for what in ("Inserted", "Updated", "Deleted")]
    else:
        counts = [metrics.get("numOutputRows", 0), 0, 0]
    return Written(last.version, *counts)
