"""An archive's Spark frames equal its pandas frames."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession

import pgoutput_etl
from pgoutput_etl.errors import ConfigError
from pgoutput_etl.explore.archive import read_archive
from tests.support.captures import DATA, files_of
from tests.support.small_archives import copydata
from tests.support.typed_commands import of_own_session

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[3]


def counted(rows: list[dict[str, Any]]) -> Counter[str]:
    """Shortens paths to file names, which Spark and pandas write differently, and turns pandas' NULLs into None."""
    return Counter(repr(sorted((name, plain(value)) for name, value in row.items())) for row in rows)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted(value.items())
    if isinstance(value, list | tuple) or hasattr(value, "tolist"):
        return [*value] if not hasattr(value, "tolist") else value.tolist()
    if pd.isna(value):
        return None
    if isinstance(value, datetime):
        return value.isoformat()
    return value.rpartition("/")[2] if isinstance(value, str) and value.startswith(("/", "file:")) else value


def of_spark(frame: DataFrame) -> Counter[str]:
    return counted(frame.toArrow().to_pylist())


def of_pandas(frame: Any) -> Counter[str]:
    return counted(frame.to_dict("records"))


@pytest.mark.parametrize(
    "slot",
    [pytest.param("random16/v2", marks=pytest.mark.soak), pytest.param("pg16/v3_twophase", marks=pytest.mark.soak)],
)
def test_spark_frames_equal_pandas_frames(spark: SparkSession, slot: str) -> None:
    paths = files_of(DATA / slot)
    local, on_spark = read_archive(paths), read_archive(map(str, paths), spark)
    assert on_spark.report.messages == local.report.messages
    for name in ("transactions", "changes", "messages"):
        assert getattr(on_spark, name).columns == [*getattr(local, name).columns]
        assert of_spark(getattr(on_spark, name)) == of_pandas(getattr(local, name))
    table = "public.acct" if slot == "random16/v2" else "public.pk"
    assert of_spark(on_spark.rows(table)) == of_pandas(local.rows(table))
    where = {"id": local.rows(table)["id"].iloc[0]}
    assert of_spark(on_spark.rows(table, where)) == of_pandas(local.rows(table, where))


def test_spark_filters_a_frame(spark: SparkSession) -> None:
    archive = read_archive(str(DATA / "random16" / "v2"), spark)
    aborted = archive.changes.where("fate = 'aborted'").groupBy("table").count()
    want = {f"{r.schema}.{r.table}": r.others["aborted"] for r in archive.report.relations if "aborted" in r.others}
    assert {row["table"]: row["count"] for row in aborted.collect()} == want


def test_the_code_of_the_docs_page(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "inspect-and-plan.md").read_text(encoding="utf-8")
    _, code, _ = re.findall(r"<!-- tested -->\n```python\n(.*?)```\n", text, re.DOTALL)
    exec(
        of_own_session(code).replace("s3a://lake/landing/shop", str(ROOT / "notebooks" / "data" / "shop")),
        {"spark": spark, "pg": pgoutput_etl},
    )
    assert "public.orders|" in capsys.readouterr().out


def test_missing_paths_and_empty_archives(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read_archive(str(tmp_path / "nothing"), spark)
    (tmp_path / "0.copydata").write_bytes(copydata([]))
    archive = read_archive(str(tmp_path), spark)
    assert archive.changes.count() + archive.messages.count() + archive.transactions.count() == 0
