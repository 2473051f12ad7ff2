"""Runs Spark-free code on executors: turns blocks of message rows into statistics, transactions, and positions."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from pgoutput_etl.ingest.scanned_blocks import of_kind
from pgoutput_etl.scan.blocks import BLOCK_SCHEMA, UNPACKED_BY, BlockKind, Packer, unpacked
from pgoutput_etl.scan.landed_tuples import TupleFile
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.schema.version_spans import RowPositions
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.connect import is_connect
from pgoutput_etl.spark.workers import freeze_modules
from pgoutput_etl.transactions.logical_messages import COUNTED_BY, LOGICAL_SCHEMA, messages_that_count
from pgoutput_etl.transactions.statistics import (
    COUNTED_KINDS,
    BatchStatistics,
    CommitRange,
    StatisticsRequest,
    positions_in,
)
from pgoutput_etl.transactions.status_lookup import DECIDED_BY, StatusLookup
from pgoutput_etl.xid import XIDS

_LOOKED_UP = ("scope", "commit_lsn", "commit_ts", "top_xid")  # a transaction's attributes other than its status

_WITH_STATUS = pa.schema(
    [
        *(field for field in MESSAGE_SCHEMA if field.name not in _LOOKED_UP),
        *((name, pa.int64()) for name in _LOOKED_UP),
        ("fate", pa.string()),
    ]
)

ENDED_SCHEMA = pa.schema(
    [
        *(_WITH_STATUS.field(name) for name in ("xid", "fate", "commit_lsn", "commit_ts")),
        *(_WITH_STATUS.field(name) for name in ("file", "unit", "changes", "origin", "origin_lsn")),
    ]
)


def blocks_of(rows: DataFrame, kind: BlockKind) -> DataFrame:
    """Packs change rows (MESSAGE_SCHEMA) into blocks."""
    return rows.mapInArrow(lambda batches: pack_blocks(batches, kind), spark_schema(BLOCK_SCHEMA))


def pack_blocks(
    batches: Iterable[pa.RecordBatch], kind: BlockKind, landed: dict[int, TupleFile] | None = None
) -> Iterator[pa.RecordBatch]:
    """landed: as in Packer; files may be added while `batches` is read."""
    packer = Packer(kind, {} if landed is None else landed)
    for batch in batches:
        if batch.num_rows:
            yield from packer.add(batch)
    yield from packer.rest()


def message_rows(blocks: DataFrame, names: Iterable[str] = MESSAGE_SCHEMA.names) -> DataFrame:
    """One row per message, with some or all columns. Slow, for rare cases only."""
    schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in names])
    return _map_blocks(blocks, lambda block: unpacked(block, schema.names), schema)


def rows_with_status(blocks: DataFrame, statuses: StatusLookup) -> DataFrame:
    """Message rows of the batch's files with the status (column `fate`), scope, and commit of their transactions."""

    return _map_blocks(blocks, lambda block: with_status(block, statuses), _WITH_STATUS)


def with_status(block: Mapping[str, Any], statuses: StatusLookup) -> pa.RecordBatch:
    """Like `rows_with_status`, for one block."""
    rows = statuses.of_batch(unpacked(block, MESSAGE_SCHEMA.names))
    decided = statuses.decide(rows)
    columns = {name: rows.column(name) for name in rows.schema.names} | {"fate": decided.names}
    columns |= {name: getattr(decided, name) for name in _LOOKED_UP}
    return pa.RecordBatch.from_arrays([columns[name] for name in _WITH_STATUS.names], _WITH_STATUS.names)


