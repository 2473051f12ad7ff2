"""All tables as of one commit, read from a season."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession

from pgoutput_etl.errors import RunError
from pgoutput_etl.ledger.as_of import consistent_points, tables_at
from tests.support.season import SOURCE, Season

pytestmark = pytest.mark.spark


def values(frame: DataFrame) -> list[tuple[str, ...]]:
    return sorted((row["id"], row["v"]) for row in frame.collect())


def test_the_newest_commit_is_the_default(spark: SparkSession, season: Season) -> None:
    tables = tables_at(spark, season.ledger, SOURCE)
    assert tables.lsn == 0x500
    assert values(tables["public.orders"]) == [("1", "again"), ("3", "c"), ("4", "d"), ("5", "e")]
    assert values(tables["public.lines_2"]) == [("1", "a"), ("2", "c")]


def test_an_earlier_commit_has_earlier_rows_and_names(spark: SparkSession, season: Season) -> None:
    tables = tables_at(spark, season.ledger, SOURCE, "0/280")
    assert values(tables["public.orders"]) == [("1", "aa"), ("3", "c")]
    assert values(tables["public.lines"]) == [("1", "a")]
    assert "public.lines_2" not in tables


def test_a_held_table_has_its_own_commit(spark: SparkSession, season: Season) -> None:
    held = tables_at(spark, season.ledger, SOURCE).held
    assert held["public.odd"] < 0x280
    assert held["public.spoilt"] < 0x400
    assert "public.orders" not in held


def test_a_commit_within_a_batch_is_refused(spark: SparkSession, season: Season) -> None:
    with pytest.raises(RunError, match="no batch of season ended at 0/200; the nearest that did: 0/1C0 and 0/280"):
        tables_at(spark, season.ledger, SOURCE, 0x200)


def test_an_unknown_source_is_refused(spark: SparkSession, season: Season) -> None:
    with pytest.raises(RunError, match="no batch of other is done yet"):
        tables_at(spark, season.ledger, "other")


def test_every_batch_is_a_consistent_point(spark: SparkSession, season: Season) -> None:
    points = consistent_points(spark, season.ledger, SOURCE).collect()
    assert sorted(row["last_commit_lsn"] for row in points) == [0x1C0, 0x280, 0x380, 0x440, 0x500]
