"""Tables that several sources share, where one source's work meets another's: moved files, names, types, backfills."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.errors import RunError
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.spark.delta import read_table
from pgoutput_etl.spark.session import session_settings
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.plan.run import plan
from pgoutput_etl.work.snapshot.request import SnapshotRequest
from pgoutput_etl.work.snapshot.run import snapshot
from tests.support.jobs import Job, Nights
from tests.support.shards import FLOAT4, INT4, INT8, Shard
from tests.support.small_archives import T, delete_full, insert, table, transaction, update

pytestmark = [pytest.mark.spark, pytest.mark.soak]

NUMERIC = 1700

U = T + 1


def test_rows_move_although_others_have_deleted_the_files(spark: SparkSession, tmp_path: Path) -> None:
    eu, us = Shard(spark, tmp_path, "eu"), Shard(spark, tmp_path, "us")
    for number in range(1, 4):
        for shard in (eu, us):
            shard.night(transaction(number, 0x100 * number, table(("id", INT4), "v"), insert(f"{number}", shard.name)))
    spark.sql(f"OPTIMIZE delta.`{eu.whole}`")
    with session_settings(spark, {"spark.databricks.delta.retentionDurationCheck.enabled": "false"}) as session:
        session.sql(f"VACUUM delta.`{eu.whole}` RETAIN 0 HOURS")
    moved = "tables=[{match: public.t, into: all.orders, tag: {shard: europe}}]"
    assert eu.land(transaction(4, 0x400, update("1", "x"))).job.run(moved).exit_code == 0
    europe = read_table(spark, eu.whole.tagged({"shard": "europe"})).collect()
    assert sorted((row["id"], row["v"]) for row in europe) == [(1, "x"), (2, "eu"), (3, "eu")]
    assert eu.rows() == []
    us.assert_mirrored()


def test_a_snapshot_does_not_take_the_place_of_another_table(
    spark: SparkSession, tmp_path: Path, landing: Path
) -> None:
    """The configuration gives two tables each other's tags."""
    nights = Nights(Job(spark, tmp_path, landing))
    rules = (
        "tables=[{{match: public.t, into: all.o, tag: {{k: {}}}}}, {{match: public.u, into: all.o, tag: {{k: {}}}}}]"
    )
    both = (table(), table(oid=U, name="u"), insert("1", "t"), insert("1", "u", oid=U))
    nights.land(transaction(1, 0x100, *both))
    nights.job.run(rules.format("a", "b"))
    rows = tmp_path / "rows.csv"
    rows.write_text("id,v\n1,t\n2,new\n")
    request = SnapshotRequest(("public.t",), lsn=0x200, files=str(rows))
    swapped = rules.format("b", "a")
    with pytest.raises(RunError, match=r"all/o\[k=b\] has the rows of public\.u, and is the place of public\.t now"):
        snapshot(spark, nights.job.loaded(swapped), request, lambda _: None)
    nights.land(transaction(2, 0x180, insert("2", "u", oid=U)))
    nights.job.run(swapped)
    snapshot(spark, nights.job.loaded(swapped), request, lambda _: None)
    found = read_table(spark, Place(f"{tmp_path}/tables/all/o")).collect()
    assert sorted((row["k"], row["id"], row["v"]) for row in found) == [
        ("a", "1", "u"),
        ("a", "2", "u"),
        ("b", "1", "t"),
        ("b", "2", "new"),
    ]


def test_rows_without_a_key_are_found_in_any_number_that_others_widened(spark: SparkSession, tmp_path: Path) -> None:
    eu, us = (Shard(spark, tmp_path, name, ", cdf: true") for name in ("eu", "us"))
    wide = (9 << 16 | 2) + 4, (12 << 16 | 2) + 4  # typmods of numeric(9,2) and numeric(12,2)
    for shard, kind, modifier in ((eu, INT4, wide[0]), (us, INT8, wide[1])):
        relation = table(("id", kind), ("n", NUMERIC), identity=ReplicaIdentity.FULL)
        id_column, number = relation.columns
        relation = type(relation)(
            *(relation.xid, relation.oid, relation.namespace, relation.name, relation.replica_identity),
            (id_column, type(number)(number.is_key, number.name, number.type_oid, modifier)),
        )
        shard.night(transaction(1, 0x100, relation, insert("1", "0.10"), insert("2", "0.20")))
    summary = eu.night(transaction(2, 0x200, delete_full("1", "0.10"), insert("3", "0.30")))
    assert [(t.rows, t.inserted, t.deleted) for t in summary.tables] == [(2, 1, 1)]
    assert sorted(row["id"] for row in eu.rows()) == [2, 3]
    assert sorted(row["id"] for row in us.rows()) == [1, 2]


