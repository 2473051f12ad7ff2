"""Reads a snapshot's rows from a server or from files, as the TupleData that replication would send."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from posixpath import basename, dirname
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.answers.verify.row_text import copied_files, csv_header, csv_texts
from pgoutput_etl.compression import decompress
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.ingest.binary_files import map_files, read_file
from pgoutput_etl.ingest.listing import size_limit, sizes_of
from pgoutput_etl.masking.mask_tuples import MaskedVersion
from pgoutput_etl.postgres import queries
from pgoutput_etl.postgres.catalog import QUERY, Catalog, CatalogTable, read_catalog
from pgoutput_etl.postgres.copy_format import Fields, binary_rows, text_rows, tuple_of
from pgoutput_etl.postgres.dump import DumpedTable, read_toc
from pgoutput_etl.postgres.jdbc import Server
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.targets.plan import KeyRanges
from pgoutput_etl.work.snapshot.request import SnapshotRequest

_TUPLES = pa.schema([("new", pa.binary())])

_INTEGERS = (20, 21, 23)  # OIDs of int8, int2 and int4

_TID_RANGE_SCANS_SINCE = 140_000  # older servers read the whole table per range of pages

_SUFFIXES = ("", ".gz", ".lz4", ".zst")

_BATCH_ROWS = 4096

_REWRITTEN = (
    "rewritten (TRUNCATE, ALTER TABLE, VACUUM FULL) since the snapshot was taken, which doesn't see the new rows: load "
    "it again, with a new snapshot"
)


class RowFiles(Protocol):
    """The rows of one or more tables in files."""

    def names(self, table: str) -> list[str] | None:
        """Column names of schema.table in any order, or None if the files don't contain them."""

    def rows(self, relation: Relation) -> DataFrame:
        """One column, `new`: a TupleData of the relation's columns."""


