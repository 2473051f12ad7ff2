"""The ledger's tables on storage that delta-rs can't open: the driver reads and appends few rows as Spark would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.ledger import few_rows
from pgoutput_etl.ledger.store import LedgerStore
from pgoutput_etl.ledger.tables import SCHEMAS
from pgoutput_etl.places import Place
from pgoutput_etl.spark.delta_write import DeltaWrite

pytestmark = pytest.mark.spark

ROWS = [{"oid": 1, "schema": "public", "name": "mood"}, {"oid": 2, "schema": "odd", "name": None}]
NAMES = ("batch", "oid", "schema", "name")

VALUES: dict[pa.DataType, Any] = {
    pa.string(): "t\u00e9xt",
    pa.int64(): 1 << 40,
    pa.int32(): -7,
    pa.int16(): 300,
    pa.uint8(): 7,
    pa.bool_(): True,
    pa.binary(): b"\0\xff",
    pa.timestamp("us", "UTC"): datetime(2026, 11, 30, 1, 2, 3, 456789, timezone.utc),
}


def value(kind: pa.DataType) -> Any:
    if pa.types.is_map(kind):
        return [(value(kind.key_type), value(kind.item_type))]
    if pa.types.is_list(kind):
        return [value(kind.value_type)]
    if pa.types.is_struct(kind):
        return {field.name: value(field.type) for field in kind}
    return VALUES[kind]


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A folder that delta-rs would take for another."""
    return str(tmp_path / "a%20b")


@contextmanager
def without_jobs(spark: SparkSession) -> Iterator[None]:
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    yield
    assert set(tracker.getJobIdsForGroup()) == before


def in_order(store: LedgerStore, first: int, before: int) -> list[dict[str, Any]]:
    return sorted(store.rows("types", NAMES, first, before), key=lambda row: int(row["oid"]))


def test_each_table_is_read_and_appended_without_a_job(spark: SparkSession, root: str) -> None:
    store = LedgerStore(spark, root, "shop")
    for table in ("batches", "files", "relations", "transactions", "open_transactions"):  # with all types
        schema = SCHEMAS[table]
        others = {field.name: value(field.type) for field in schema if field.name not in ("source", "batch")}
        store.append_rows(table, [others, {}], 1)  # for a new table's state, Delta itself starts a job
        with without_jobs(spark):
            store.append_rows(table, [others], 2)
            few = store.columns(table, schema.names)
        by_spark = store.read(table).select(*schema.names).toArrow()
        rows = [{"source": "shop", "batch": batch, **others} for batch in (1, 2)]
        empty = dict.fromkeys(schema.names) | {"source": "shop", "batch": 1}
        expected = pa.Table.from_pylist([rows[0], empty, rows[1]], schema)
        assert few.sort_by([("batch", "ascending")]).equals(expected), table
        assert by_spark.cast(schema).sort_by([("batch", "ascending")]).equals(expected), table


def test_each_source_has_its_rows_once(spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shop, other = (LedgerStore(spark, root, name) for name in ("shop", "other"))
    assert shop.rows("types", NAMES) == []
    shop.append_rows("types", ROWS, 1)
    with without_jobs(spark):
        for batch in (1, 2, 2):
            shop.append_rows("types", ROWS, batch)
        shop.append_rows("types", ROWS[:1], 2, "again")
        other.append_rows("types", ROWS[1:], 1)
        by_driver = shop.rows("types", NAMES)
        of_second = [{"batch": 2, **row} for row in (*ROWS, ROWS[0])]
        assert sorted(map(str, shop.rows("types", NAMES, 2, 3))) == sorted(map(str, of_second))
        assert shop.rows("types", NAMES, 3) == []
        assert other.rows("types", NAMES) == [{"batch": 1, **ROWS[1]}]
    assert len(by_driver) == 5
    [last] = spark.sql(f"DESCRIBE HISTORY delta.`{root}/types` LIMIT 1").collect()
    assert (last["version"], last["operation"], last["operationParameters"]["mode"]) == (3, "WRITE", "Append")
    monkeypatch.setattr(few_rows, "FEW_BYTES", -1)
    shop.append_rows("types", ROWS, 2)
    assert sorted(map(str, shop.rows("types", NAMES))) == sorted(map(str, by_driver))


def test_a_column_of_a_newer_version_is_added_by_spark(spark: SparkSession, root: str) -> None:
    store = LedgerStore(spark, root, "shop")
    store.append("types", store.frame("types", ROWS, 1).drop("schema"), 1)
    before = [{"batch": 1, **row, "schema": None} for row in ROWS]
    assert in_order(store, 0, 2) == before
    store.append_rows("types", ROWS, 2)
    assert in_order(store, 2, 3) == [{"batch": 2, **row} for row in ROWS]
    assert in_order(store, 0, 2) == before


@pytest.mark.parametrize("is_new", [True, False])
def test_a_commit_that_came_first_is_no_obstacle(
    is_new: bool, spark: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, other = (LedgerStore(spark, root, name) for name in ("shop", "other"))
    if not is_new:
        shop.append_rows("types", ROWS, 1)
    commit = DeltaWrite.commit

    def commit_late(self: DeltaWrite, *given: Any) -> int:
        monkeypatch.setattr(DeltaWrite, "commit", commit)
        other.append_rows("types", ROWS, 1)
        return commit(self, *given)

    monkeypatch.setattr(DeltaWrite, "commit", commit_late)
    shop.append_rows("types", ROWS, 2)
    assert len(other.rows("types", NAMES)) == 2
    assert in_order(shop, 2, 3) == [{"batch": 2, **row} for row in ROWS]
    assert spark.read.format("delta").load(f"{root}/types").count() == (4 if is_new else 6)


def test_deleted_rows_and_damage_are_left_to_spark(spark: SparkSession, root: str) -> None:
    store, place = LedgerStore(spark, root, "shop"), Place(f"{root}/types")
    store.append_rows("types", ROWS, 1)
    spark.sql(f"ALTER TABLE {place.identifier} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM {place.identifier} WHERE oid = 2")
    assert [*Path(root, "types").glob("deletion_vector*")]
    assert store.rows("types", ("oid",)) == [{"oid": 1}]
    store.append_rows("types", ROWS, 2)
    assert sorted(row["oid"] for row in store.rows("types", ("oid",))) == [1, 1, 2]
    store.append_rows("claims", [{"attempt": 1}], 1)
    [file] = Path(root, "claims").glob("*.parquet")
    file.write_bytes(b"PAR1 no more")
    with pytest.raises(Exception, match=file.name):
        store.rows("claims", ("attempt",))