def test_another_source_brings_a_name_that_not_all_readers_know(spark: SparkSession, tmp_path: Path) -> None:
    target = f"root: {tmp_path}/tables, readers: all"
    eu, us = (Shard(spark, tmp_path, name, target=target) for name in ("eu", "us"))
    eu.night(transaction(1, 0x100, table(("id", INT4), "v"), insert("1", "a")))
    us.night(transaction(1, 0x100, table(("id", INT4), "odd name"), insert("1", "b")))
    summary = eu.night(transaction(2, 0x200, insert("2", "b")))
    assert summary.exit_code == 0
    assert "not for all readers: the name of column 'odd name' has a character" in str(summary.tables[0].notes)
    for shard in (eu, us):
        shard.assert_mirrored()


def test_columns_keep_their_own_spelling(spark: SparkSession, tmp_path: Path) -> None:
    """A source that leaves the table can go on with the names that its Relation messages have."""
    eu, us = Shard(spark, tmp_path, "eu"), Shard(spark, tmp_path, "us")
    us.night(transaction(1, 0x100, table(("id", INT4), "Value"), insert("1", "b")))
    eu.night(transaction(1, 0x100, table(("id", INT4), "value"), insert("1", "a")))
    own = "tables=[{match: public.t, rename: all.own}]"
    assert eu.land(transaction(2, 0x200, insert("2", "b"))).job.run(own).exit_code == 0
    assert read_table(spark, Place(f"{tmp_path}/tables/all/own")).columns[:2] == ["id", "value"]
    dropped = transaction(3, 0x300, table(("id", INT8), "w"), insert("3", "c"))
    declared = own.replace("}]", ", columns: {w: added, id: {renamed_from: id}}}]")
    assert eu.land(dropped).job.run(declared).exit_code == 0
    rows = read_table(spark, Place(f"{tmp_path}/tables/all/own")).select("id", "w").collect()
    assert sorted(map(tuple, rows)) == [(1, None), (2, None), (3, "c")]


def test_a_backfill_beside_a_shared_table_starts_from_a_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    eu, us = Shard(spark, tmp_path, "eu"), Shard(spark, tmp_path, "us")
    for shard in (eu, us):
        shard.night(transaction(1, 0x100, table(("id", INT4), "v"), insert("1", "a")))
    rows = tmp_path / "rows.csv"
    rows.write_text("id,v\n1,a\n7,older\n")
    snapshot(spark, eu.nights.job.loaded(), SnapshotRequest(("public.t",), lsn=0x200, files=str(rows)), lambda _: None)
    for number in (2, 3):
        eu.night(transaction(number, 0x100 * number, insert(f"{number}", "b")))
    beside = BackfillRequest(tables=("public.t",), out=str(tmp_path / "copy"), to_lsn=0x200)
    assert eu.nights.job.backfill(beside).exit_code == 0
    copy = read_table(spark, Place(f"{tmp_path}/copy/all/orders").tagged({"shard": "eu"}))
    assert sorted(row["id"] for row in copy.collect()) == [1, 2, 7]


def test_the_plan_finds_what_does_not_fit_before_the_last_change_of_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    eu, us = Shard(spark, tmp_path, "eu"), Shard(spark, tmp_path, "us", ", mode: soft_delete")
    eu.night(transaction(1, 0x100, table(("id", INT4), ("v", FLOAT4)), insert("1", "1")))
    us.land(transaction(1, 0x100, table(("id", INT4)), insert("1")))
    [planned] = plan(spark, us.nights.job.loaded()).tables
    assert planned.layout == ("adds column _pg_deleted",)
    us.nights.job.run()
    us.land(
        transaction(2, 0x200, table(("id", INT4), "v"), insert("2", "x")),
        transaction(3, 0x300, table(("id", INT4)), insert("3")),
    )
    [planned] = plan(spark, us.nights.job.loaded()).tables
    assert planned.held is not None
    assert planned.held.startswith("column 'v' is string, and float in")
