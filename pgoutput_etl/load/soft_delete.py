"""Mode soft_delete: a deleted row stays, marked as deleted, with its last values.

There is one row per key: as the last commit left it or, if that commit deleted it, as it was before. A row that was
inserted and deleted within one transaction is not stored, nor is a deleted row whose values the archive never
contained.

Deleted rows keep the values that they had under an earlier key. A new key may therefore equal the key of a living row
and of deleted rows, or of several deleted rows. A change of a living row never affects a deleted row.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from pgoutput_etl.changes.key_facts import Ranges
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.load import commit
from pgoutput_etl.load.commit import TargetRows, WriteResult
from pgoutput_etl.load.key_match import key_ranges, same_key
from pgoutput_etl.load.merge import RowMerge
from pgoutput_etl.load.mismatches import mismatches_in_log
from pgoutput_etl.load.net_effect import all_of, keyed_columns, net_key_parts, target_key_parts
from pgoutput_etl.load.row_states import EventLog, key_names, row_states
from pgoutput_etl.load.shared_table import tagged_target
from pgoutput_etl.load.table_writer import TableCommit
from pgoutput_etl.load.target_columns import selected, target_values
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.targets.modes import DELETED_COLUMN, METADATA_COLUMNS


def write(table: TableCommit, shape: TableShape, events: EventLog, before: TargetRows) -> WriteResult:
    """Makes one Delta commit."""
    stored = tagged_target(table.spark, table.place, shape.columns) if before is TargetRows.ROWS else None
    mismatches = mismatches_in_log(events, shape, _current(stored))
    net = _net(stored, shape, events).localCheckpoint()
    if stored is None:
        result = commit.initialize(table, _new_rows(net, shape), shape.layout)
    else:
        ranges = key_ranges(net, shape, table.place)
        revived = _revived(net, shape, stored, ranges).localCheckpoint()
        _merge(_with_revived(net, revived, shape).localCheckpoint(), shape, ranges).execute(table)
        result = commit.written(table)
    return replace(result, mismatches=mismatches)


def rows_after(stored: DataFrame | None, shape: TableShape, events: EventLog) -> DataFrame:
    """See mirror.rows_after."""
    net = _net(stored, shape, events)
    if stored is None:
        return _new_rows(net, shape)
    return _merge(_with_revived(net, _revived(net, shape, stored, {}), shape), shape, {}).after(stored)


def _current(stored: DataFrame | None) -> DataFrame | None:
    return None if stored is None else stored.where(~F.col(DELETED_COLUMN))


def _net(stored: DataFrame | None, shape: TableShape, events: EventLog) -> DataFrame:
    return _last_states(row_states(events, shape, _current(stored)), shape)


def _new_rows(net: DataFrame, shape: TableShape) -> DataFrame:
    return selected(net.where(~F.col("_mark")), {**target_values(shape), DELETED_COLUMN: F.col("_deleted")})


def _last_states(states: DataFrame, shape: TableShape) -> DataFrame:
    """One row per key. `_mark`: the events only delete the row, and don't have its values."""
    columns = [f"c{i}" for i in range(len(shape.columns))]
    keys = key_names(shape)
    # A transaction may insert and delete a row under the key of a row that was deleted earlier.
    lived = F.coalesce(F.lag("_lives").over(Window.partitionBy(*keys).orderBy("_seq")), F.lit(True))
    grouped = states.withColumn("_lived", lived).where(F.col("_lives") | F.col("_lived")).groupBy(*keys)
    last = F.max(F.struct("_seq", "_lives", "_lsn", "_ts", "_xid", "_unrep", *columns)).alias("last")
    living = F.max(F.when(F.col("_lives"), F.struct("_seq", "_unrep", *columns))).alias("living")
    latest = grouped.agg(last, living)
    is_known = F.col("living").isNotNull()
    return latest.select(
        *(
            F.when(is_known, F.col(f"living.{name}")).otherwise(F.col(f"last.{name}")).alias(name)
            for name in (*columns, "_unrep")
        ),
        *(F.col(f"last.{name}").alias(name) for name in ("_lsn", "_ts", "_xid")),
        (~F.col("last._lives")).alias("_deleted"),
        (~is_known).alias("_mark"),
    )


def _revived(net: DataFrame, shape: TableShape, stored: DataFrame, ranges: Ranges) -> DataFrame:
    """Keys k0… that only deleted rows have, with `_revived`, the commit that deleted the newest of these rows, which
    becomes the new row. If one commit deleted several rows of a key, they had it only as an earlier key; then none is
    revived."""
    new = net.where(~F.col("_mark")).select(F.struct("*").alias("s"))
    same = stored.alias("t").join(new, same_key(shape, ranges), "left_semi")
    keys, is_deleted = keyed_columns(target_key_parts(shape, "t.")), F.col(f"t.{DELETED_COLUMN}").alias("is_deleted")
    rows = same.select(*keys, is_deleted, F.col("t._pg_commit_lsn").alias("lsn"))
    newest_first = F.sort_array(F.collect_list("lsn"), asc=False).alias("lsns")
    found = rows.groupBy(*key_names(shape)).agg(F.bool_and("is_deleted").alias("is_deleted"), newest_first)
    newest, next_one = (F.get("lsns", n) for n in (0, 1))
    is_one = F.col("is_deleted") & ~newest.eqNullSafe(next_one)
    return found.where(is_one).select(*key_names(shape), newest.alias("_revived"))


def _with_revived(net: DataFrame, revived: DataFrame, shape: TableShape) -> DataFrame:
    found = revived.select(*(F.col(name).alias(f"r_{name}") for name in key_names(shape)), "_revived")
    parts = zip(net_key_parts(shape, ""), key_names(shape), strict=True)
    return net.join(found, all_of(part.eqNullSafe(F.col(f"r_{name}")) for part, name in parts), "left")


def _merge(net: DataFrame, shape: TableShape, ranges: Ranges) -> RowMerge:
    """The MERGE of net rows, with the result of `_with_revived`, into the table."""
    inserted = {**target_values(shape, "s."), DELETED_COLUMN: F.col("s._deleted")}
    mark, is_deleted = F.col("s._mark"), F.col(f"t.{DELETED_COLUMN}")
    is_meant = ~is_deleted | (F.col("t._pg_commit_lsn") == F.col("s._revived"))
    stays = set(inserted) - {*METADATA_COLUMNS[:-1], DELETED_COLUMN}
    updated: dict[str, Column] = {
        name: F.when(mark, F.col(f"t.{quoted(name)}")).otherwise(value) if name in stays else value
        for name, value in inserted.items()
    }
    return RowMerge(net, is_meant & same_key(shape, ranges), updated, inserted, None, ~mark)
