"""Where a snapshot's rows come from: a server, or files. As TupleData, as a replicated row would have it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from posixpath import basename
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pgoutput_etl.compression import decompress
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.ingest.listing import size_limit
from pgoutput_etl.ingest.scan import file_contents, per_file
from pgoutput_etl.jobs.snapshot.request import SnapshotRequest
from pgoutput_etl.jobs.verify.row_text import copied_files, csv_header, csv_texts
from pgoutput_etl.masking.mask_tuples import MaskedVersion
from pgoutput_etl.postgres import queries
from pgoutput_etl.postgres.catalog import QUERY, Catalog, CatalogTable, read_catalog
from pgoutput_etl.postgres.copy_format import Fields, binary_rows, text_rows, tuple_of
from pgoutput_etl.postgres.dump import DumpedTable, read_toc
from pgoutput_etl.postgres.jdbc import Server
from pgoutput_etl.protocol.messages import Relation
from pgoutput_etl.spark.arrow_types import spark_schema

_TUPLES = pa.schema([("new", pa.binary())])

_INTEGERS = (20, 21, 23)  # OIDs of int8, int2 and int4

_RANGES_OF_PAGES_SINCE = 140_000  # older servers read the whole table for each

_COMPRESSED = ("", ".gz", ".lz4", ".zst")

_AT_ONCE = 4096


class RowFiles(Protocol):
    """Rows of one or more tables."""

    def names(self, table: str) -> list[str] | None:
        """Of the columns of schema.table, in no order that matters; None if the files don't say."""

    def rows(self, relation: Relation) -> DataFrame:
        """`new`: a TupleData of the relation's columns."""


