"""A small table that the driver doesn't merge is rewritten instead of merged, unless that would lose something."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.load import driver_merge, rewrite
from pgoutput_etl.places import Place
from pgoutput_etl.spark.delta import read_table, save
from pgoutput_etl.spark.delta_log import DeltaCommit, newest_commit
from pgoutput_etl.targets import write_method
from tests.support.jobs import Job, Nights
from tests.support.small_archives import Change, insert, table, transaction, update

pytestmark = pytest.mark.spark


SMALL, FED, WIDER = 1, 2, 3
NAMES = {SMALL: "small", FED: "fed", WIDER: "wider"}


def last_operation(job: Job, name: str) -> tuple[str, str | None]:
    [row] = job.spark.sql(f"DESCRIBE HISTORY delta.`{job.path('public', name)}` LIMIT 1").collect()
    return row["operation"], row["operationParameters"].get("mode")


@pytest.mark.soak
def test_a_small_table_is_rewritten_unless_that_would_lose_something(
    nights: Nights, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, spark = nights.job, nights.job.spark
    monkeypatch.setattr(driver_merge, "SMALL_BYTES", -1)
    tables = [table(oid=oid, name=name) for oid, name in NAMES.items()]
    rows = [insert(*row, oid=oid) for oid in NAMES for row in (("1", "a"), ("2", "b"))]
    nights.night(transaction(1, 100, *tables, *rows))
    spark.sql(f"ALTER TABLE delta.`{job.path('public', 'fed')}` SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    spark.sql(f"ALTER TABLE delta.`{job.path('public', 'wider')}` ADD COLUMNS (note STRING)")
    others = [update("1", "c", oid=oid) for oid in (FED, WIDER)]
    changes: list[Change] = [update("1", "c", oid=SMALL), insert("3", "d", oid=SMALL), update("3", "e", oid=SMALL)]
    summary = nights.night(transaction(2, 200, *changes, *others))
    assert last_operation(job, "small") == ("WRITE", "Overwrite")
    [written] = (table for table in summary.tables if table.table == "small")
    assert (written.inserted, written.updated, written.deleted, written.rows) == (1, 1, 0, 3)
    for name in ("fed", "wider"):
        assert last_operation(job, name)[0] == "MERGE"
        assert {row["id"]: row["v"] for row in job.rows("public", name)} == {"1": "c", "2": "b"}

    path = str(job.path("public", "small"))

    def save_late(writer: object, place: Place) -> None:
        """Somebody changes the table after this run has planned to read it."""
        other: SparkSession = spark.newSession()
        read_table(other, Place(path)).where("id = 2").selectExpr("'9' AS id", "* EXCEPT (id)").write.format(
            "delta"
        ).mode("append").save(path)
        save(writer, place)

    with monkeypatch.context() as patch:
        patch.setattr(rewrite, "save", save_late)
        nights.night(transaction(3, 300, update("1", "f", oid=SMALL)))
    assert last_operation(job, "small") == ("WRITE", "Overwrite")
    assert nights.values("small") == [("1", "f"), ("2", "b"), ("3", "e"), ("9", "b")]

    monkeypatch.setattr(write_method, "SMALL_ROWS", 2)
    nights.night(transaction(4, 400, update("1", "g", oid=SMALL)))
    assert last_operation(job, "small")[0] == "MERGE"
    assert nights.values("small") == [("1", "g"), ("2", "b"), ("3", "e"), ("9", "b")]


def test_the_last_commit_is_found_whoever_made_it(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    spark.range(2).write.format("delta").save(path)
    before = newest_commit(spark, Place(path))
    assert before is not None
    assert (before.version, before.operation, before.metrics["numOutputRows"]) == (0, "WRITE", 2)
    info = {"timestamp": 1, "operation": "OPTIMIZE", "operationMetrics": {"numAddedFiles": "3", "p25FileSize": "big"}}
    Path(path, "_delta_log", f"{1:020d}.json").write_text(json.dumps({"commitInfo": info}))  # by another process
    assert newest_commit(spark, Place(path)) == DeltaCommit(1, "OPTIMIZE", {"numAddedFiles": 3})


def test_counts_that_spark_has_lost_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lost:
        @property
        def get(self) -> dict[str, int]:
            raise RuntimeError("assertion failed")

    monkeypatch.setattr(rewrite, "_PATIENCE", None)  # forever
    assert rewrite.awaited(Lost()) is None  # type: ignore[arg-type]
