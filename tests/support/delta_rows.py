"""Reads tables by delta-rs, in milliseconds: Spark needs a second for a version that it has not read yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession


def delta_rows(spark: SparkSession, path: Path | str, version: int | None = None) -> list[dict[str, Any]]:
    """The rows as Arrow returns them, read by Spark if delta-rs can't."""
    table = plain_rows(path, version)
    if table is None:
        reader = spark.read.format("delta")
        table = (reader if version is None else reader.option("versionAsOf", version)).load(str(path)).toArrow()
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def plain_rows(path: Path | str, version: int | None = None) -> pa.Table | None:
    """None for a table with a feature that delta-rs doesn't know, such as column mapping or VARIANT, and for a path
    that it decodes twice."""
    if "%" in str(path):
        return None
    try:
        return DeltaTable(str(path), version=version).to_pyarrow_table()
    except (DeltaError, OSError, ValueError):
        return None
