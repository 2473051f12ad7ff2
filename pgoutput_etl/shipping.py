"""The only place that ships the pure code to executors: files to blocks, and blocks to what is asked of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.blocks import BLOCK_SCHEMA, Kind, Packer, unpacked
from pgoutput_etl.changes import TableShape
from pgoutput_etl.connecting import frame
from pgoutput_etl.content import read_content
from pgoutput_etl.errors import ArchiveError
from pgoutput_etl.every_event import every_event, every_event_of
from pgoutput_etl.fast_events import event_batches
from pgoutput_etl.fates import DECIDED_BY, FATES, Fates
from pgoutput_etl.framing import Framing
from pgoutput_etl.identity import Hashes, KnownContents, Task
from pgoutput_etl.key_facts import (
    KeyHashes,
    fact_schema,
    facts_of_buckets,
    hash_schema,
    hashed_keys_of,
    have_any,
)
from pgoutput_etl.logical_messages import COUNTED_BY, LOGICAL_SCHEMA, messages_that_count
from pgoutput_etl.message_rows import MESSAGE_SCHEMA
from pgoutput_etl.parts import scan_error, scan_part
from pgoutput_etl.protecting import Protection, Withholding
from pgoutput_etl.relations import RelationVersions
from pgoutput_etl.spark import size_limit
from pgoutput_etl.spark_types import spark_schema
from pgoutput_etl.superseded import events_of, net_events_of, typed_events_of
from pgoutput_etl.tallies import TALLIED, CommitWindow, Tally, TallyRequest, places_in
from pgoutput_etl.versions import NO_SCOPE, RowPlaces, VersionSpan, spans_of
from pgoutput_etl.windows import Window
from pgoutput_etl.xids import XIDS

_HADOOP_GLOB = str.maketrans({c: "\\" + c for c in "\\*?[]{}"})
_CUT_OUT = pa.schema([("file", pa.int64()), ("offset", pa.int64()), ("bytes", pa.binary())])
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


def literal_paths(paths: Iterable[str]) -> list[str]:
    """So that Spark takes none of them for a glob."""
    return [path.translate(_HADOOP_GLOB) for path in paths]


def file_contents(spark: SparkSession, paths: Iterable[str], may_be_gone: bool = False) -> DataFrame:
    """Files as they are on storage (path, content). `may_be_gone`: one that isn't there any more is left out."""
    reader = spark.read.format("binaryFile").option("ignoreMissingFiles", str(may_be_gone).lower())
    return reader.load(literal_paths(paths)).select("path", "content")


def each_file(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, bytes]]:
    """Path and content, one file after the other."""
    for batch in batches:
        for path, content in zip(batch.column("path"), batch.column("content"), strict=True):
            yield path.as_py(), content.as_py()