def masked(rows: DataFrame, version: MaskedVersion) -> DataFrame:
    """The TupleData with the configured columns dropped, hashed or redacted."""

    def mask(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([version.mask(batch.column("new"))], schema=_TUPLES)

    return rows.mapInArrow(mask, spark_schema(_TUPLES))


def as_tuples(texts: DataFrame, width: int) -> DataFrame:
    """Builds TupleData in text format from the columns t0…, without Python code per row."""
    parts = [F.lit(bytearray(struct.pack(">H", width)))]
    for i in range(width):
        value = F.encode(F.col(f"t{i}"), "UTF-8")
        length = F.unhex(F.lpad(F.hex(F.length(value).cast("long")), 8, "0"))
        sent = F.concat(F.lit(bytearray(b"t")), length, value)
        parts.append(F.when(value.isNull(), F.lit(bytearray(b"n"))).otherwise(sent))
    return texts.select(F.concat(*parts).alias("new"))


@dataclass(frozen=True)
class SnapshotServer:
    """server: its connections read through the exported snapshot."""

    server: Server
    request: SnapshotRequest

    @cached_property
    def catalog(self) -> Catalog:
        [row] = self.server.ask(QUERY).toArrow().to_pylist()
        return read_catalog(row["catalog"], self.request.publications, self.request.wants)

    def time(self) -> int:
        """The server's time, in microseconds since 2000-01-01 UTC."""
        [row] = self.server.ask(queries.TIME).toArrow().to_pylist()
        return int(row["time"])

    def rows(self, table: CatalogTable, ranges: KeyRanges = None, key_column: str = "") -> DataFrame:
        """ranges: of `key_column`."""
        relation = table.relation
        key, shares = self._partition(table) if ranges is None else self._ranges(ranges, key_column)
        names = [column.name for column in relation.columns]
        query = queries.snapshot_rows(relation.namespace, relation.name, names, table.is_root, key, table.filter)
        return as_tuples(self.server.ask(query, shares), len(names))

    def _ranges(self, ranges: Sequence[tuple[int, int]], key_column: str) -> tuple[str, list[str]]:
        count = min(self.server.connections, len(ranges))
        return queries.identifier(key_column), [queries.within(ranges[i::count]) for i in range(count)]

    def _partition(self, table: CatalogTable) -> tuple[str | None, list[str]]:
        """A column and the conditions that divide the table: ranges of the key's first column if that is an integer,
        else ranges of the table's pages."""
        relation, count = table.relation, self.server.connections
        key = next((c for c in relation.columns if c.is_key and c.name in table.not_null), None)
        if count > 1 and key is not None and key.type_oid in _INTEGERS:
            query = queries.key_limits(relation.namespace, relation.name, key.name, table.is_root)
            [limits] = self.server.ask(query).toArrow().to_pylist()
            shares = queries.shares_of_integers(limits["low"], limits["high"], count)
            return queries.identifier(key.name), shares
        if count > 1 and not table.is_root and self.catalog.version >= _TID_RANGE_SCANS_SINCE:
            [size] = self.server.ask(queries.pages(relation.oid)).toArrow().to_pylist()
            return "ctid", queries.shares_of_pages(size["pages"], count)
        return None, ["true"]

    def rewritten(self, tables: Sequence[CatalogTable]) -> dict[int, str]:
        """The tables that were rewritten since the snapshot, which then sees none of their rows, by OID, each with this
        reason."""
        if not tables:
            return {}
        rows = self.server.ask(queries.rewritten([table.relation.oid for table in tables])).toArrow().to_pylist()
        return {row["oid"]: _REWRITTEN for row in rows}


@dataclass(frozen=True)
class CsvFiles:
    spark: SparkSession
    path: str

    @cached_property
    def header(self) -> list[str]:
        return csv_header(self.spark, self.path)

    def names(self, _: str) -> list[str] | None:
        return self.header

    def rows(self, relation: Relation) -> DataFrame:
        positions = [self.header.index(column.name) for column in relation.columns]
        return as_tuples(csv_texts(self.spark, self.path, positions), len(positions))


@dataclass(frozen=True)
class BinaryFiles:
    """columns: the files' columns in order; empty for the relation's."""

    spark: SparkSession
    path: str
    columns: tuple[str, ...]

    def names(self, _: str) -> list[str] | None:
        return list(self.columns) or None

    def rows(self, relation: Relation) -> DataFrame:
        names = [column.name for column in relation.columns]
        file_names = list(self.columns) or names
        read = partial(binary_rows, width=len(file_names))
        sizes = copied_files(self.spark, "--copy", self.path)
        return _tuples(self.spark, sizes, read, [file_names.index(name) for name in names], b"b")


@dataclass(frozen=True)
class Dump:
    """A folder that pg_dump -Fd wrote."""

    spark: SparkSession
    path: str

    @cached_property
    def tables(self) -> Mapping[str, DumpedTable]:
        """By schema.table."""
        if "toc.dat" not in self._files:
            raise ConfigError(f"--dump: {self.path.rstrip('/')}/toc.dat does not exist")
        path, _ = self._files["toc.dat"]
        tables = read_toc(read_file(self.spark, path), path)
        return {f"{table.schema}.{table.name}": table for table in tables}

    @cached_property
    def _files(self) -> dict[str, tuple[str, int]]:
        """Path and size by file name."""
        listed = sizes_of(self.spark, "--dump", self.path)
        folder = min(map(dirname, listed), key=len, default="")
        return {basename(path): (path, size) for path, size in listed.items() if dirname(path) == folder}

    def names(self, table: str) -> list[str] | None:
        return list(self.tables[table].columns)

    def file(self, name: str) -> tuple[str, int]:
        """The path and the size of the file with the rows of schema.table. Raises ConfigError."""
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
                "--jdbc, or COPY it to several files"
            )
        return path, size

    def rows(self, relation: Relation) -> DataFrame:
        name = f"{relation.namespace}.{relation.name}"
        table, (path, size) = self.tables[name], self.file(name)
        read = partial(text_rows, width=len(table.columns))
        positions = [table.columns.index(column.name) for column in relation.columns]
        return _tuples(self.spark, {path: size}, read, positions, b"t")


def _tuples(
    spark: SparkSession,
    sizes: Mapping[str, int],
    read: Callable[[bytes, str], Iterator[Fields]],
    positions: Sequence[int],
    kind: bytes,
) -> DataFrame:
    """sizes: of the files, by path. positions: of the relation's columns among a row's fields. kind: of the tuple's
    values, b"b" or b"t"."""
    limit = size_limit(spark)

    def convert(files: Iterator[tuple[str, bytes]]) -> Iterator[pa.RecordBatch]:
        for path, content in files:
            rows = read(decompress(content, path, limit), path)
            while batch := list(islice(rows, _BATCH_ROWS)):
                tuples = [tuple_of([fields[position] for position in positions], kind) for fields in batch]
                yield pa.RecordBatch.from_arrays([pa.array(tuples, pa.binary())], schema=_TUPLES)

    return map_files(spark, sizes, convert, _TUPLES, sizes)
