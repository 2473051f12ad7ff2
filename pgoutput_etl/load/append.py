"""Mode append: stores every change as a row, with everything needed to apply it to a copy of the table.

`_pg_commit_lsn` orders the commits, `_pg_seq` the changes within a commit. `_pg_seq` derives from the change's position
in the archive, so it also orders one commit's changes across several tables.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.changes.event_log import old_keys, sequence_numbers
from pgoutput_etl.changes.events import MOVED_IN, MOVED_OUT, UPDATED
from pgoutput_etl.load import commit
from pgoutput_etl.load.commit import TargetRows, WriteResult
from pgoutput_etl.load.row_states import EventLog
from pgoutput_etl.load.table_writer import TableCommit
from pgoutput_etl.load.target_columns import as_map, selected, target_values
from pgoutput_etl.schema.table_shape import UNREPRESENTABLE, TableShape
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.targets.modes import OLD_KEY_COLUMN, OP_COLUMN, SEQ_COLUMN, UNCHANGED_COLUMN


def write(table: TableCommit, shape: TableShape, events: EventLog, before: TargetRows) -> WriteResult:
    """Makes one Delta commit."""
    rows = rows_after(None, shape, events)
    if before is TargetRows.NOTHING:
        return commit.initialize(table, rows, shape.layout)
    return commit.append(table, rows)


def rows_after(stored: DataFrame | None, shape: TableShape, events: EventLog) -> DataFrame:
    """See mirror.rows_after."""
    rows = _as_target(_with_sequence_and_old_key(events.frame, shape), shape)
    return rows if stored is None else stored.unionByName(rows, allowMissingColumns=True)


def _with_sequence_and_old_key(events: DataFrame, shape: TableShape) -> DataFrame:
    """Adds `_number` and `_old_key`, both computed from the events' values in Arrow."""
    added = [pa.field("_number", pa.int64()), pa.field("_old_key", UNREPRESENTABLE)]
    schema = pa.schema([*shape.event_schema(), *added])

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [*batch.columns, sequence_numbers(batch, shape), old_keys(batch, shape)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return events.mapInArrow(add, spark_schema(schema))


def _as_target(events: DataFrame, shape: TableShape) -> DataFrame:
    """A row that moved to another key becomes one change, an UPDATE. In a table without a key, an UPDATE becomes two
    changes: the old row is deleted, and the new one inserted."""
    changes = events.where(F.col("_op") != MOVED_OUT)
    values = {
        **target_values(shape),
        OP_COLUMN: F.when(F.col("_op") == MOVED_IN, UPDATED).otherwise(F.col("_op")),
        SEQ_COLUMN: F.col("_number"),
        OLD_KEY_COLUMN: F.when(F.col("_old_key").isNotNull(), as_map(F.col("_old_key"))),
        UNCHANGED_COLUMN: _unchanged(shape),
    }
    return selected(changes, values)


def _unchanged(shape: TableShape) -> Column:
    """The names of columns whose unchanged values were not sent; NULL instead of an empty array."""
    empty = F.array().cast("array<string>")
    found = (F.when(F.col(f"u{i}"), F.array(F.lit(shape.columns[i].name))).otherwise(empty) for i in shape.toast)
    names = F.concat(empty, *found)
    return F.when(F.size(names) > 0, names)
