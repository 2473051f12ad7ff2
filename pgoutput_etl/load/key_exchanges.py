"""Transactions whose rows exchange keys (changes/key_exchanges.py), found and replaced by Spark.

One pass hashes keys and rows to find them, without decoding. The rows of such a transaction are replaced in one task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.changes.events import ROW_SCHEMA
from pgoutput_etl.changes.fast_events import BATCH_ROWS
from pgoutput_etl.changes.key_exchanges import KEY_USES, exchanging, key_uses, without_exchanges
from pgoutput_etl.changes.window import Window, rows_in
from pgoutput_etl.ingest.executors import iterate_blocks
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.transactions.status_lookup import StatusLookup

_FOUND = pa.schema([KEY_USES.field("transaction")])

# With 64-bit offsets: the tuples of a transaction may exceed 2 GiB.
_WIDE = pa.schema([f.with_type(pa.large_binary()) if f.type == pa.binary() else f for f in ROW_SCHEMA])


def serial_rows(
    blocks: DataFrame, statuses: StatusLookup, window: Window, shape: TableShape, keeps_changes: bool
) -> DataFrame | None:
    """The message rows (ROW_SCHEMA) of a table's blocks with exchanges replaced, including truncates; None if there are
    no exchanges. keeps_changes: as in `exchanging`."""

    def use(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in iterate_blocks(batches):
            yield key_uses(rows_in(block, statuses, window, True), shape)

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in iterate_blocks(batches):
            yield rows_in(block, statuses, window, True)

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = exchanging(as_one(batches, KEY_USES), keeps_changes)
        yield pa.RecordBatch.from_arrays([pa.array(found)], schema=_FOUND)

    def replace(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        serial = without_exchanges(as_one(batches, _WIDE), shape, keeps_changes)
        for begin in range(0, serial.num_rows, BATCH_ROWS):
            part = pa.Table.from_batches([serial.slice(begin, BATCH_ROWS)])
            yield from part.cast(ROW_SCHEMA).combine_chunks().to_batches()

    rows, uses = blocks.mapInArrow(unpack, spark_schema(ROW_SCHEMA)), blocks.mapInArrow(use, spark_schema(KEY_USES))
    found = uses.repartition("key").mapInArrow(find, spark_schema(_FOUND)).distinct().localCheckpoint()
    if not found.limit(1).count():
        return None
    is_found = F.col("commit_lsn") == F.col("transaction")
    own = rows.join(found, is_found, "left_semi").repartition("commit_lsn")
    others = rows.join(found, is_found, "left_anti")
    return others.unionByName(own.mapInArrow(replace, spark_schema(ROW_SCHEMA)))


def as_one(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Concatenates the batches, even if there are none: Spark rejects an Arrow table that has list columns and no
    batch."""
    parts = [pa.Table.from_batches([batch]).cast(schema) for batch in batches]
    table = pa.concat_tables(parts) if parts else schema.empty_table()
    [batch] = table.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], schema)]
    return batch
