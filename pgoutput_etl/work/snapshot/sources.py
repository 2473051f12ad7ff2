"""Reads a snapshot's rows from a server or files, in blocks, in the form of replicated INSERTs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from heapq import heappop, heappush
from itertools import islice
from posixpath import basename, dirname
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.answers.verify.row_text import copied_files, csv_header
from pgoutput_etl.compression import decompress
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.ingest.binary_files import map_files, read_file
from pgoutput_etl.ingest.executors import pack_blocks
from pgoutput_etl.ingest.listing import size_limit, sizes_of
from pgoutput_etl.masking.mask_tuples import MaskedVersion
from pgoutput_etl.postgres import queries
from pgoutput_etl.postgres.catalog import QUERY, Catalog, CatalogTable, read_catalog
from pgoutput_etl.postgres.copy_format import Span, binary_spans, csv_tuples, record_spans, text_spans, tuple_of
from pgoutput_etl.postgres.dump import DumpedTable, read_toc
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.scan.blocks import BLOCK_BYTES, BLOCK_SCHEMA, BlockKind
from pgoutput_etl.scan.message_row import MESSAGE_SCHEMA
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.workers import freeze_modules
from pgoutput_etl.targets.plan import BEFORE_FILES, KeyRanges
from pgoutput_etl.timestamps import microseconds_of
from pgoutput_etl.work.snapshot.request import RowFormat, SnapshotRequest

if TYPE_CHECKING:
    from pgoutput_etl.postgres.live_server import ServerMoment

_SMALL = 1 << 26  # bytes of a table that one connection reads

_STATEMENT = 1 << 13  # bytes that a connection reads in the time that a COPY takes at least

_PART = 1 << 30  # bytes of the tables that one batch loads

_INTEGERS = (20, 21, 23)  # OIDs of int8, int2 and int4

_TID_RANGE_SCANS_SINCE = 140_000  # older servers read the whole table for every range of pages

_SUFFIXES = ("", ".gz", ".lz4", ".zst")

_BATCH_ROWS = 4096

_ROWS_OF_TASK = 33  # bits of the row numbers that a task assigns

_REWRITTEN = (
    "rewritten (TRUNCATE, ALTER TABLE, VACUUM FULL) since the snapshot was taken, which doesn't see the new rows: load "
    "it again, with a new snapshot"
)


class RowFiles(Protocol):
    """Files that contain the rows of one or more tables."""

    def names(self, table: str) -> list[str] | None:
        """Column names of schema.table in any order, or None if the files don't contain them."""

    def of_table(self, table: str, columns: Sequence[str], /) -> TableFiles:
        """The files of schema.table. columns: the table's, for files that don't name theirs. Raises ConfigError."""


@dataclass(frozen=True, slots=True)
class TableFiles:
    """The files of one table. sizes: in bytes, by path. names: of a row's fields. spans: splits a file's content into
    rows. is_binary: values are in PostgreSQL's binary format."""

    sizes: Mapping[str, int]
    names: Sequence[str]
    spans: Callable[[bytes, str], Iterator[Span]]
    is_binary: bool = False

    def blocks(self, spark: SparkSession, inserts: Inserts) -> DataFrame:
        """The rows, with BLOCK_SCHEMA."""
        limit, positions = size_limit(spark), [self.names.index(column.name) for column in inserts.relation.columns]
        spans, kind = self.spans, b"b" if self.is_binary else b"t"

        def tuples(files: Iterator[tuple[str, bytes]]) -> Iterator[tuple[Inserts, pa.Array]]:
            for path, content in files:
                rows = spans(decompress(content, path, limit), path)
                while batch := list(islice(rows, _BATCH_ROWS)):
                    sent = [tuple_of([fields[position] for position in positions], kind) for _, _, fields in batch]
                    yield inserts, pa.array(sent, pa.binary())

        return map_files(spark, self.sizes, lambda files: _blocks(tuples(files)), BLOCK_SCHEMA, self.sizes)


@dataclass(frozen=True, slots=True)
class Inserts:
    """The rows of a table, as if inserted by a transaction before all files that committed at `lsn`. time: microseconds
    since 2000-01-01 UTC. version: masks them."""

    relation: Relation
    lsn: int
    time: int | None
    version: MaskedVersion | None = None

    def messages(self, new: pa.Array, first: int) -> pa.RecordBatch:
        """new: TupleData of the relation's columns. first: number of the first row."""
        count = len(new)
        numbers = pa.array(np.arange(first, first + count))
        same = {"file": BEFORE_FILES, "tag": "I", "relation": self.relation.oid, "commit_lsn": self.lsn}
        same["commit_ts"] = self.time
        arrays = {field.name: pa.repeat(pa.scalar(same.get(field.name), field.type), count) for field in MESSAGE_SCHEMA}
        new = new if self.version is None else self.version.mask(new)
        return pa.RecordBatch.from_pydict({**arrays, "ordinal": numbers, "offset": numbers, "new": new}, MESSAGE_SCHEMA)


