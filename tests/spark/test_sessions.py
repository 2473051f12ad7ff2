"""Separate sessions for writes and for few rows have the settings of the original session."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.errors import ConfigError
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.spark.platform import TRANSACTION_APPLICATION, marks_commits, value_of
from pgoutput_etl.spark.session import FOR_FEW_ROWS, session_for_few_rows, session_settings

pytestmark = pytest.mark.spark
CREDENTIAL = "fs.azure.account.key.shop.dfs.core.windows.net"


def test_separate_sessions_have_storage_settings_of_a_notebook(spark: SparkSession) -> None:
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


def test_a_missing_ledger_is_empty_and_is_not_created(spark: SparkSession, tmp_path: Path) -> None:
    ledger = DeltaLedger.at(spark, str(tmp_path / "ledger"), "shop")
    assert ledger.batches.last() is None
    assert ledger.files.index(None).next_number == 0
    assert ledger.batches.claims().refuse_others(1) is None
    assert ledger.store.read("transactions").count() == 0
    assert not (tmp_path / "ledger").exists()


def test_checking_for_commit_marks_leaves_the_session_unchanged(spark: SparkSession) -> None:
    """Even if several threads check at once, as for the tables of a resumed batch."""
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda _: marks_commits(spark), range(40)))
    assert value_of(spark, TRANSACTION_APPLICATION) is None


def test_a_session_with_other_digits_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    java = cast(Any, spark)._jvm.java.util.Locale
    before = java.getDefault()
    java.setDefault(java.forLanguageTag("ar-EG"))
    try:
        with pytest.raises(ConfigError, match="the language of Spark's Java has other digits"):
            DeltaLedger.at(spark, str(tmp_path / "ledger"), "shop")
    finally:
        java.setDefault(before)
