"""A file's other columns were dropped from the table, unless Spark may find one of the table's columns in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pgoutput_etl.load.small_rows import StoredColumn, stored_rows
from pgoutput_etl.schema.layout import COLUMN_MAPPING
from pgoutput_etl.spark.delta_files import DeltaFiles


@pytest.mark.parametrize(
    ("columns", "mode", "expected"),
    [
        (["v"], "none", [{"v": "a", "w": None}]),
        (["v", "gone"], "none", [{"v": "a", "w": None}]),
        (["v", "gone"], "name", [{"v": "a", "w": None}]),
        (["v"], "id", [{"v": "a", "w": None}]),
        (["v", "gone"], "id", None),
        (["v", "W"], "none", None),
    ],
)
def test_columns_of_a_file(tmp_path: Path, columns: list[str], mode: str, expected: Any) -> None:
    pq.write_table(pa.table([["a"] for _ in columns], names=columns), tmp_path / "f.parquet")
    files = ({"path": "f.parquet"},)
    where: Any = {"spark": None, "folder": str(tmp_path), "local": str(tmp_path), "version": 3, "schema": {}}
    table = DeltaFiles(
        **where, partition_columns=(), features=frozenset(), properties={COLUMN_MAPPING: mode}, files=files
    )
    rows = stored_rows(table, {name: StoredColumn(name, pa.string(), None) for name in ("v", "w")})
    assert (rows and rows.to_pylist()) == expected
