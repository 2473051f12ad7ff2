"""Mode append: every change as a row, with what is needed to apply it to a copy of the table.

In the order of `_pg_commit_lsn` and, within a commit, `_pg_seq` the rows say what happened. `_pg_seq` comes from where
the change stands in the archive, so that it orders the changes of a commit to several tables, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl import merge
from pgoutput_etl.changes import MOVED_IN, MOVED_OUT, UNREPRESENTABLE, UPDATED, TableShape
from pgoutput_etl.every_event import old_keys
from pgoutput_etl.merge import Before, Written, as_map
from pgoutput_etl.modes import OLD_KEY_COLUMN, OP_COLUMN, SEQ_COLUMN, UNCHANGED_COLUMN
from pgoutput_etl.row_states import EveryEvent, target_values
from pgoutput_etl.spark_types import spark_schema

# `_pg_seq`: the file's number, the message's in it, and which of the two rows that a message may be.
_MESSAGES_IN_A_FILE = 1 << 39
_OF_A_MESSAGE = 2


def write(spark: SparkSession, path: str, shape: TableShape, events: EveryEvent, before: Before) -> Written:
    """One commit; the session has its settings."""
    rows = _as_target(_with_old_keys(events.frame, shape), shape)
    if before is Before.NOTHING:
        return merge.begin_with(spark, path, rows)
    merge.append(spark, path, rows)
    return merge.written(spark, path)


def _with_old_keys(events: DataFrame, shape: TableShape) -> DataFrame:
    schema = shape.event_schema().append(pa.field("_old_key", UNREPRESENTABLE))

    def add(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([*batch.columns, old_keys(batch, shape)], schema=schema)

    return events.mapInArrow(add, spark_schema(schema))


def _as_target(events: DataFrame, shape: TableShape) -> DataFrame:
    """A row that moved to another key is one change, an UPDATE; in a table without a key, an UPDATE is two: the old row
    goes, the new one comes."""
    changes = events.where(F.col("_op") != MOVED_OUT)
    is_second = F.lit(0)
    if shape.is_bag:
        is_second = F.when(F.col("_op") == "I", 1).otherwise(0)
    seq = (F.col("_file") * _MESSAGES_IN_A_FILE + F.col("_ordinal")) * _OF_A_MESSAGE + is_second
    values = {
        **target_values(shape),
        OP_COLUMN: F.when(F.col("_op") == MOVED_IN, UPDATED).otherwise(F.col("_op")),
        SEQ_COLUMN: seq,
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
