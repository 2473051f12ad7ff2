"""Reads and appends few rows of the ledger's tables without a Spark job, on storage that delta-rs can't open.

A run reads and appends to several tables, and a Spark job for each takes longer than the requests to the storage.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from pgoutput_etl.ledger.tables import SCHEMAS, RowRange, own_rows
from pgoutput_etl.places import Place
from pgoutput_etl.spark.arrow_types import spark_schema
from pgoutput_etl.spark.delta_files import DeltaFiles, open_files
from pgoutput_etl.spark.delta_log import Action
from pgoutput_etl.spark.delta_write import WriteKind, open_new, open_write
from pgoutput_etl.spark.file_statistics import statistics_of
from pgoutput_etl.spark.retries import again

FEW_BYTES = 1 << 20  # of a table's files, which Spark would need longer to read

_MOST_FILES = 64  # to read

_AT_A_TIME = 16  # files, as the driver mostly waits


def read_few(
    spark: SparkSession, place: Place, table: str, source: str, names: Sequence[str], chosen: RowRange
) -> pa.Table | None:
    """Some columns of a source's rows in a range; a column that an older ledger lacks is NULL. None if Spark must read
    the table."""
    stored = open_files(spark, place, FEW_BYTES)
    if stored is None or any("deletionVector" in file for file in stored.files):
        return None
    files = [file for file in stored.files if _may_have_rows(file, chosen)]
    if len(files) > _MOST_FILES:
        return None
    schema = pa.schema([SCHEMAS[table].field(name) for name in names])
    try:
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            parts = list(pool.map(lambda file: _rows_of(stored, file, source, chosen, schema), files))
    except pa.ArrowException:
        return None  # a file is damaged: Spark will report it
    return pa.concat_tables([schema.empty_table(), *parts])


def _may_have_rows(file: Action, chosen: RowRange) -> bool:
    statistics: dict[str, dict[str, Any]] = json.loads(file.get("stats") or "{}")
    least, greatest = (statistics.get(name, {}).get("batch") for name in ("minValues", "maxValues"))
    is_before = greatest is not None and greatest < chosen.first
    return not is_before and (least is None or chosen.before is None or least < chosen.before)


def _rows_of(stored: DeltaFiles, file: Action, source: str, chosen: RowRange, schema: pa.Schema) -> pa.Table:
    rows = pq.read_table(io.BytesIO(stored.read(file)))
    return own_rows(chosen.of_rows(rows), source, schema).cast(schema)


def append_few(spark: SparkSession, place: Place, rows: pa.Table, application: tuple[str, int]) -> bool:
    """Appends rows unless the table already has this or a later version of the application. Creates the table. Returns
    False if Spark must append them.

    application: a transaction identifier and its version. rows: with statistics of the first two columns, source and
    batch.
    """
    return rows.nbytes <= FEW_BYTES and again(_append, spark, place, rows, application)


def _append(spark: SparkSession, place: Place, rows: pa.Table, application: tuple[str, int]) -> bool:
    write = open_write(spark, place, FEW_BYTES, WriteKind.APPEND)
    if write is None:
        write = open_new(spark, place, spark_schema(rows.schema), {}, None)
    if write is None or not {field["name"] for field in write.table.schema["fields"]}.issuperset(rows.column_names):
        return False
    if write.applications.get(application[0], -1) < application[1]:
        content = io.BytesIO()
        pq.write_table(rows, content, compression="snappy", store_schema=False)
        write.commit(application, content.getvalue(), statistics_of(rows, 2), {"numOutputRows": rows.num_rows})
    return True
