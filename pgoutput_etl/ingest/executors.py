"""The only place that ships the pure code to executors: files to blocks, and blocks to what is asked of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pgoutput_etl.scan.blocks import BLOCK_SCHEMA, BlockKind, Packer, unpacked
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.schema.relation_history import RelationVersions
from pgoutput_etl.schema.version_spans import NO_SCOPE, RowPositions, VersionSpan, spans_of
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.transactions.logical_messages import COUNTED_BY, LOGICAL_SCHEMA, messages_that_count
from pgoutput_etl.transactions.statistics import (
    COUNTED_KINDS,
    BatchStatistics,
    CommitWindow,
    StatisticsRequest,
    positions_in,
)
from pgoutput_etl.transactions.status_lookup import DECIDED_BY, STATUSES, StatusLookup
from pgoutput_etl.xid import XIDS

_ENDED = pa.schema(
    [
        ("xid", pa.int64()),
        ("fate", pa.string()),
        ("commit_lsn", pa.int64()),
        ("commit_ts", pa.int64()),
        ("file", pa.int64()),
        ("unit", pa.int32()),
        ("changes", pa.int64()),
        ("origin", pa.string()),
        ("origin_lsn", pa.int64()),
    ]
)

_OF_COMMIT = pa.schema(
    [
        ("scope", pa.int64()),
        ("fate", pa.string()),
        ("commit_lsn", pa.int64()),
        ("commit_ts", pa.int64()),
        ("top_xid", pa.int64()),
    ]
)


def blocks_of(rows: DataFrame, kind: BlockKind) -> DataFrame:
    """Change rows (MESSAGE_SCHEMA) as blocks."""
    return rows.mapInArrow(lambda batches: _packed(batches, kind), spark_schema(BLOCK_SCHEMA))


def _packed(batches: Iterable[pa.RecordBatch], kind: BlockKind) -> Iterator[pa.RecordBatch]:
    packer = Packer(kind)
    for batch in batches:
        if batch.num_rows:
            yield from packer.add(batch)
    yield from packer.rest()


def of_kind(blocks: DataFrame, *kinds: BlockKind) -> DataFrame:
    return blocks.where(F.col("kind").isin(*(kind.value for kind in kinds)))


def message_rows(blocks: DataFrame, names: Iterable[str] = MESSAGE_SCHEMA.names) -> DataFrame:
    """A row per message, or some columns of it: for what is rare."""
    schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in names])

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in _each_row(batches):
            yield unpacked(block, schema.names)

    return blocks.select("rows", "head", "tuples").mapInArrow(unpack, spark_schema(schema))


def rows_with_status(blocks: DataFrame, statuses: StatusLookup) -> DataFrame:
    """Message rows of the batch's files with the status (column `fate`), scope and commit of their transaction."""
    schema = pa.schema([*(field for field in MESSAGE_SCHEMA if field.name not in _OF_COMMIT.names), *_OF_COMMIT])
    names = pa.array([status.value for status in STATUSES])

    def look_up(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in _each_row(batches):
            rows = statuses.of_batch(unpacked(block, MESSAGE_SCHEMA.names))
            decided = statuses.decide(rows)
            columns = {name: rows.column(name) for name in rows.schema.names}
            columns |= {name: getattr(decided, name) for name in ("scope", "commit_lsn", "commit_ts", "top_xid")}
            columns["fate"] = names.take(pa.array(decided.status))
            yield pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema.names)

    return blocks.select("rows", "head", "tuples").mapInArrow(look_up, spark_schema(schema))


def _each_row(batches: Iterable[pa.RecordBatch]) -> Iterator[Mapping[str, Any]]:
    """Blocks one after the other, their bytes where Arrow has them."""
    for batch in batches:
        for i in range(batch.num_rows):
            yield {name: _value(batch.column(name)[i]) for name in batch.schema.names}


def _value(scalar: pa.Scalar) -> Any:
    is_bytes = pa.types.is_binary(scalar.type) or pa.types.is_large_binary(scalar.type)
    return scalar.as_buffer() if is_bytes else scalar.as_py()


def batch_statistics(blocks: DataFrame, statuses: StatusLookup, request: StatisticsRequest) -> BatchStatistics:
    """One small row per task comes to the driver."""
    schema = pa.schema([("tally", pa.binary())])

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = BatchStatistics(request)
        for block in _each_row(batches):
            rows = statuses.of_batch(unpacked(block, COUNTED_KINDS))
            found.add(BlockKind(block["kind"]), block["relation"], rows, block["size"], statuses)
        yield pa.RecordBatch.from_arrays([pa.array([found.to_json()], pa.binary())], schema=schema)

    looked_at = blocks.select("kind", "relation", "rows", "head", F.length("tuples").alias("size"))
    total = BatchStatistics(request)
    for row in looked_at.mapInArrow(count, spark_schema(schema)).toArrow().to_pylist():
        total.merge(BatchStatistics.from_json(row["tally"]))
    return total


@dataclass(frozen=True, slots=True)
class TransactionFilter:
    """Of transactions: those of a file from an oldest xid to a newest one, and those with these xids."""

    of_files: Mapping[int, tuple[int, int]]
    xids: frozenset[int]

    def select(self, file: pa.Array, xid: pa.Array) -> pa.Array:
        """Which rows; `xid` without NULL."""
        found = pc.is_in(xid, pa.array(sorted(self.xids), pa.int64()))
        for number in pc.unique(file).to_pylist():
            if number in self.of_files:
                oldest, newest = self.of_files[number]
                # Counted from the oldest, as xids begin again: those that are not newer than the newest.
                since = pc.bit_wise_and(pc.subtract(xid, oldest), XIDS - 1)
                within = pc.less_equal(since, (newest - oldest) % XIDS)
                found = pc.or_(found, pc.and_(pc.equal(file, number), within))
        return found


