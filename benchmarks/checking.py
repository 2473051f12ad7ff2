"""Checks the tables' rows, so that a fast but wrong run fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import MapType

from benchmarks.floor import table_path
from benchmarks.typed_columns import TableFiles

_THREADS = 8


class WrongResultError(Exception):
    """A written table differs from the generator's expected table."""


Fingerprint = tuple[int, tuple[str, ...], Decimal | None]


def check_tables(
    spark: SparkSession, root: Path | str, tables: Sequence[TableFiles], expected: Mapping[str, Fingerprint]
) -> None:
    """`expected`: by table name. Raises WrongResultError."""

    def read_fingerprint(table: TableFiles) -> Fingerprint:
        return fingerprint(spark.read.format("delta").load(table_path(root, table)))

    with ThreadPoolExecutor(_THREADS) as pool:
        for table, actual in zip(tables, pool.map(read_fingerprint, tables), strict=True):
            if actual != expected[table.name]:
                raise WrongResultError(
                    f"{table.schema}.{table.name} below {root}: expected rows, columns and hash sum "
                    f"{expected[table.name]}, found {actual}"
                )


def expected_fingerprints(spark: SparkSession, tables: Sequence[TableFiles]) -> dict[str, Fingerprint]:
    """Also checks the files' row counts against the generator's."""

    def expected_fingerprint(table: TableFiles) -> Fingerprint:
        rows = spark.read.parquet(table.net).where("not _delete").drop("_delete")
        if table.kept is not None:
            rows = rows.unionByName(spark.read.parquet(table.kept))
        return fingerprint(rows)

    with ThreadPoolExecutor(_THREADS) as pool:
        prints = dict(zip((table.name for table in tables), pool.map(expected_fingerprint, tables), strict=True))
    for table in tables:
        if prints[table.name][0] != table.final_rows:
            raise WrongResultError(f"{table.name}: expected {table.final_rows} rows, found {prints[table.name][0]}")
    return prints


def fingerprint(rows: DataFrame) -> Fingerprint:
    """Number of rows, columns with their types, and the sum of the rows' hashes."""
    values = []
    for field in rows.schema.fields:
        column = F.col(f"`{field.name}`")
        is_null = column.isNull().cast("int")
        values += [F.map_entries(column) if isinstance(field.dataType, MapType) else column, is_null]
    total = F.sum(F.xxhash64(*values).cast("decimal(20,0)"))
    row = rows.agg(F.count("*").alias("rows"), total.alias("hashes")).collect()[0]
    columns = tuple(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema.fields)
    return row["rows"], columns, row["hashes"]