def scan_files(
    spark: SparkSession,
    tasks: Mapping[str, Task],
    known: KnownContents,
    framing: Framing,
    salvages: bool,
    protection: Protection | Withholding | None = None,
) -> DataFrame:
    """Blocks (BLOCK_SCHEMA) of what is new in the files, by path, scanned where their content is read; of rows as
    `protection` leaves them.

    A file that can't be understood becomes one row with ERROR_TAG; with `salvages`, only if nothing in it can be.
    """
    max_size = size_limit(spark)

    def scan(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for path, content in each_file(batches):
            task = tasks[path]
            try:
                scanned = scan_part(path, content, task, known, framing, salvages, max_size)
            except ArchiveError as error:
                yield scan_error(error).note(task.number)
            else:
                yield from scanned.batches if protection is None else map(protection.rewritten, scanned.batches)

    if not tasks:
        return frame(spark, BLOCK_SCHEMA.empty_table())
    contents = file_contents(spark, tasks)
    return contents.mapInArrow(lambda batches: _packed(scan(batches), Kind.CHANGE), spark_schema(BLOCK_SCHEMA))


def blocks_of(rows: DataFrame, kind: Kind) -> DataFrame:
    """Change rows (MESSAGE_SCHEMA) as blocks."""
    return rows.mapInArrow(lambda batches: _packed(batches, kind), spark_schema(BLOCK_SCHEMA))


def _packed(batches: Iterable[pa.RecordBatch], kind: Kind) -> Iterator[pa.RecordBatch]:
    packer = Packer(kind)
    for batch in batches:
        if batch.num_rows:
            yield from packer.add(batch)
    yield from packer.rest()


def of_kind(blocks: DataFrame, *kinds: Kind) -> DataFrame:
    return blocks.where(F.col("kind").isin(*(kind.value for kind in kinds)))


def message_rows(blocks: DataFrame, names: Iterable[str] = MESSAGE_SCHEMA.names) -> DataFrame:
    """A row per message, or some columns of it: for what is rare."""
    schema = pa.schema([MESSAGE_SCHEMA.field(name) for name in names])

    def unpack(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in _each(batches):
            yield unpacked(block, schema.names)

    return blocks.select("rows", "head", "tuples").mapInArrow(unpack, spark_schema(schema))


def _each(batches: Iterable[pa.RecordBatch]) -> Iterator[Mapping[str, Any]]:
    """Blocks one after the other, their bytes where Arrow has them."""
    for batch in batches:
        for i in range(batch.num_rows):
            yield {name: _value(batch.column(name)[i]) for name in batch.schema.names}


def _value(scalar: pa.Scalar) -> Any:
    is_bytes = pa.types.is_binary(scalar.type) or pa.types.is_large_binary(scalar.type)
    return scalar.as_buffer() if is_bytes else scalar.as_py()


def tally(blocks: DataFrame, fates: Fates, request: TallyRequest) -> Tally:
    """One small row per task comes to the driver."""
    schema = pa.schema([("tally", pa.binary())])

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = Tally(request)
        for block in _each(batches):
            rows = fates.of_batch(unpacked(block, TALLIED))
            found.add(Kind(block["kind"]), block["relation"], rows, block["size"], fates)
        yield pa.RecordBatch.from_arrays([pa.array([found.to_json()], pa.binary())], schema=schema)

    looked_at = blocks.select("kind", "relation", "rows", "head", F.length("tuples").alias("size"))
    total = Tally(request)
    for row in looked_at.mapInArrow(count, spark_schema(schema)).toArrow().to_pylist():
        total.take(Tally.from_json(row["tally"]))
    return total


@dataclass(frozen=True, slots=True)
class Which:
    """Of transactions: those of a file from an oldest xid to a newest one, and those with these xids."""

    of_files: Mapping[int, tuple[int, int]]
    xids: frozenset[int]

    def chosen(self, file: pa.Array, xid: pa.Array) -> pa.Array:
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


def ended_transactions(blocks: DataFrame, fates: Fates, which: Which | None = None) -> DataFrame:
    """The ordinary ones within a file (xid, fate, commit_lsn, commit_ts, file, unit, changes, origin, origin_lsn), all
    or some."""

    def end(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in _each(batches):
            rows = fates.of_batch(unpacked(block, [*DECIDED_BY, "changes", "origin_lsn"]))
            decided = fates.decide(rows)
            names = pa.array([fate.value for fate in FATES]).take(pa.array(decided.fate))
            own = {"xid": decided.top_xid, "fate": names, "commit_lsn": decided.commit_lsn}
            own |= {"commit_ts": decided.commit_ts}
            own |= {name: rows.column(name) for name in ("file", "unit", "changes", "origin", "origin_lsn")}
            found = pa.RecordBatch.from_arrays([own[name] for name in _ENDED.names], schema=_ENDED)
            yield found if which is None else found.filter(which.chosen(rows.column("file"), own["xid"].fill_null(-1)))

    commits = of_kind(blocks, Kind.COMMIT).select("rows", "head", "tuples")
    return commits.mapInArrow(end, spark_schema(_ENDED))


def logical_messages(blocks: DataFrame, fates: Fates) -> DataFrame:
    """The Messages that count (LOGICAL_SCHEMA), of blocks of Messages."""

    def count(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in _each(batches):
            yield messages_that_count(fates.of_batch(unpacked(block, COUNTED_BY)), fates)

    return blocks.select("rows", "head", "tuples").mapInArrow(count, spark_schema(LOGICAL_SCHEMA))


def events_of_blocks(
    blocks: DataFrame, fates: Fates, window: Window, shape: TableShape, as_net: bool = False
) -> DataFrame:
    """Change events (shape.event_schema()) of a table, from its relation's blocks; `as_net`: of each key the last one,
    which one task finds out."""

    of_relation = _of_relation(blocks, shape)
    if as_net:
        return _converted(net_events_of, of_relation.coalesce(1), fates, window, shape)
    return _converted(events_of, of_relation, fates, window, shape)


def all_events_of_blocks(blocks: DataFrame, fates: Fates, window: Window, shape: TableShape) -> DataFrame:
    """The same without leaving out any that a later one makes void."""
    return _converted(typed_events_of, _of_relation(blocks, shape), fates, window, shape)


def every_event_of_blocks(blocks: DataFrame, fates: Fates, window: Window, shape: TableShape) -> DataFrame:
    """All change events of a table, truncates among them, from its relation's blocks."""
    return _converted(every_event_of, _of_relation(blocks, shape), fates, window, shape)


def hashed_keys_of_blocks(
    blocks: DataFrame, fates: Fates, window: Window, shape: TableShape, buckets: int
) -> DataFrame:
    """Hashes of a table's keys (key_facts.hash_schema), of blocks that have INSERTs alone."""

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from hashed_keys_of(_each(batches), fates, window, shape, buckets)

    return _of_relation(blocks, shape).mapInArrow(convert, spark_schema(hash_schema(shape)))


def checked_keys(hashed: DataFrame, shape: TableShape, buckets: int) -> DataFrame:
    """What buckets come to (key_facts.fact_schema)."""

    def check(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from facts_of_buckets(batches, shape)

    return hashed.repartition(buckets, "bucket").mapInArrow(check, spark_schema(fact_schema(shape)))


def are_hashed(hashed: DataFrame, others: KeyHashes) -> bool:
    """Whether one of the others is among the hashes."""
    schema = pa.schema([("found", pa.bool_())])

    def look_up(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pylist([{"found": have_any(batch.column("hashes"), others)}], schema)

    found = hashed.select("hashes").mapInArrow(look_up, spark_schema(schema))
    return bool(found.where("found").limit(1).count())


_EventsOf = Callable[[Iterable[Mapping[str, Any]], Fates, Window, TableShape], Iterator[pa.RecordBatch]]


def _of_relation(blocks: DataFrame, shape: TableShape) -> DataFrame:
    return blocks.where(F.col("relation") == shape.relation.oid).select("rows", "head", "tuples")


def _converted(events: _EventsOf, blocks: DataFrame, fates: Fates, window: Window, shape: TableShape) -> DataFrame:
    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from events(_each(batches), fates, window, shape)

    return blocks.mapInArrow(convert, spark_schema(shape.event_schema()))


def cut_out(spark: SparkSession, ranges: Mapping[str, Iterable[tuple[int, int, int]]]) -> DataFrame:
    """Bytes of files (decompressed) as they lie between two offsets: path -> (file's number, begin, end)."""
    max_size = size_limit(spark)

    def cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for path, content in each_file(batches):
            data = read_content(content, path, max_size).data
            for file, begin, end in ranges[path]:
                row = {"file": file, "offset": begin, "bytes": data[begin:end]}
                yield pa.RecordBatch.from_pylist([row], _CUT_OUT)

    contents = file_contents(spark, ranges, may_be_gone=True)
    return contents.mapInArrow(cut, spark_schema(_CUT_OUT))


def find_contents(spark: SparkSession, paths: Collection[str], known: KnownContents) -> dict[int, list[str]]:
    """By the numbers of `known`: the files that begin with that content, however they are compressed."""

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for path, content in each_file(batches):
            try:
                match = known.match(path, Hashes(read_content(content, path).data))
            except ArchiveError:
                continue
            if match.prefix is not None:
                yield pa.RecordBatch.from_pylist([{"file": match.prefix.number, "path": path}], schema)

    schema = pa.schema([("file", pa.int64()), ("path", pa.string())])
    found: dict[int, list[str]] = {}
    if paths:
        contents = file_contents(spark, paths)
        for row in contents.mapInArrow(find, spark_schema(schema)).toArrow().to_pylist():
            found.setdefault(row["file"], []).append(row["path"])
    return found


def typed_events(rows: DataFrame, shape: TableShape) -> DataFrame:
    """Change events (shape.event_schema()) from rows of changes.ROW_SCHEMA that belong to one table."""

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from event_batches(batch, shape)

    return rows.mapInArrow(convert, spark_schema(shape.event_schema()))


def every_typed_event(rows: DataFrame, shape: TableShape) -> DataFrame:
    """The same, truncates among them."""

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from every_event(batch, shape)

    return rows.mapInArrow(convert, spark_schema(shape.event_schema()))


_PLACE = [(name, pa.int64()) for name in ("commit_lsn", "file", "ordinal")]
_SPANS = pa.schema(
    [(name, pa.int64()) for name in ("relation", "generation", "number")]
    + [(f"{end}_{name}", kind) for end in ("first", "last") for name, kind in _PLACE]
)
_PLACES = pa.schema([("relation", pa.int64()), *_PLACE, ("scope", pa.int64())])


def version_spans(rows: DataFrame, versions: Mapping[int, RelationVersions]) -> dict[int, list[VersionSpan]]:
    """By OID, of committed rows of these relations: a few small rows per task come to the driver."""
    holds_from = {oid: each.holds_from for oid, each in versions.items()}

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for oid, places in places_by_relation(batch).items():
                for span in spans_of(places, holds_from[oid]):
                    values = (oid, span.generation, span.number, *span.first, *span.last)
                    arrays = [pa.array([value], pa.int64()) for value in values]
                    yield pa.RecordBatch.from_arrays(arrays, schema=_SPANS)

    wanted = _committed_places(rows, versions)
    found: dict[int, dict[tuple[int, int], VersionSpan]] = {}
    for oid, generation, number, *limits in _tuples(wanted.mapInArrow(find, spark_schema(_SPANS)).toArrow()):
        span = VersionSpan(generation, number, (limits[0], limits[1], limits[2]), (limits[3], limits[4], limits[5]))
        known = found.setdefault(oid, {}).get((generation, number), span)
        found[oid][generation, number] = known.joined(span)
    return {oid: list(spans.values()) for oid, spans in found.items()}


def row_places(rows: DataFrame, oids: Collection[int]) -> dict[int, RowPlaces]:
    """Of each committed row of these relations."""
    return places_by_relation(_committed_places(rows, oids).toArrow())


def _committed_places(rows: DataFrame, oids: Collection[int]) -> DataFrame:
    return rows.where(F.col("relation").isin(*oids)).select(*_PLACES.names)


def committed_places(blocks: DataFrame, fates: Fates, windows: Mapping[int, CommitWindow]) -> dict[int, RowPlaces]:
    """The same of blocks of changes."""

    def find(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for block in _each(batches):
            places = places_in(fates.of_batch(unpacked(block, TALLIED)), fates, block["relation"], windows)
            columns = (places.lsn, places.file, places.ordinal, places.scope)
            relation = np.full(len(places.lsn), block["relation"], np.int64)
            yield pa.RecordBatch.from_arrays([pa.array(column) for column in (relation, *columns)], schema=_PLACES)

    wanted = blocks.select("relation", "rows", "head")
    return places_by_relation(wanted.mapInArrow(find, spark_schema(_PLACES)).toArrow())


def places_by_relation(places: pa.RecordBatch | pa.Table) -> dict[int, RowPlaces]:
    """`places`: with the columns of _PLACES; scope NULL, or NO_SCOPE, of a row that was not streamed."""
    columns = [places.column(n).fill_null(NO_SCOPE).to_numpy(zero_copy_only=False) for n in _PLACES.names]
    relation, *others = columns
    found = {}
    for oid in np.unique(relation).tolist():
        chosen = np.flatnonzero(relation == oid)
        found[oid] = RowPlaces(*(column[chosen] for column in others))
    return found


def _tuples(table: pa.Table) -> Iterator[tuple[int, ...]]:
    yield from zip(*(column.to_pylist() for column in table.columns), strict=True)
