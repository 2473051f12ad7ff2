"""A small table is rewritten instead of merged, unless that would lose something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.load import rewrite
from pgoutput_etl.places import Place
from pgoutput_etl.spark.delta import read_table, save
from pgoutput_etl.spark.delta_log import DeltaCommit, newest_commit
from tests.support.jobs import Job, Nights
from tests.support.small_archives import insert, table, transaction, update

pytestmark = pytest.mark.spark


def last_operation(job: Job) -> tuple[str, str | None]:
    [row] = job.spark.sql(f"DESCRIBE HISTORY delta.`{job.path('public', 't')}` LIMIT 1").collect()
    return row["operation"], row["operationParameters"].get("mode")


def test_a_small_table_is_rewritten_and_a_larger_one_merged(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    nights.night(transaction(1, 100, table(), insert("1", "a"), insert("2", "b")))
    summary = nights.night(transaction(2, 200, update("1", "c"), insert("3", "d"), update("3", "e")))
    assert last_operation(nights.job) == ("WRITE", "Overwrite")
    [written] = summary.tables
    assert (written.inserted, written.updated, written.deleted, written.rows) == (1, 1, 0, 3)

    monkeypatch.setattr(rewrite, "SMALL_ROWS", 2)
    nights.night(transaction(3, 300, update("1", "f")))
    assert last_operation(nights.job)[0] == "MERGE"
    assert nights.values("t") == [("1", "f"), ("2", "b"), ("3", "e")]


@pytest.mark.parametrize(
    "change",
    [
        "SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
        "ADD COLUMNS (note STRING)",
    ],
)
def test_tables_that_would_lose_something_are_merged(change: str, nights: Nights) -> None:
    nights.night(transaction(1, 100, table(), insert("1", "a"), insert("2", "b")))
    nights.job.spark.sql(f"ALTER TABLE delta.`{nights.job.path('public', 't')}` {change}")
    nights.night(transaction(2, 200, update("1", "c")))
    assert last_operation(nights.job)[0] == "MERGE"
    assert {row["id"]: row["v"] for row in nights.job.rows("public", "t")} == {"1": "c", "2": "b"}


def test_a_commit_just_before_the_rewrite_is_not_lost(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody changes the table after this run has planned to read it."""
    nights.night(transaction(1, 100, table(), insert("1", "a"), insert("2", "b")))
    path = str(nights.job.path("public", "t"))

    def save_late(writer: object, place: Place) -> None:
        other: SparkSession = nights.job.spark.newSession()
        read_table(other, Place(path)).where("id = 2").selectExpr("'9' AS id", "* EXCEPT (id)").write.format(
            "delta"
        ).mode("append").save(path)
        save(writer, place)

    monkeypatch.setattr(rewrite, "save", save_late)
    nights.night(transaction(2, 200, update("1", "c")))
    assert last_operation(nights.job) == ("WRITE", "Overwrite")
    assert nights.values("t") == [("1", "c"), ("2", "b"), ("9", "b")]


def test_the_last_commit_is_found_whoever_made_it(nights: Nights) -> None:
    nights.night(transaction(1, 100, table(), insert("1", "a"), insert("2", "b")))
    spark, path = nights.job.spark, str(nights.job.path("public", "t"))
    before = newest_commit(spark, Place(path))
    assert before is not None
    assert (before.version, before.operation, before.metrics["numOutputRows"]) == (0, "WRITE", 2)
    info = {"timestamp": 1, "operation": "OPTIMIZE", "operationMetrics": {"numAddedFiles": "3", "p25FileSize": "big"}}
    Path(path, "_delta_log", f"{1:020d}.json").write_text(json.dumps({"commitInfo": info}))  # by another process
    assert newest_commit(spark, Place(path)) == DeltaCommit(1, "OPTIMIZE", {"numAddedFiles": 3})
