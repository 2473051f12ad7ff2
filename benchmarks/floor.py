"""The job's baseline: Delta's MERGE alone writes the same typed net changes to copies of the job's tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.typed_columns import TableFiles

THREADS = 4
_NET = "_delete"
_BYTES_PER_PARTITION = 32 << 20  # of Parquet, to be shuffled


def table_path(root: Path | str, table: TableFiles) -> str:
    return f"{root}/{table.schema}/{table.name}"


def merge_all(spark: SparkSession, root: Path, tables: Iterable[TableFiles]) -> float:
    """Seconds to write all net changes to the tables below a folder. Rows of a table without a key are appended."""
    return _write_all(tables, lambda table: _write(spark, root, table, table.key == ()))


def append_all(spark: SparkSession, root: Path, tables: Iterable[TableFiles]) -> float:
    """Like merge_all, but appends to tables that receive only new rows."""
    return _write_all(tables, lambda table: _write(spark, root, table, table.inserts_only))


def _write_all(tables: Iterable[TableFiles], write: Callable[[TableFiles], None]) -> float:
    started = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as pool:
        for future in [pool.submit(partial(write, table)) for table in tables]:
            future.result()
    return time.perf_counter() - started


def _write(spark: SparkSession, root: Path, table: TableFiles, appends: bool) -> None:
    session = spark.newSession()
    partitions = max(2, -(-Path(table.net).stat().st_size // _BYTES_PER_PARTITION))
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    net = session.read.parquet(table.net)
    path = table_path(root, table)
    if appends:
        net.where(~F.col(_NET)).drop(_NET).write.format("delta").mode("append").save(path)
    else:
        merge_net(session, path, net, table)


def merge_net(session: SparkSession, path: str, net: DataFrame, table: TableFiles) -> None:
    same = [F.col(f"t.`{name}`") == F.col(f"s.`{name}`") for name in table.key]
    condition = F.lit(True)
    for pair in same:
        condition &= pair
    values = {f"`{name}`": F.col(f"s.`{name}`") for name in net.columns if name != _NET}
    merge = DeltaTable.forPath(session, path).alias("t").merge(net.alias("s"), condition)
    if not table.inserts_only:
        merge = merge.whenMatchedDelete(F.col(f"s.{_NET}"))
        merge = merge.whenMatchedUpdate(set=dict(values))
    merge.whenNotMatchedInsert(~F.col(f"s.{_NET}"), values=dict(values)).execute()