def ended_transactions(blocks: DataFrame, statuses: StatusLookup, which: TransactionFilter | None = None) -> DataFrame:
    """The ordinary ones within a file (xid, fate, commit_lsn, commit_ts, file, unit, changes, origin, origin_lsn), all
    or some."""

    def end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in _each_row(batches):
            rows = statuses.of_batch(unpacked(block, [*DECIDED_BY, "changes", "origin_lsn"]))
            decided = statuses.decide(rows)
            names = pa.array([status.value for status in STATUSES]).take(pa.array(decided.status))
            own = {"xid": decided.top_xid, "fate": names, "commit_lsn": decided.commit_lsn}
            own |= {"commit_ts": decided.commit_ts}
            own |= {name: rows.column(name) for name in ("file", "unit", "changes", "origin", "origin_lsn")}
            found = pa.RecordBatch.from_arrays([own[name] for name in _ENDED.names], schema=_ENDED)
            yield found if which is None else found.filter(which.select(rows.column("file"), own["xid"].fill_null(-1)))

    commits = of_kind(blocks, BlockKind.COMMIT).select("rows", "head", "tuples")
    return commits.mapInArrow(end, spark_schema(_ENDED))


def logical_messages(blocks: DataFrame, statuses: StatusLookup) -> DataFrame:
    """The Messages that count (LOGICAL_SCHEMA), of blocks of Messages."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in _each_row(batches):
            yield messages_that_count(statuses.of_batch(unpacked(block, COUNTED_BY)), statuses)

    return blocks.select("rows", "head", "tuples").mapInArrow(count, spark_schema(LOGICAL_SCHEMA))


_POSITION = [(name, pa.int64()) for name in ("commit_lsn", "file", "ordinal")]

_SPANS = pa.schema(
    [(name, pa.int64()) for name in ("relation", "generation", "number")]
    + [(f"{end}_{name}", kind) for end in ("first", "last") for name, kind in _POSITION]
)

_POSITIONS = pa.schema([("relation", pa.int64()), *_POSITION, ("scope", pa.int64())])


def version_spans(rows: DataFrame, versions: Mapping[int, RelationVersions]) -> dict[int, list[VersionSpan]]:
    """By OID, of committed rows of these relations: a few small rows per task come to the driver."""
    holds_from = {oid: each.holds_from for oid, each in versions.items()}

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for oid, places in positions_by_relation(batch).items():
                for span in spans_of(places, holds_from[oid]):
                    values = (oid, span.generation, span.number, *span.first, *span.last)
                    arrays = [pa.array([value], pa.int64()) for value in values]
                    yield pa.RecordBatch.from_arrays(arrays, schema=_SPANS)

    wanted = _committed_positions(rows, versions)
    found: dict[int, dict[tuple[int, int], VersionSpan]] = {}
    for oid, generation, number, *limits in _tuples(wanted.mapInArrow(find, spark_schema(_SPANS)).toArrow()):
        span = VersionSpan(generation, number, (limits[0], limits[1], limits[2]), (limits[3], limits[4], limits[5]))
        known = found.setdefault(oid, {}).get((generation, number), span)
        found[oid][generation, number] = known.joined(span)
    return {oid: list(spans.values()) for oid, spans in found.items()}


def row_positions(rows: DataFrame, oids: Collection[int]) -> dict[int, RowPositions]:
    """Of each committed row of these relations."""
    return positions_by_relation(_committed_positions(rows, oids).toArrow())


def _committed_positions(rows: DataFrame, oids: Collection[int]) -> DataFrame:
    return rows.where(F.col("relation").isin(*oids)).select(*_POSITIONS.names)


def committed_positions(
    blocks: DataFrame, statuses: StatusLookup, windows: Mapping[int, CommitWindow]
) -> dict[int, RowPositions]:
    """The same of blocks of changes."""

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in _each_row(batches):
            places = positions_in(
                statuses.of_batch(unpacked(block, COUNTED_KINDS)), statuses, block["relation"], windows
            )
            columns = (places.lsn, places.file, places.ordinal, places.scope)
            relation = np.full(len(places.lsn), block["relation"], np.int64)
            yield pa.RecordBatch.from_arrays([pa.array(column) for column in (relation, *columns)], schema=_POSITIONS)

    wanted = blocks.select("relation", "rows", "head")
    return positions_by_relation(wanted.mapInArrow(find, spark_schema(_POSITIONS)).toArrow())


def positions_by_relation(places: pa.RecordBatch | pa.Table) -> dict[int, RowPositions]:
    """`places`: with the columns of _PLACES; scope NULL, or NO_SCOPE, of a row that was not streamed."""
    columns = [places.column(n).fill_null(NO_SCOPE).to_numpy(zero_copy_only=False) for n in _POSITIONS.names]
    relation, *others = columns
    found = {}
    for oid in np.unique(relation).tolist():
        chosen = np.flatnonzero(relation == oid)
        found[oid] = RowPositions(*(column[chosen] for column in others))
    return found


def _tuples(table: pa.Table) -> Iterator[tuple[int, ...]]:
    yield from zip(*(column.to_pylist() for column in table.columns), strict=True)
