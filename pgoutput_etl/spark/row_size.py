"""Finds the stored row that takes the most memory, without reading rows of ordinary size.

The footer of a Parquet file records the uncompressed bytes of each row group, and those of values in arrays and maps.
No row is larger than both, so only the rows of large groups are measured, one at a time, because Spark's vectorized
reader reads thousands at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType

from pgoutput_etl.identifiers import quoted
from pgoutput_etl.places import Place
from pgoutput_etl.spark.delta import read_table
from pgoutput_etl.spark.java import hadoop_path, java_class
from pgoutput_etl.spark.session import session_settings

_PARQUET = "org.apache.parquet.hadoop"

_READERS = 8  # footers read in parallel; each takes several requests to object storage

_FIXED = 8  # bytes per value of any other type

_ONE_BY_ONE = {
    "spark.sql.parquet.enableVectorizedReader": "false",
    "spark.sql.files.maxPartitionBytes": str(1 << 50),  # a single task, so that only one row is in memory
}


@dataclass(frozen=True, slots=True)
class RowGroups:
    """The large row groups of a file. size: bytes of the largest group. least: lower bound of the largest row's
    bytes."""

    file: str
    size: int = 0
    least: int = 0


@dataclass(frozen=True, slots=True)
class LargeRow:
    """size: its bytes, or a lower bound. file: the file that stores it."""

    file: str
    size: int


def large_row(spark: SparkSession, place: Place, limit: int, readable: int) -> LargeRow | None:
    """The largest stored row, if it has more than `limit` bytes. readable: bytes of the largest row group whose rows
    may be measured; a larger group counts as one row, because Java may lack the memory to read it. Not for Spark
    Connect, whose client can't read footers."""
    with ThreadPoolExecutor(_READERS) as pool:
        files = list(cast(Any, read_table(spark, place))._jdf.inputFiles())
        groups = [found for found in pool.map(partial(_large_groups, spark, limit), files) if found.size > limit]
    certain = [
        LargeRow(group.file, group.least if group.least > limit else group.size)
        for group in groups
        if group.least > limit or group.size > readable
    ]
    if certain:
        return max(certain, key=lambda row: row.size)
    measured = _largest(spark, [group.file for group in groups]) if groups else None
    return measured if measured is not None and measured.size > limit else None


def _large_groups(spark: SparkSession, limit: int, file: str) -> RowGroups:
    sizes = []
    with _footer(spark, file) as groups:
        nested = _nested_columns(groups[0]) if len(groups) else []
        for group in groups:
            stored = int(group.getTotalByteSize())
            size = stored + sum(_unencoded(group.getColumns()[i]) for i in nested)
            if size > limit:
                sizes.append((size, -(-stored // int(group.getRowCount()))))
    return RowGroups(file, max((size for size, _ in sizes), default=0), max((least for _, least in sizes), default=0))


def _nested_columns(group: Any) -> list[int]:
    return [i for i, column in enumerate(group.getColumns()) if column.getPath().size() > 1]


def _unencoded(column: Any) -> int:
    """Bytes of a column's values before encoding. Equal elements of a row are stored once, so a row group may be
    smaller than its row. Writers before Parquet 1.15 don't record the bytes of texts."""
    statistics = column.getSizeStatistics()
    texts = None if statistics is None else statistics.getUnencodedByteArrayDataBytes().orElse(None)
    return int(column.getValueCount()) * _FIXED + int(texts or 0)


@contextmanager
def _footer(spark: SparkSession, file: str) -> Iterator[Any]:
    configuration = cast(Any, spark)._jsparkSession.sessionState().newHadoopConf()
    path = hadoop_path(spark, java_class(spark, "java.net.URI")(file))
    input_file = java_class(spark, f"{_PARQUET}.util.HadoopInputFile").fromPath(path, configuration)
    reader = java_class(spark, f"{_PARQUET}.ParquetFileReader").open(input_file)
    try:
        yield reader.getRowGroups()
    finally:
        reader.close()


def _largest(spark: SparkSession, files: list[str]) -> LargeRow | None:
    with session_settings(spark, _ONE_BY_ONE) as session:
        rows: DataFrame = session.read.parquet(*files)
        columns = [_bytes(F.col(quoted(field.name)), field.dataType) for field in rows.schema]
        size = sum(columns, F.lit(0).cast("long"))
        largest = rows.select(F.max(F.struct(size.alias("size"), F.col("_metadata.file_path")))).collect()[0][0]
    return None if largest is None else LargeRow(largest["file_path"], largest["size"])


def _bytes(value: Column, kind: DataType) -> Column:
    if isinstance(kind, (StringType, BinaryType)):
        size = F.octet_length(value)
    elif isinstance(kind, ArrayType):
        size = F.aggregate(value, F.lit(0).cast("long"), lambda total, item: total + _bytes(item, kind.elementType))
    elif isinstance(kind, MapType):
        return _bytes(F.map_keys(value), ArrayType(kind.keyType)) + _bytes(
            F.map_values(value), ArrayType(kind.valueType)
        )
    elif kind.typeName() == "variant":
        size = F.octet_length(F.to_json(value))
    else:
        return F.lit(_FIXED).cast("long")
    return F.coalesce(size.cast("long"), F.lit(0).cast("long"))
