"""Turns blocks of message rows into typed change events on executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.changes.compaction import events_of, net_events_of, typed_events_of
from pgoutput_etl.changes.event_log import every_event, every_event_of
from pgoutput_etl.changes.fast_events import event_batches
from pgoutput_etl.changes.key_facts import (
    KeyHashes,
    fact_schema,
    facts_of_buckets,
    hash_schema,
    hashed_keys_of,
    have_any,
)
from pgoutput_etl.changes.window import Window
from pgoutput_etl.ingest.executors import _each_row
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.transactions.status_lookup import StatusLookup


def events_of_blocks(
    blocks: DataFrame, statuses: StatusLookup, window: Window, shape: TableShape, as_net: bool = False
) -> DataFrame:
    """A table's change events (shape.event_schema()). as_net: only the last event of each key, found by a single
    task."""
    table_blocks = _blocks_of_relation(blocks, shape)
    if as_net:
        return _converted(net_events_of, table_blocks.coalesce(1), statuses, window, shape)
    return _converted(events_of, table_blocks, statuses, window, shape)


def all_events_of_blocks(blocks: DataFrame, statuses: StatusLookup, window: Window, shape: TableShape) -> DataFrame:
    """Like events_of_blocks, including events that later ones supersede."""
    return _converted(typed_events_of, _blocks_of_relation(blocks, shape), statuses, window, shape)


def every_event_of_blocks(blocks: DataFrame, statuses: StatusLookup, window: Window, shape: TableShape) -> DataFrame:
    """Like all_events_of_blocks, including truncates."""
    return _converted(every_event_of, _blocks_of_relation(blocks, shape), statuses, window, shape)


def hashed_keys_of_blocks(
    blocks: DataFrame, statuses: StatusLookup, window: Window, shape: TableShape, buckets: int
) -> DataFrame:
    """Hashes of a table's keys (key_facts.hash_schema). blocks: with INSERTs only."""

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from hashed_keys_of(_each_row(batches), statuses, window, shape, buckets)

    return _blocks_of_relation(blocks, shape).mapInArrow(convert, spark_schema(hash_schema(shape)))


def checked_keys(hashed: DataFrame, shape: TableShape, buckets: int) -> DataFrame:
    """The facts of each bucket (key_facts.fact_schema)."""

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from facts_of_buckets(batches, shape)

    return hashed.repartition(buckets, "bucket").mapInArrow(check, spark_schema(fact_schema(shape)))


def are_hashed(hashed: DataFrame, others: KeyHashes) -> bool:
    """True if the hashes include one of the others."""
    schema = pa.schema([("found", pa.bool_())])

    def look_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pylist([{"found": have_any(batch.column("hashes"), others)}], schema)

    results = hashed.select("hashes").mapInArrow(look_up, spark_schema(schema))
    return bool(results.where("found").limit(1).count())


_EventsOf = Callable[[Iterable[Mapping[str, Any]], StatusLookup, Window, TableShape], Iterator[pa.RecordBatch]]


def _blocks_of_relation(blocks: DataFrame, shape: TableShape) -> DataFrame:
    return blocks.where(F.col("relation") == shape.relation.oid).select("rows", "head", "tuples")


def _converted(
    events: _EventsOf, blocks: DataFrame, statuses: StatusLookup, window: Window, shape: TableShape
) -> DataFrame:
    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from events(_each_row(batches), statuses, window, shape)

    return blocks.mapInArrow(convert, spark_schema(shape.event_schema()))


def typed_events(rows: DataFrame, shape: TableShape) -> DataFrame:
    """Change events (shape.event_schema()) of one table's rows (changes.events.ROW_SCHEMA)."""

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from event_batches(batch, shape)

    return rows.mapInArrow(convert, spark_schema(shape.event_schema()))


def every_typed_event(rows: DataFrame, shape: TableShape) -> DataFrame:
    """Like typed_events, including truncates."""

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from every_event(batch, shape)

    return rows.mapInArrow(convert, spark_schema(shape.event_schema()))