def rewritten(rows: DataFrame, version: MaskedVersion) -> DataFrame:
    """Without what the configuration's `columns` keeps from being kept."""

    def rewrite(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_arrays([version.mask(batch.column("new"))], schema=_TUPLES)

    return rows.mapInArrow(rewrite, spark_schema(_TUPLES))


def as_tuples(texts: DataFrame, width: int) -> DataFrame:
    """t… as TupleData in text form, without a row of it in Python."""
    parts = [F.lit(bytearray(struct.pack(">H", width)))]
    for i in range(width):
        value = F.encode(F.col(f"t{i}"), "UTF-8")
        length = F.unhex(F.lpad(F.hex(F.length(value).cast("long")), 8, "0"))
        sent = F.concat(F.lit(bytearray(b"t")), length, value)
        parts.append(F.when(value.isNull(), F.lit(bytearray(b"n"))).otherwise(sent))
    return texts.select(F.concat(*parts).alias("new"))


@dataclass(frozen=True)
class SnapshotServer:
    """`server`: with the snapshot that it is read by."""

    server: Server
    request: SnapshotRequest

    @cached_property
    def catalog(self) -> Catalog:
        [row] = self.server.ask(QUERY).toArrow().to_pylist()
        return read_catalog(row["catalog"], self.request.publications, self.request.wants)

    def time(self) -> int:
        """Of the server, in microseconds since 2000-01-01 UTC."""
        [row] = self.server.ask(queries.TIME).toArrow().to_pylist()
        return int(row["time"])

    def rows(self, table: CatalogTable) -> DataFrame:
        relation = table.relation
        place, shares = self._divided(table)
        names = [column.name for column in relation.columns]
        query = queries.snapshot_rows(relation.namespace, relation.name, names, table.is_root, place, table.filter)
        return as_tuples(self.server.ask(query, shares), len(names))

    def _divided(self, table: CatalogTable) -> tuple[str | None, list[str]]:
        """By ranges of the key's first column, if that is an integer; else of the pages that the table is stored in."""
        relation, count = table.relation, self.server.connections
        key = next((c for c in relation.columns if c.is_key and c.name in table.not_null), None)
        if count > 1 and key is not None and key.type_oid in _INTEGERS:
            query = queries.key_limits(relation.namespace, relation.name, key.name, table.is_root)
            [found] = self.server.ask(query).toArrow().to_pylist()
            shares = queries.shares_of_integers(found["low"], found["high"], count)
            return queries.identifier(key.name), shares
        if count > 1 and not table.is_root and self.catalog.version >= _RANGES_OF_PAGES_SINCE:
            [found] = self.server.ask(queries.pages(relation.oid)).toArrow().to_pylist()
            return "ctid", queries.shares_of_pages(found["pages"], count)
        return None, ["true"]

    def check_that_nothing_was_rewritten(self, tables: Sequence[CatalogTable]) -> None:
        """Raises RunError: the rows that were read of such a table may be none."""
        oids = {table.relation.oid: table.full_name for table in tables}
        found = self.server.ask(queries.rewritten(oids)).toArrow().to_pylist()
        if found:
            names = ", ".join(sorted(oids[row["oid"]] for row in found))
            raise RunError(
                f"{names}: written anew (TRUNCATE, ALTER TABLE, VACUUM FULL) since the snapshot was taken, which "
                "doesn't see such rows. Nothing was changed. Run again, with a new snapshot"
            )


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
    """columns: of the files; the relation's, in its order, if none are named."""

    spark: SparkSession
    path: str
    columns: tuple[str, ...]

    def names(self, _: str) -> list[str] | None:
        return list(self.columns) or None

    def rows(self, relation: Relation) -> DataFrame:
        wanted = [column.name for column in relation.columns]
        found = list(self.columns) or wanted
        read = partial(binary_rows, width=len(found))
        _, files = copied_files(self.spark, "--copy", self.path)
        return _tuples(files, read, [found.index(name) for name in wanted], b"b", size_limit(self.spark))


@dataclass(frozen=True)
class Dump:
    """A folder of pg_dump -Fd."""

    spark: SparkSession
    path: str

    @cached_property
    def tables(self) -> Mapping[str, DumpedTable]:
        """By schema.table."""
        _, toc = copied_files(self.spark, "--dump", f"{self.path.rstrip('/')}/toc.dat")
        found = [table for row in toc.toArrow().to_pylist() for table in read_toc(row["content"], row["path"])]
        return {f"{table.schema}.{table.name}": table for table in found}

    @cached_property
    def _there(self) -> dict[str, tuple[str, int]]:
        listed = self.spark.read.format("binaryFile").load(self.path).select("path", "length").toArrow().to_pylist()
        return {basename(row["path"]): (row["path"], row["length"]) for row in listed}

    def names(self, table: str) -> list[str] | None:
        return list(self.tables[table].columns)

    def rows(self, relation: Relation) -> DataFrame:
        table = self.tables[f"{relation.namespace}.{relation.name}"]
        there = [self._there[table.file + suffix] for suffix in _COMPRESSED if table.file + suffix in self._there]
        if not there:
            raise ConfigError(f"--dump: there is no {table.file} in {self.path}, which its toc.dat names")
        limit = size_limit(self.spark)
        path, size = there[0]
        if size > limit:
            raise ConfigError(
                f"--dump: {path} has {size:,} bytes, and Spark's binaryFile carries {limit:,}: take this table by "
                "--jdbc, or by COPY in several files"
            )
        read = partial(text_rows, width=len(table.columns))
        positions = [table.columns.index(column.name) for column in relation.columns]
        return _tuples(file_contents(self.spark, [path]), read, positions, b"t", limit)


def _tuples(
    files: DataFrame, read: Callable[[bytes, str], Iterator[Fields]], positions: Sequence[int], kind: bytes, limit: int
) -> DataFrame:
    """`positions`: of a row's fields, in the order of the relation's columns."""

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for path, content in per_file(batches):
            held: list[bytes] = []
            for fields in read(decompress(content, path, limit), path):
                held.append(tuple_of([fields[position] for position in positions], kind))
                if len(held) == _AT_ONCE:
                    yield pa.RecordBatch.from_arrays([pa.array(held, pa.binary())], schema=_TUPLES)
                    held = []
            yield pa.RecordBatch.from_arrays([pa.array(held, pa.binary())], schema=_TUPLES)

    return files.mapInArrow(convert, spark_schema(_TUPLES))
