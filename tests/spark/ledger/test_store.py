"""The ledger's tables on local storage: delta-rs and Spark mean the same folder, and give the same rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.ledger.batch import Batch
from pgoutput_etl.ledger.store import LedgerStore

pytestmark = pytest.mark.spark

ROWS = [{"oid": 1, "schema": "public", "name": "mood"}, {"oid": 2, "schema": "odd", "name": None}]


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_both_libraries_mean_the_same_folder(
    scheme: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "a b"
    store = LedgerStore(spark, f"{scheme}{root}", "shop")
    assert store._local is not None
    store.append_rows("types", ROWS, 1)
    assert (root / "types" / "_delta_log").is_dir()
    store.append("types", store.frame("types", ROWS[:1], 2), 2)
    names = ("batch", "oid", "schema", "name")
    by_delta_rs = store.rows("types", names)
    third = Batch.after(Batch.after(Batch.after(None, {}), {}), {})
    few, nothing = store.few_before("types", third), store.few_before("transactions", third)
    assert few is not None
    assert sorted(map(str, few.to_pylist())) == sorted(str(row.asDict()) for row in store.read("types").collect())
    assert nothing is not None
    assert nothing.num_rows == 0
    monkeypatch.setattr("pgoutput_etl.ledger.store.FEW_BYTES", 10)
    assert store.few_before("types", third) is None
    store._local = None
    key = [(row["batch"], row["oid"]) for row in by_delta_rs]
    assert sorted(key) == [(1, 1), (1, 2), (2, 1)]
    by_spark = store.rows("types", names)
    assert sorted(map(str, by_spark)) == sorted(map(str, by_delta_rs))
    assert store.rows("types", names, 2) == [{"batch": 2, **ROWS[0]}]
    assert store.rows("types", names, 0, 1) == []


def test_a_relative_folder_is_below_sparks_working_directory(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = LedgerStore(spark, "./ledger", "shop")._local
    monkeypatch.chdir(tmp_path)
    after = LedgerStore(spark, "./ledger", "shop")._local
    assert before is not None
    assert after == before
    assert Path(before.root.path).is_absolute()


def test_other_storage_is_left_to_spark(spark: SparkSession, tmp_path: Path) -> None:
    store = LedgerStore(spark, f"{tmp_path}/a%20b", "shop")
    assert store._local is None
    store.append_rows("types", ROWS, 1)
    assert (tmp_path / "a%20b" / "types" / "_delta_log").is_dir()
    assert len(store.rows("types", ("oid",))) == len(ROWS)
    session = spark.newSession()
    session.conf.set("spark.delta.logStore.class", "org.example.OwnLogStore")
    assert LedgerStore(session, str(tmp_path), "shop")._local is None
