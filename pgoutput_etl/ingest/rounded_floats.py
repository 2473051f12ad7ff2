"""Finds files whose sender rounded floats, by sampling rows of tables with float columns."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as F

from pgoutput_etl.ingest.executors import iterate_blocks
from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.inspection.float_digits import DigitCounts, has_floats
from pgoutput_etl.protocol.decoder import read_tuple
from pgoutput_etl.scan.blocks import UNPACKED_BY, unpacked
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.spark.arrow_types import spark_schema

_ROWS_PER_FILE = 500  # sampled from a block

_BLOCKS = 64  # sampled by Spark: a few megabytes of a large batch

_COUNTS = pa.schema([("file", pa.int64()), ("at_limit", pa.int64()), ("beyond", pa.int64())])


def files_with_rounded_floats(rows: MessageRows) -> list[int]:
    """The numbers of the files."""
    history = rows.assembly.relations
    every = {oid: history.versions(oid) for oid in history.oids()}
    versions = {oid: versions for oid, versions in every.items() if any(map(has_floats, versions.relations))}
    if not versions:
        return []
    if rows.are_local:
        counts = pa.Table.from_batches(_count(rows.collect_changes(versions).to_batches(), versions), _COUNTS)
    else:
        blocks = rows.changes().where(F.col("relation").isin(*versions)).select("relation", *UNPACKED_BY).limit(_BLOCKS)
        counts = blocks.mapInArrow(lambda batches: _count(batches, versions), spark_schema(_COUNTS)).toArrow()
    totals: defaultdict[int, DigitCounts] = defaultdict(DigitCounts)
    for row in counts.to_pylist():
        total = totals[row["file"]]
        total.at_limit += row["at_limit"]
        total.beyond += row["beyond"]
    return sorted(file for file, total in totals.items() if total.show_rounding and file not in rows.left_out)


def _count(batches: Iterable[pa.RecordBatch], versions: Mapping[int, RelationVersions]) -> Iterator[pa.RecordBatch]:
    """Counts the digits of floats, for each block and file. batches: blocks. Yields rows of _COUNTS."""
    for block in iterate_blocks(batches):
        counts = _count_block(block, versions[block["relation"]])
        rows = [{"file": file, "at_limit": c.at_limit, "beyond": c.beyond} for file, c in counts.items()]
        yield pa.RecordBatch.from_pylist(rows, _COUNTS)


def _count_block(block: Mapping[str, Any], versions: RelationVersions) -> dict[int, DigitCounts]:
    rows = unpacked(block, ["file", "ordinal", "new"])
    seen: Counter[int] = Counter()
    counts: defaultdict[int, DigitCounts] = defaultdict(DigitCounts)
    for file, ordinal, new in zip(*(rows.column(name) for name in rows.schema.names), strict=True):
        number = file.as_py()
        if not new.is_valid or seen[number] == _ROWS_PER_FILE:
            continue
        seen[number] += 1
        relation = versions.relations[versions.at((number, ordinal.as_py()), None) or 0]
        row = read_tuple(new.as_py())
        if len(row.kinds) == len(relation.columns):
            counts[number].add(relation, row)
    return counts