def _blocks(parts: Iterator[tuple[Inserts, pa.Array]]) -> Iterator[pa.RecordBatch]:
    """Runs in a Spark task. Returns blocks of rows. parts: TupleData."""

    def messages() -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        first = 0 if context is None else context.partitionId() << _ROWS_OF_TASK
        for inserts, new in parts:
            step = max(1, len(new) * BLOCK_BYTES // new.nbytes)
            for begin in range(0, len(new), step):
                yield inserts.messages(new[begin : begin + step], first + begin)
            first += len(new)

    return pack_blocks(messages(), BlockKind.CHANGE)


@dataclass(frozen=True, slots=True)
class TableCopy:
    """A COPY statement that reads a share of a table's rows. bytes: the share's approximate size."""

    inserts: Inserts
    statement: str
    bytes: int


@dataclass(frozen=True, slots=True)
class TableSize:
    """Size on the server. rows: approximate number, None if unknown."""

    pages: int
    bytes: int
    rows: int | None


@dataclass(frozen=True)
class SnapshotServer:
    """moment: the snapshot in which its tables are read."""

    spark: SparkSession
    moment: ServerMoment
    request: SnapshotRequest

    @cached_property
    def catalog(self) -> Catalog:
        [row] = self.moment.ask(QUERY)
        return read_catalog(row["catalog"], self.request.publications, self.request.wants)

    @cached_property
    def tables(self) -> dict[int, CatalogTable]:
        """The server's tables, by OID."""
        return {table.relation.oid: table for table in self.catalog.tables}

    @cached_property
    def _sizes(self) -> dict[int, TableSize]:
        """The tables' sizes, by OID."""
        rows = self.moment.ask(queries.sizes(self.tables))
        return {row["oid"]: TableSize(row["pages"] or 0, row["bytes"] or 0, row["rows"]) for row in rows}

    def size(self, relations: Iterable[Relation]) -> TableSize:
        """The total size of these tables."""
        sizes = [self._sizes[relation.oid] for relation in relations]
        rows = [s.rows for s in sizes if s.rows is not None]
        total = sum(rows) if len(rows) == len(sizes) else None
        return TableSize(sum(s.pages for s in sizes), sum(s.bytes for s in sizes), total)

    @cached_property
    def time(self) -> int:
        """The request's time or, without one, the server's, in microseconds since 2000-01-01 UTC."""
        if self.request.time is not None:
            return microseconds_of(self.request.time)
        [row] = self.moment.ask(queries.TIME)
        return int(row["time"])

    def parts(self, relations: Sequence[Relation]) -> list[list[Relation]]:
        """Splits tables into batches of at most a GiB, or of a single larger table, so that batches add little to the
        total time. The tables of a batch are read together."""
        parts, size = list[list[Relation]](), 0
        for relation in sorted(relations, key=lambda relation: self._sizes[relation.oid].bytes):
            size += self._sizes[relation.oid].bytes
            if not parts or size > _PART:
                parts.append([])
                size = self._sizes[relation.oid].bytes
            parts[-1].append(relation)
        return parts

    def copies(self, inserts: Inserts, ranges: KeyRanges = None, key: str = "") -> list[TableCopy]:
        """COPY statements that read the table in parallel, each with a share of the rows. ranges: limits on the column
        `key`."""
        relation, names = inserts.relation, [column.name for column in inserts.relation.columns]
        table = self.tables[relation.oid]
        if ranges is None:
            shares = self._shares(table)
        else:
            count = min(self.request.connections, len(ranges))
            shares = [queries.within(key, ranges[i::count]) for i in range(count)]
        conditions = [[share] if table.filter is None else [table.filter, share] for share in shares]
        named = (relation.namespace, relation.name, names, table.is_root)
        size = self._sizes[relation.oid].bytes // len(shares)
        return [TableCopy(inserts, queries.copied_rows(*named, both), size) for both in conditions]

    def _shares(self, table: CatalogTable) -> list[str]:
        """The conditions that divide a table: ranges of pages or, where the server would read the whole table for each
        of these, ranges of the key's first column if it is an integer."""
        relation, count = table.relation, self.request.connections
        if count == 1 or self._sizes[relation.oid].bytes < _SMALL:
            return ["true"]
        if not table.is_root and self.catalog.version >= _TID_RANGE_SCANS_SINCE:
            return queries.shares_of_pages(self._sizes[relation.oid].pages, count)
        key = next((c for c in relation.columns if c.is_key and c.name in table.not_null), None)
        if key is None or key.type_oid not in _INTEGERS:
            return ["true"]
        query = queries.key_limits(relation.namespace, relation.name, key.name, table.is_root)
        [limits] = self.moment.ask(query)
        return queries.shares_of_integers(key.name, limits["low"], limits["high"], count)

    def blocks(self, copies: Sequence[TableCopy]) -> DataFrame:
        """The rows as BLOCK_SCHEMA, read over at most as many connections as the request allows."""
        snapshot, parts = self.moment.shared, _spread(copies, self.request.connections)
        count = len(parts)

        def copied(part: Sequence[TableCopy]) -> Iterator[tuple[Inserts, pa.Array]]:
            for number, data in snapshot.copied([copy.statement for copy in part]):
                inserts = part[number].inserts
                yield inserts, csv_tuples(data, len(inserts.relation.columns))

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            freeze_modules()
            return _blocks(rows for batch in batches for i in batch.column(0).to_pylist() for rows in copied(parts[i]))

        return self.spark.range(0, count, 1, count).mapInArrow(read, spark_schema(BLOCK_SCHEMA))

    def rewritten(self, oids: Iterable[int]) -> dict[int, str]:
        """The tables that were rewritten since the snapshot, which therefore sees none of their rows: by OID, with the
        reason."""
        return {row["oid"]: _REWRITTEN for row in self.moment.ask(queries.rewritten(oids))}


def _spread(copies: Sequence[TableCopy], connections: int) -> list[list[TableCopy]]:
    """The statements of each connection, with about the same number of bytes each. Small tables come first: if one of
    them can't be read, little has been read in vain."""
    parts = [list[TableCopy]() for _ in range(min(len(copies), connections))]
    loads = [(0, number) for number in range(len(parts))]
    for copy in sorted(copies, key=lambda copy: copy.bytes, reverse=True):
        size, number = heappop(loads)
        parts[number].insert(0, copy)
        heappush(loads, (size + copy.bytes + _STATEMENT, number))
    return parts


@dataclass(frozen=True)
class CsvFiles:
    spark: SparkSession
    path: str

    @cached_property
    def header(self) -> list[str]:
        return csv_header(self.spark, self.path)

    def names(self, _: str) -> list[str] | None:
        return self.header

    def of_table(self, *_: object) -> TableFiles:
        return TableFiles(copied_files(self.spark, "--csv", self.path), self.header, _csv_spans)


@dataclass(frozen=True)
class BinaryFiles:
    """columns: the files' columns in order; empty if they are the relation's."""

    spark: SparkSession
    path: str
    columns: tuple[str, ...]

    def names(self, _: str) -> list[str] | None:
        return list(self.columns) or None

    def of_table(self, _: str, columns: Sequence[str]) -> TableFiles:
        names, sizes = self.columns or columns, copied_files(self.spark, "--copy", self.path)
        return TableFiles(sizes, names, partial(binary_spans, width=len(names)), is_binary=True)


@dataclass(frozen=True)
class Dump:
    """A folder written by pg_dump -Fd."""

    spark: SparkSession
    path: str

    @cached_property
    def tables(self) -> Mapping[str, DumpedTable]:
        """The dumped tables, by schema.table."""
        if "toc.dat" not in self._files:
            raise ConfigError(f"--dump: {self.path.rstrip('/')}/toc.dat does not exist")
        path, _ = self._files["toc.dat"]
        tables = read_toc(read_file(self.spark, path), path)
        return {f"{table.schema}.{table.name}": table for table in tables}

    @cached_property
    def _files(self) -> dict[str, tuple[str, int]]:
        """Path and size, by file name."""
        listed = sizes_of(self.spark, "--dump", self.path)
        folder = min(map(dirname, listed), key=len, default="")
        return {basename(path): (path, size) for path, size in listed.items() if dirname(path) == folder}

    def names(self, table: str) -> list[str] | None:
        return list(self.tables[table].columns)

    def _file(self, name: str) -> tuple[str, int]:
        """The path and size of the file with the rows of schema.table. Raises ConfigError."""
        table = self.tables[name]
        path, size = next(
            (self._files[table.file + suffix] for suffix in _SUFFIXES if table.file + suffix in self._files), ("", 0)
        )
        if not path:
            raise ConfigError(f"--dump: {self.path}/{table.file}, which toc.dat names, does not exist")
        limit = size_limit(self.spark)
        if size > limit:
            raise ConfigError(
                f"--dump: {path} has {size:,} bytes, and Spark's binaryFile carries {limit:,}: load this table with "
                "--server, or COPY it to several files"
            )
        return path, size

    def of_table(self, table: str, _: Sequence[str]) -> TableFiles:
        names, (path, size) = self.tables[table].columns, self._file(table)
        return TableFiles({path: size}, names, partial(text_spans, width=len(names)))


def row_files(spark: SparkSession, row_format: RowFormat, path: str, columns: tuple[str, ...]) -> RowFiles:
    """columns: those of binary files, in order; empty if they are the table's."""
    match row_format:
        case RowFormat.CSV:
            return CsvFiles(spark, path)
        case RowFormat.BINARY:
            return BinaryFiles(spark, path, columns)
        case RowFormat.DUMP:
            return Dump(spark, path)


def _csv_spans(data: bytes, path: str) -> Iterator[Span]:
    for begin, end, record in islice(record_spans(data, path), 1, None):  # without the header
        yield begin, end, [None if text is None else text.encode() for text in record]
