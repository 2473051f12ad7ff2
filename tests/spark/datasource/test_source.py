"""`spark.read.format("pgoutput")` and SQL's `USING pgoutput`."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from shutil import copy, copytree

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.version import __version__ as version

import pgoutput_etl as pg
from pgoutput_etl.datasource.options import ReadOptions
from pgoutput_etl.datasource.stream import PlannedArchive
from tests.support.captures import DATA, files_of

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[3]
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
    plan = PlannedArchive.of(ReadOptions.of({"path": str(SLOT), **options})).plan
    want = [row for part in plan.parts() for batch in plan.read(part) for row in batch.to_pylist()]
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


def test_a_stream_into_delta_is_exactly_once(pgoutput: SparkSession, tmp_path: Path, landing: Path) -> None:
    """A micro-batch fails after it has written its rows, and is repeated when further files have landed."""
    target, files, died = tmp_path / "changes", files_of(SLOT), False

    def write(rows: DataFrame, number: int) -> None:
        nonlocal died
        id_options = {"txnAppId": "changes", "txnVersion": str(number)}
        rows.write.format("delta").mode("append").options(**id_options).save(str(target))
        if number == 1 and not died:
            died = True
            raise RuntimeError("as if the driver died")

    def run() -> StreamingQuery:
        frame = pgoutput.readStream.format("pgoutput").load(str(landing))
        checkpoint = str(tmp_path / "checkpoint")
        query = frame.writeStream.option("checkpointLocation", checkpoint).foreachBatch(write)
        return query.trigger(availableNow=True).start()

    for count in (3, 5, 10):
        for file in files[:count]:
            copy(file, landing)
        if count == 5:
            with pytest.raises(StreamingQueryException, match="as if the driver died"):
                run().awaitTermination()
            continue
        run().awaitTermination()
    if tuple(map(int, version.split(".")[:2])) < (4, 2):  # the run only repeated the micro-batch
        assert len([*(tmp_path / "checkpoint" / "commits").glob("[0-9]*")]) == 2
        run().awaitTermination()
    plan = PlannedArchive.of(ReadOptions.of({"path": str(landing)})).plan
    want = [row for part in plan.parts() for batch in plan.read(part) for row in batch.to_pylist()]
    have = pgoutput.read.format("delta").load(str(target)).toArrow().to_pylist()
    assert Counter(map(repr, have)) == Counter(map(repr, want))
    assert len({row["_xid"] for row in have}) > 100


def test_the_code_of_the_docs_page(pgoutput: SparkSession, tmp_path: Path) -> None:
    text = (ROOT / "docs" / "inspect-and-plan.md").read_text(encoding="utf-8")
    *_, code = re.findall(r"<!-- tested -->\n```python\n(.*?)```\n", text, re.DOTALL)
    names = {"spark": pgoutput}
    for path in ("landing/shop", "checkpoints", "lake"):
        code = code.replace(f'"{path}', f'"{tmp_path}/{path}')
    copytree(ROOT / "notebooks" / "data" / "shop", tmp_path / "landing" / "shop")
    exec(code, names)
    changes = pgoutput.read.format("delta").load(str(tmp_path / "lake" / "shop_changes"))
    assert changes.where("_table = 'public.orders'").count() > 0


def test_no_query_changes_a_later_one(pgoutput: SparkSession) -> None:
    """Spark 4.2 would reuse a reader with the filters of an earlier query."""
    pgoutput.conf.set(PUSHDOWN, "true")
    try:
        frame = pgoutput.read.format("pgoutput").load([str(path) for path in files_of(SLOT)])
        assert frame.where("_op = 'D'").count() == Counter(row["_op"] for row in frame.collect())["D"] > 0
    finally:
        pgoutput.conf.unset(PUSHDOWN)
