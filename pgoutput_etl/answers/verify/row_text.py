"""Rows as PostgreSQL's texts, on Spark: t0, t1, … for the compared columns of Delta tables and CSV files.

`unknown` lists the positions of values that were never sent to the archive, which are NULL in t…; NULL if there are
none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructType

from pgoutput_etl.answers.verify.key_ranges import Digest, Ranges, has_integer_key, merge_digests
from pgoutput_etl.compression import decompress
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.identifiers import quoted
from pgoutput_etl.ingest.binary_files import map_files
from pgoutput_etl.ingest.listing import reading_files, size_limit, sizes_of
from pgoutput_etl.load.target_columns import delta_type, entries_of_target, to_event
from pgoutput_etl.postgres.copy_format import header, records
from pgoutput_etl.schema.table_shape import UNREPRESENTABLE
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.targets.modes import METADATA_COLUMNS
from pgoutput_etl.types.canonical_text import ComparedColumn, canonical_texts, texts_of

_DIGESTS = pa.schema([(name, pa.int64()) for name in ("range", "rows", "first", "second")])

_TIME = pa.timestamp("us", tz="UTC")


def text_names(width: int) -> list[str]:
    return [f"t{i}" for i in range(width)]


def delta_texts(
    rows: DataFrame, columns: Sequence[ComparedColumn], others: Mapping[str, Column] = MappingProxyType({})
) -> DataFrame:
    """t…, unknown, lsn, ts, and xid of the last writer, and the columns in `others`; if another program wrote the
    table, only t… and `others` have values."""
    is_ours = set(METADATA_COLUMNS) <= set(rows.columns)
    odd = entries_of_target() if is_ours else F.lit(None).cast("array<struct<key: string, value: string>>")
    writer = ("_pg_commit_lsn", "long", "lsn"), ("_pg_commit_ts", "timestamp", "ts"), ("_pg_xid", "long", "xid")
    selected = rows.select(
        *(_stored(rows, column).alias(f"c{i}") for i, column in enumerate(columns)),
        odd.alias("odd"),
        *((F.col(stored) if is_ours else F.lit(None).cast(kind)).alias(name) for stored, kind, name in writer),
        *(column.alias(name) for name, column in others.items()),
    )
    names, schema = list(others), _text_schema(len(columns))
    as_text = [_is_text(rows, column) for column in columns]

    def convert(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            texts = texts_of_batch(batch, columns, as_text, schema)
            arrays = [*texts.columns, *map(batch.column, names)]
            yield pa.RecordBatch.from_arrays(arrays, names=[*schema.names, *names])

    fields_of_others = [selected.schema[name] for name in names]
    return selected.mapInArrow(convert, StructType([*spark_schema(schema), *fields_of_others]))


def _text_schema(width: int) -> pa.Schema:
    fields = [*((name, pa.string()) for name in text_names(width)), ("unknown", pa.list_(pa.int32()))]
    return pa.schema([*fields, ("lsn", pa.int64()), ("ts", _TIME), ("xid", pa.int64())])


def _is_text(rows: DataFrame, column: ComparedColumn) -> bool:
    """True if the column holds PostgreSQL's text although this package would store another type."""
    data_type = rows.schema[column.name].dataType
    return isinstance(data_type, StringType) and delta_type(column.type) != data_type


def _stored(rows: DataFrame, column: ComparedColumn) -> Column:
    stored = F.col(quoted(column.name))
    return stored if _is_text(rows, column) else to_event(stored, column.type)


def texts_of_batch(
    batch: pa.RecordBatch, columns: Sequence[ComparedColumn], as_text: Sequence[bool], schema: pa.Schema
) -> pa.RecordBatch:
    texts = [
        batch.column(f"c{i}").to_pylist() if as_text[i] else texts_of(column.type, batch.column(f"c{i}"))
        for i, column in enumerate(columns)
    ]
    unknown: list[list[int] | None] = [None] * batch.num_rows
    positions = {column.name: i for i, column in enumerate(columns)}
    for row, entries in enumerate(batch.column("odd").to_pylist()):
        for entry in entries or ():
            position = positions.get(entry["key"])
            if position is None:
                continue
            texts[position][row] = entry["value"]
            if entry["value"] is None:
                unknown[row] = [*(unknown[row] or []), position]
    arrays = [*(pa.array(column, pa.string()) for column in texts), pa.array(unknown, pa.list_(pa.int32()))]
    arrays += [batch.column(name).cast(schema.field(name).type) for name in ("lsn", "ts", "xid")]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def small_texts(rows: pa.Table, columns: Sequence[ComparedColumn]) -> Iterator[pa.RecordBatch]:
    """Like `delta_texts`, for rows on the driver that have METADATA_COLUMNS. Each type must have a single text form."""
    writer = dict(zip(METADATA_COLUMNS, ("lsn", "ts", "xid", "odd"), strict=True))
    schema, as_text = _text_schema(len(columns)), [False] * len(columns)
    for batch in rows.to_batches():
        stored = {f"c{i}": batch.column(column.name) for i, column in enumerate(columns)}
        stored |= {name: batch.column(stored_as) for stored_as, name in writer.items()}
        stored["odd"] = stored["odd"].cast(UNREPRESENTABLE)
        yield texts_of_batch(pa.RecordBatch.from_pydict(stored), columns, as_text, schema)


