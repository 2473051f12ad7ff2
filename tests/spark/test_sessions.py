"""Sessions of their own for writes and for few rows: like the one that was given, in all that matters."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.ledger.ledger import Ledger
from pgoutput_etl.spark.platform import MARK, marks_commits, value_of
from pgoutput_etl.spark.session import FOR_FEW_ROWS, session_for_few_rows, session_settings

pytestmark = pytest.mark.spark
CREDENTIAL = "fs.azure.account.key.shop.dfs.core.windows.net"


def test_what_a_notebook_sets_for_storage_holds_in_them(spark: SparkSession) -> None:
    spark.conf.set(CREDENTIAL, "secret")
    try:
        with session_settings(spark, {"spark.sql.shuffle.partitions": "7"}) as writing:
            assert writing is not spark
            assert writing.conf.get(CREDENTIAL) == "secret"
            assert writing.conf.get("spark.sql.shuffle.partitions") == "7"
        few = session_for_few_rows(spark)
        assert few.conf.get(CREDENTIAL) == "secret"
        assert {key: few.conf.get(key) for key in FOR_FEW_ROWS} == FOR_FEW_ROWS
        assert few.conf.get("spark.sql.session.timeZone") == spark.conf.get("spark.sql.session.timeZone") == "UTC"
    finally:
        spark.conf.unset(CREDENTIAL)
    assert spark.conf.get("spark.sql.shuffle.partitions") != "7"


def test_a_ledger_that_is_not_there_is_empty_and_stays_away(spark: SparkSession, tmp_path: Path) -> None:
    ledger = Ledger(spark, str(tmp_path / "ledger"), "shop")
    assert ledger.last_batch() is None
    assert ledger.file_index(None).next_number == 0
    assert ledger.claims().refuse_others(1) is None
    assert ledger.read("transactions").count() == 0
    assert not (tmp_path / "ledger").exists()


def test_asking_whether_commits_are_marked_leaves_the_session_as_it_is(spark: SparkSession) -> None:
    """Also if several ask at once, as the tables of a run that goes on after one that died do."""
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: marks_commits(spark), range(40)))
    assert value_of(spark, MARK) is None
