"""The keys that a batch inserts into one table, from events on the driver or blocks on executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from pgoutput_etl.changes import key_facts
from pgoutput_etl.changes.key_facts import KeyFacts, KeyHashes
from pgoutput_etl.changes.window import Window
from pgoutput_etl.ingest.executors import iterate_blocks
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.transactions.status_lookup import StatusLookup

_BUCKET_ROWS = 1 << 21  # most rows whose key hashes one task sorts


@dataclass(frozen=True, slots=True)
class BatchKeys:
    """hashes: the keys' hashes (changes/key_facts.py); None if equal keys can't be recognized."""

    facts: KeyFacts
    hashes: KeyHashes | DataFrame | None

    def may_include(self, others: KeyHashes) -> bool:
        """True if a key has one of these hashes, or if the hashes are unknown."""
        if self.hashes is None:
            return True
        if isinstance(self.hashes, np.ndarray):
            return bool(np.isin(others, self.hashes).any())
        return _are_hashed(self.hashes, others)


def _are_hashed(hashed: DataFrame, others: KeyHashes) -> bool:
    schema = pa.schema([("found", pa.bool_())])

    def look_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            found = key_facts.have_any(batch.column("hashes"), others)
            yield pa.RecordBatch.from_pylist([{"found": found}], schema)

    results = hashed.select("hashes").mapInArrow(look_up, spark_schema(schema))
    return bool(results.where("found").limit(1).count())


def keys_of_events(events: pa.RecordBatch, shape: TableShape) -> BatchKeys:
    return BatchKeys(*key_facts.facts_of(events, shape))


def keys_of_blocks(
    blocks: DataFrame, statuses: StatusLookup, window: Window, shape: TableShape, inserts: int
) -> BatchKeys:
    """Makes one pass over the table's blocks, which must contain only INSERTs, and decodes only the key columns.
    inserts: approximate count."""
    buckets = inserts // _BUCKET_ROWS + 1

    def hash_keys(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from key_facts.hashed_keys_of(iterate_blocks(batches), statuses, window, shape, buckets)

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from key_facts.facts_of_buckets(batches, shape)

    hashed = blocks.mapInArrow(hash_keys, spark_schema(key_facts.hash_schema(shape)))
    by_bucket = hashed.repartition(buckets, "bucket")
    checked = by_bucket.mapInArrow(check, spark_schema(key_facts.fact_schema(shape)))
    checked = checked.localCheckpoint(eager=False)  # BatchKeys.may_include reads it again
    facts = key_facts.facts_of_rows(checked.drop("hashes").toArrow().to_pylist(), shape)
    return BatchKeys(facts, checked if facts.are_known else None)
