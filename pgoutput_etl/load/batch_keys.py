"""The keys of a batch's INSERTs to one table: on the driver, or in the batch's blocks."""

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

_BUCKET_ROWS = 1 << 21  # whose hashes one task sorts


@dataclass(frozen=True, slots=True)
class BatchKeys:
    """hashes: of the keys (key_facts.py), None if equal keys can't be told."""

    facts: KeyFacts
    hashes: KeyHashes | DataFrame | None

    def have_any(self, others: KeyHashes) -> bool:
        """Whether a key has one of these hashes, or may have it."""
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
    """One pass over the table's blocks, which types the key's columns alone. `inserts`: about how many there are."""
    buckets = inserts // _BUCKET_ROWS + 1
    hashed = hashed_keys_of_blocks(blocks, statuses, window, shape, buckets)
    checked = checked_keys(hashed, shape, buckets).localCheckpoint(eager=False)  # its hashes may be asked for
    facts = facts_of_rows(checked.drop("hashes").toArrow().to_pylist(), shape)
    return BatchKeys(facts, checked if facts.are_known else None)
