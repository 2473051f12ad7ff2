"""Mode append: every change as a row, with what is needed to apply it to a copy of the table.

In the order of `_pg_commit_lsn` and, within a commit, `_pg_seq` the rows say what happened. `_pg_seq` comes from where
the change stands in the archive, so that it orders the changes of a commit to several tables, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.changes.event_log import old_keys, sequence_numbers
from pgoutput_etl.changes.events import MOVED_IN, MOVED_OUT, UPDATED
from pgoutput_etl.load import commit
from pgoutput_etl.load.commit import TargetRows, WriteResult
from pgoutput_etl.load.row_states import EventLog, target_values
from pgoutput_etl.load.target_columns import as_map
from pgoutput_etl.schema.table_shape import UNREPRESENTABLE, TableShape
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.targets.modes import OLD_KEY_COLUMN, OP_COLUMN, SEQ_COLUMN, UNCHANGED_COLUMN


def write(spark: SparkSession, path: str, shape: TableShape, events: EventLog, before: TargetRows) -> WriteResult:
    """One commit; the session has its settings."""
    rows = _as_target(_completed(events.frame, shape), shape)
    if before is TargetRows.NOTHING:
        return commit.initialize(spark, path, rows)
    commit.append(spark, path, rows)
    return commit.write_result(spark, path)


def _completed(events: DataFrame, shape: TableShape) -> DataFrame:
    """With `_number` and `_old_key`, for which the events' values are looked into."""
    added = [pa.field("_number", pa.int64()), pa.field("_old_key", UNREPRESENTABLE)]
    schema = pa.schema([*shape.event_schema(), *added])

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [*batch.columns, sequence_numbers(batch, shape), old_keys(batch, shape)]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return events.mapInArrow(add, spark_schema(schema))


def _as_target(events: DataFrame, shape: TableShape) -> DataFrame:
    """A row that moved to another key is one change, an UPDATE; in a table without a key, an UPDATE is two: the old row
    goes, the new one comes."""
    changes = events.where(F.col("_op") != MOVED_OUT)
    values = {
        **target_values(shape),
        OP_COLUMN: F.when(F.col("_op") == MOVED_IN, UPDATED).otherwise(F.col("_op")),
        SEQ_COLUMN: F.col("_number"),
        OLD_KEY_COLUMN: F.when(F.col("_old_key").isNotNull(), as_map(F.col("_old_key"))),
        UNCHANGED_COLUMN: _unchanged(shape),
    }
    return changes.select(*(value.alias(name) for name, value in values.items()))


def _unchanged(shape: TableShape) -> Column:
    """The columns whose values were not sent, as they are what they were; NULL where that is none."""
    none = F.array().cast("array<string>")
    found = none
    for i in shape.toast:
        name = F.array(F.lit(shape.columns[i].name))
        found = F.concat(found, F.when(F.coalesce(F.col(f"u{i}"), F.lit(False)), name).otherwise(none))
    return F.when(F.size(found) > 0, found)