def copied_files(spark: SparkSession, option: str, path: str) -> dict[str, int]:
    """Output of COPY or pg_dump, in one file or all files below a folder: sizes, by path. option: the command-line
    option that named the path.

    Raises ConfigError if the path doesn't exist, or if a file is too large or not a plain file.
    """
    sizes, limit = sizes_of(spark, option, path), size_limit(spark)
    for file, size in sizes.items():
        if size > limit:
            raise ConfigError(
                f"{option}: {file} has {size:,} bytes, but Spark's binaryFile reads at most "
                f"{limit:,}: write several files with COPY (SELECT … WHERE …) TO …, and name their folder"
            )
    return sizes


def csv_header(spark: SparkSession, path: str) -> list[str]:
    """The column names. Raises ConfigError if there is no file, headers differ, or a file is too large."""
    sizes = copied_files(spark, "--csv", path)
    schema = pa.schema([("names", pa.list_(pa.string()))])

    def names(files: Iterator[tuple[str, bytes]]) -> Iterator[pa.RecordBatch]:
        for name, content in files:
            yield pa.RecordBatch.from_pylist([{"names": header(decompress(content, name), name)}], schema)

    with reading_files(sizes):
        headers = {tuple(row["names"]) for row in map_files(spark, sizes, names, schema, sizes).toArrow().to_pylist()}
    if len(headers) != 1:
        raise ConfigError(f"--csv: expected files with the same header at {path}, found {len(headers)} headers")
    return list(headers.pop())


def csv_texts(spark: SparkSession, path: str, positions: Sequence[int]) -> DataFrame:
    """t…: the fields at the given positions, in that order."""
    schema = pa.schema([(name, pa.string()) for name in text_names(len(positions))])
    max_size = size_limit(spark)

    def parse(files: Iterator[tuple[str, bytes]]) -> Iterator[pa.RecordBatch]:
        for name, content in files:
            yield from text_batches(records(decompress(content, name, max_size), name), positions, schema)

    sizes = copied_files(spark, "--csv", path)
    return map_files(spark, sizes, parse, schema, sizes)


_ROWS_PER_BATCH = 10_000


def text_batches(
    lines: Iterator[list[str | None]], positions: Sequence[int], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    next(lines, None)  # the header
    while rows := list(islice(lines, _ROWS_PER_BATCH)):
        columns = [pa.array([row[position] for row in rows], pa.string()) for position in positions]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def digests_of(texts: DataFrame, width: int, ranges: Ranges) -> dict[int, Digest]:
    """Digests, by compared range; empty ranges are left out."""

    def digest(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        digests = digests_of_batches(batches, width, ranges)
        rows = [{"range": n, "rows": d.rows, "first": d.first, "second": d.second} for n, d in digests.items()]
        yield pa.RecordBatch.from_pylist(rows, _DIGESTS)

    parts = texts.select(*text_names(width)).mapInArrow(digest, spark_schema(_DIGESTS))
    return merge_digests(parts.toArrow().to_pylist())


def digests_of_batches(batches: Iterable[pa.RecordBatch], width: int, ranges: Ranges) -> dict[int, Digest]:
    compared = frozenset(ranges.numbers)
    digests: dict[int, Digest] = {}
    for batch in batches:
        for row in zip(*(batch.column(i).to_pylist() for i in range(width)), strict=True):
            if (number := ranges.range_of(row)) in compared:
                digests.setdefault(number, Digest()).add(row)
    return digests


def key_size(
    rows: DataFrame, columns: Sequence[ComparedColumn], key: Sequence[int]
) -> tuple[int, tuple[int | None, int | None]]:
    """The row count, and the least and greatest key; 0 and None for a key that isn't an integer."""
    if not has_integer_key(columns, key):
        return 0, (None, None)
    first = F.col(quoted(columns[key[0]].name))
    [row] = rows.agg(F.count("*").alias("rows"), F.min(first).alias("least"), F.max(first).alias("most")).collect()
    return row["rows"], (row["least"], row["most"])


def rows_in_ranges(
    texts: DataFrame, columns: Sequence[ComparedColumn], ranges: Ranges, numbers: Sequence[int]
) -> DataFrame:
    """The rows of the given ranges; columns that are compared by value have canonical texts."""
    wanted = frozenset(numbers)
    width = len(columns)
    schema = texts.schema

    def select(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            fields = [batch.column(f"t{i}").to_pylist() for i in range(width)]
            mask = pa.array([ranges.range_of(row) in wanted for row in zip(*fields, strict=True)], pa.bool_())
            yield canonicalize(batch.filter(mask), columns)

    return texts.mapInArrow(select, schema)


def canonicalize(rows: pa.RecordBatch, columns: Sequence[ComparedColumn]) -> pa.RecordBatch:
    arrays = {name: rows.column(name) for name in rows.schema.names}
    for i, column in enumerate(columns):
        if column.by_value:
            arrays[f"t{i}"] = pa.array(canonical_texts(column.type, arrays[f"t{i}"].to_pylist()), pa.string())
    return pa.RecordBatch.from_pydict(arrays)
