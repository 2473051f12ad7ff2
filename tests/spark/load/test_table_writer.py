"""A commit has its identity from a value that is passed, not from the settings of a session."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.load.commit import WriteResult, append, overwrite, write_result
from pgoutput_etl.load.evolve import committed_steps
from pgoutput_etl.load.table_writer import DeltaTransaction, committing
from pgoutput_etl.places import Place
from pgoutput_etl.spark.delta import delta_table

pytestmark = pytest.mark.spark


def test_a_write_is_its_transactions_whatever_the_session_says(spark: SparkSession, tmp_path: Path) -> None:
    """Within a context of another transaction, too, and once however often it is repeated."""
    place = Place(str(tmp_path / "t"))
    first, second = (DeltaTransaction("app", step, 1, 5) for step in ("changes:0", "changes:1"))
    with committing(spark, place, first) as table:
        overwrite(table, spark.range(3))
        with committing(table.spark, place, second):
            append(table, spark.range(7))  # again the first
    assert committed_steps(spark, place, first).keys() == {"changes:0"}
    assert spark.read.format("delta").load(str(place)).count() == 3
    with committing(spark, place, second) as table, table.preparing("layout") as prepared:
        append(prepared, spark.range(2))
        append(table, spark.range(1))
    assert committed_steps(spark, place, first).keys() == {"changes:0", "changes:1", "changes:1:layout"}
    assert spark.read.format("delta").load(str(place)).count() == 6


def test_the_effect_of_a_commit_is_counted_by_its_kind(spark: SparkSession, tmp_path: Path) -> None:
    place = Place(str(tmp_path / "t"))
    with committing(spark, place, DeltaTransaction("app", "changes:0", 1, 5)) as table:
        overwrite(table, spark.range(10))
    assert write_result(spark, place, "app") == WriteResult(0, 10, 0, 0)
    delta_table(spark, place).delete("id = 3")
    assert write_result(spark, place, "app") == WriteResult(1, 0, 0, 1)
    delta_table(spark, place).update("id < 2", {"id": "id + 100"})
    assert write_result(spark, place, "app") == WriteResult(2, 0, 2, 0)
