"""`spark.read.format("pgoutput")` and SQL's `USING pgoutput`."""

from __future__ import annotations

from collections import Counter

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import pgoutput_etl as pg
from pgoutput_etl.datasource.options import ReadOptions
from pgoutput_etl.datasource.read_plan import plan_read
from pgoutput_etl.datasource.source import ArchiveSource
from pgoutput_etl.errors import ConfigError
from tests.support.captures import DATA, files_of

pytestmark = pytest.mark.spark
SLOT = DATA / "random16" / "v2"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pgoutput(spark: SparkSession) -> SparkSession:
    pg.register(spark)
    return spark


@pytest.mark.parametrize(
    "options",
    [
        {"tables": "public.acct"},
        {},
        pytest.param({"kind": "messages"}, marks=pytest.mark.soak),
        pytest.param({"kind": "transactions"}, marks=pytest.mark.soak),
        pytest.param({"kind": "relations"}, marks=pytest.mark.soak),
    ],
)
def test_spark_reads_what_the_plan_reads(pgoutput: SparkSession, options: dict[str, str]) -> None:
    plan = plan_read(ReadOptions.of({"path": str(SLOT), **options}))
    want = [row for part in (*plan.parts(), None) for batch in plan.read(part) for row in batch.to_pylist()]
    frame = pgoutput.read.format("pgoutput").options(**options).load(str(SLOT))
    rows = frame.toArrow()
    assert rows.schema.names == plan.schema.names
    assert sorted(map(repr, rows.to_pylist())) == sorted(map(repr, want))


def test_a_view_in_sql(pgoutput: SparkSession) -> None:
    pgoutput.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW acct USING pgoutput OPTIONS (path '{SLOT}', tables 'public.acct', ops 'D')"
    )
    [row] = pgoutput.sql("SELECT count(*) AS n, min(_op) AS op FROM acct").collect()
    assert row["n"] > 0
    assert row["op"] == "D"


def test_errors_are_spark_errors_that_name_the_option(pgoutput: SparkSession) -> None:
    with pytest.raises(AnalysisException, match="option 'tabels': expected one of path, "):
        pgoutput.read.format("pgoutput").option("tabels", "x").load(str(SLOT))


def test_a_stream_is_refused() -> None:
    with pytest.raises(ConfigError, match="readStream: not supported"):
        ArchiveSource({}).streamReader(StructType())


def test_no_query_changes_a_later_one(pgoutput: SparkSession) -> None:
    """Spark 4.2 would reuse a reader with the filters of an earlier query."""
    pgoutput.conf.set(PUSHDOWN, "true")
    try:
        frame = pgoutput.read.format("pgoutput").load([str(path) for path in files_of(SLOT)])
        assert frame.where("_op = 'D'").count() == Counter(row["_op"] for row in frame.collect())["D"] > 0
    finally:
        pgoutput.conf.unset(PUSHDOWN)