def _map_blocks(
    blocks: DataFrame, function: Callable[[Mapping[str, Any]], pa.RecordBatch], schema: pa.Schema
) -> DataFrame:
    """Applies a function to each block, on executors."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return map(function, iterate_blocks(batches))

    return blocks.select(*UNPACKED_BY).mapInArrow(run, spark_schema(schema))


def iterate_blocks(batches: Iterable[pa.RecordBatch]) -> Iterator[Mapping[str, Any]]:
    """Yields one block after another, without copying its bytes out of Arrow."""
    freeze_modules()
    for batch in batches:
        for i in range(batch.num_rows):
            yield {name: _value(batch.column(name)[i]) for name in batch.schema.names}


def _value(scalar: pa.Scalar) -> Any:
    is_bytes = pa.types.is_binary(scalar.type) or pa.types.is_large_binary(scalar.type)
    return scalar.as_buffer() if is_bytes else scalar.as_py()


def statistics_of(
    blocks: Iterable[Mapping[str, Any]], statuses: StatusLookup, request: StatisticsRequest
) -> BatchStatistics:
    """Counts the rows of blocks. blocks: with `kind`, `relation`, `rows`, `head`, and `size`."""
    statistics = BatchStatistics(request)
    for block in blocks:
        rows = statuses.of_batch(unpacked(block, COUNTED_KINDS))
        statistics.add(BlockKind(block["kind"]), block["relation"], rows, block["size"], statuses)
    return statistics


def batch_statistics(blocks: DataFrame, statuses: StatusLookup, request: StatisticsRequest) -> BatchStatistics:
    """Like `statistics_of`, on executors: each task returns one small row, and the driver adds them up."""
    schema = pa.schema([("statistics", pa.binary())])

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        statistics = statistics_of(iterate_blocks(batches), statuses, request)
        counted = replace(statistics, request=StatisticsRequest())  # the driver has the request
        yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(counted)], pa.binary())], schema=schema)

    sized = blocks.select("kind", "relation", "rows", "head", "size")
    if not is_connect(blocks.sparkSession):  # heads are small, and a task costs as much as many blocks
        sized = sized.coalesce(blocks.sparkSession.sparkContext.defaultParallelism)
    total = BatchStatistics(request)
    for row in sized.mapInArrow(count, spark_schema(schema)).toArrow().to_pylist():
        total.merge(pickle.loads(row["statistics"]))
    return total


_Rows = TypeVar("_Rows", pa.RecordBatch, pa.Table)


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """Selects transactions by file number and range of xids (oldest, newest), and transactions with one of `xids`."""

    ranges: Mapping[int, tuple[int, int]]
    xids: frozenset[int]

    def filtered(self, ended: _Rows) -> _Rows:
        """The selected rows of `ended` (ENDED_SCHEMA)."""
        file, xid = ended.column("file"), ended.column("xid").fill_null(-1)
        selected = pc.is_in(xid, pa.array(sorted(self.xids), pa.int64()))
        for number in pc.unique(file).to_pylist():
            if number in self.ranges:
                oldest, newest = self.ranges[number]
                # xids wrap around: compare their distances from the oldest.
                distance = pc.bit_wise_and(pc.subtract(xid, oldest), XIDS - 1)
                within = pc.less_equal(distance, (newest - oldest) % XIDS)
                selected = pc.or_(selected, pc.and_(pc.equal(file, number), within))
        return ended.filter(selected)


def ended_transactions(blocks: DataFrame, statuses: StatusLookup, which: TransactionFilter | None = None) -> DataFrame:
    """Ordinary transactions within one file (columns of ENDED_SCHEMA), filtered by `which`."""

    def end(block: Mapping[str, Any]) -> pa.RecordBatch:
        ended = ended_in(block, statuses)
        return ended if which is None else which.filtered(ended)

    return _map_blocks(of_kind(blocks, BlockKind.COMMIT), end, ENDED_SCHEMA)


def ended_in(block: Mapping[str, Any], statuses: StatusLookup) -> pa.RecordBatch:
    """The transactions in a block of Commits."""
    rows = statuses.of_batch(unpacked(block, [*DECIDED_BY, "changes", "origin_lsn"]))
    decided = statuses.decide(rows)
    columns = [decided.top_xid, decided.names, decided.commit_lsn, decided.commit_ts]
    columns += [rows.column(name) for name in ("file", "unit", "changes", "origin", "origin_lsn")]
    return pa.RecordBatch.from_arrays(columns, schema=ENDED_SCHEMA)


def logical_messages(blocks: DataFrame, statuses: StatusLookup) -> DataFrame:
    """The Messages that count, as LOGICAL_SCHEMA. blocks: only of Messages."""

    def count(block: Mapping[str, Any]) -> pa.RecordBatch:
        return messages_that_count(statuses.of_batch(unpacked(block, COUNTED_BY)), statuses)

    return _map_blocks(blocks, count, LOGICAL_SCHEMA)


_POSITIONS = pa.schema([(name, pa.int64()) for name in ("relation", "commit_lsn", "file", "ordinal", "scope")])


def committed_changes(blocks: DataFrame, statuses: StatusLookup, windows: Mapping[int, CommitRange]) -> DataFrame:
    """The position of each committed change: relation, commit_lsn, file, ordinal, and scope. windows: the commits to
    use, by OID; without a window, all of them."""

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _positions(iterate_blocks(batches), statuses, windows)

    return blocks.select("relation", "rows", "head").mapInArrow(find, spark_schema(_POSITIONS))


def committed_positions(
    blocks: DataFrame, statuses: StatusLookup, windows: Mapping[int, CommitRange]
) -> dict[int, RowPositions]:
    """The positions of all committed changes, by OID. windows: as in `committed_changes`."""
    return _by_relation(committed_changes(blocks, statuses, windows).toArrow())


def positions_of(
    blocks: Iterable[Mapping[str, Any]], statuses: StatusLookup, windows: Mapping[int, CommitRange]
) -> dict[int, RowPositions]:
    """Like `committed_positions`, but on the driver."""
    return _by_relation(pa.Table.from_batches(_positions(blocks, statuses, windows), _POSITIONS))


def _positions(
    blocks: Iterable[Mapping[str, Any]], statuses: StatusLookup, windows: Mapping[int, CommitRange]
) -> Iterator[pa.RecordBatch]:
    """Yields rows with the columns of _POSITIONS. blocks: `relation`, `rows`, and `head`."""
    for block in blocks:
        rows = statuses.of_batch(unpacked(block, COUNTED_KINDS))
        positions = positions_in(rows, statuses, block["relation"], windows)
        columns = (positions.lsn, positions.file, positions.ordinal, positions.scope)
        relation = np.full(len(positions.lsn), block["relation"], np.int64)
        yield pa.RecordBatch.from_arrays([pa.array(column) for column in (relation, *columns)], schema=_POSITIONS)


def _by_relation(positions: pa.Table) -> dict[int, RowPositions]:
    """Groups positions by the relation's OID. positions: with the columns of _POSITIONS."""
    relation, *others = (positions.column(name).to_numpy() for name in _POSITIONS.names)
    oids = np.unique(relation).tolist()
    return {oid: RowPositions(*(column[relation == oid] for column in others)) for oid in oids}
