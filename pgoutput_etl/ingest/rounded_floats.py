"""Finds files whose sender rounded floats, by sampling rows of tables with float columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from pgoutput_etl.ingest.executors import iterate_blocks
from pgoutput_etl.ingest.rows import MessageRows
from pgoutput_etl.inspection.float_digits import DigitCounts, has_floats
from pgoutput_etl.protocol.decoder import read_tuple
from pgoutput_etl.scan.blocks import UNPACKED_BY, unpacked
from pgoutput_etl.scan.landed_tuples import RereadError
from pgoutput_etl.schema.relation_history import RelationVersions

_ROWS_PER_FILE = 100  # sampled from a block

_BLOCKS = 8  # sampled from a large batch: the driver reads at most 0.5 MB of each, or the part of a landed file


def files_with_rounded_floats(rows: MessageRows, changed: Collection[int]) -> list[int]:
    """The numbers of the files. changed: the relations with rows in the batch."""
    history = rows.assembly.relations
    every = {oid: history.versions(oid) for oid in history.oids() & {*changed}}
    versions = {oid: versions for oid, versions in every.items() if any(map(has_floats, versions.relations))}
    if not versions:
        return []
    totals: defaultdict[int, DigitCounts] = defaultdict(DigitCounts)
    for block in _sample(rows, versions):
        with suppress(RereadError):  # a hint only: the run reports a changed file where it matters
            _count(block, versions[block["relation"]], totals)
    return sorted(file for file, total in totals.items() if total.show_rounding and file not in rows.left_out)


def _sample(rows: MessageRows, oids: Collection[int]) -> Iterable[Mapping[str, Any]]:
    if rows.are_local:
        return iterate_blocks(rows.collect_changes(oids).to_batches())
    changes = rows.changes().where(F.col("relation").isin(*oids)).select("relation", *UNPACKED_BY)
    return [row.asDict() for row in changes.take(_BLOCKS)]  # reads few partitions, unlike `limit` before another step


def _count(block: Mapping[str, Any], versions: RelationVersions, totals: defaultdict[int, DigitCounts]) -> None:
    """Adds the digits of a block's floats. totals: by file."""
    rows = unpacked(block, ["file", "ordinal", "new"], _first_of_each(unpacked(block, ["file"]).column("file")))
    for file, ordinal, new in zip(*(rows.column(name).to_pylist() for name in rows.schema.names), strict=True):
        if new is None:
            continue
        relation = versions.relations[versions.at((file, ordinal), None) or 0]
        row = read_tuple(new)
        if len(row.kinds) == len(relation.columns):
            totals[file].add(relation, row)


def _first_of_each(files: pa.Array) -> pa.Array:
    """The numbers of each file's first rows."""
    numbers = files.to_numpy()
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    places = np.arange(len(numbers))
    return pa.array(places[places - np.repeat(starts, np.diff(starts, append=len(numbers))) < _ROWS_PER_FILE])
