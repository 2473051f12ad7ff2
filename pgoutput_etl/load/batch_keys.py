"""The keys of a batch's INSERTs into one table, from events on the driver or from blocks on executors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from pgoutput_etl.changes.key_facts import KeyFacts, KeyHashes, facts_of, facts_of_rows
from pgoutput_etl.changes.window import Window
from pgoutput_etl.load.executors import are_hashed, checked_keys, hashed_keys_of_blocks
from pgoutput_etl.schema.table_shape import TableShape
from pgoutput_etl.transactions.status_lookup import StatusLookup

_BUCKET_ROWS = 1 << 21  # rows whose key hashes one task sorts


@dataclass(frozen=True, slots=True)
class BatchKeys:
    """hashes: of the keys (changes/key_facts.py); None if equal keys can't be recognized."""

    facts: KeyFacts
    hashes: KeyHashes | DataFrame | None

    def may_include(self, others: KeyHashes) -> bool:
        """True if a key has one of these hashes, or if that is unknown."""
        if self.hashes is None:
            return True
        if isinstance(self.hashes, np.ndarray):
            return bool(np.isin(others, self.hashes).any())
        return are_hashed(self.hashes, others)


def keys_of_events(events: pa.RecordBatch, shape: TableShape) -> BatchKeys:
    return BatchKeys(*facts_of(events, shape))


def keys_of_blocks(
    blocks: DataFrame, statuses: StatusLookup, window: Window, shape: TableShape, inserts: int
) -> BatchKeys:
    """Makes one pass over the table's blocks and types only the key columns. inserts: approximate number."""
    buckets = inserts // _BUCKET_ROWS + 1
    hashed = hashed_keys_of_blocks(blocks, statuses, window, shape, buckets)
    checked = checked_keys(hashed, shape, buckets).localCheckpoint(eager=False)  # BatchKeys.may_include reads it again
    facts = facts_of_rows(checked.drop("hashes").toArrow().to_pylist(), shape)
    return BatchKeys(facts, checked if facts.are_known else None)
