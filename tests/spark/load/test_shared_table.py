"""Tables that several sources share: after each night every source's rows are those that its own mirror would have."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch
from uuid import uuid4

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pgoutput_etl.answers.verify.request import VerifyRequest
from pgoutput_etl.answers.verify.run import verify
from pgoutput_etl.errors import ConfigError, RunError
from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load import targets
from pgoutput_etl.load.targets import DeltaChanges
from pgoutput_etl.places import Place
from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.spark.delta import delta_table, read_table
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.plan.run import plan
from pgoutput_etl.work.snapshot.request import SnapshotRequest
from pgoutput_etl.work.snapshot.run import snapshot
from pgoutput_etl.work.upkeep import run as maintain_run
from pgoutput_etl.work.upkeep.request import MaintainRequest
from pgoutput_etl.work.upkeep.run import maintain
from tests.support.jobs import Job, Nights, dying, held
from tests.support.shards import FLOAT4, FLOAT8, INT4, INT8, Row, Shard, row_text
from tests.support.small_archives import (
    TOAST,
    Change,
    T,
    delete,
    delete_full,
    insert,
    table,
    transaction,
    truncate,
    update,
)

pytestmark = pytest.mark.spark


def details(shard: Shard) -> Row:
    return delta_table(shard.spark, shard.whole).detail().collect()[0].asDict()


@pytest.mark.parametrize("in_catalog", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_each_source_has_its_own_rows_and_columns_are_united_by_name(
    spark: SparkSession, tmp_path: Path, in_catalog: bool
) -> None:
    target = f"catalog: spark_catalog.s{uuid4().hex[:8]}" if in_catalog else ""
    eu, us = (Shard(spark, tmp_path, name, target=target) for name in ("eu", "us"))
    for shard, value, column in ((eu, "a", ("n", INT4)), (us, "b", "w")):
        relation = table(("id", INT4), "v", column)
        summary = shard.night(transaction(1, 0x100, relation, *(insert(i, value, f"{i}0") for i in "123")))
        assert summary.exit_code == 0
        assert [(t.rows, t.inserted) for t in summary.tables] == [(3, 3)]
    assert details(us)["partitionColumns"] == ["shard"]
    assert sorted((row["shard"], row["id"]) for row in read_table(spark, eu.whole).collect()) == [
        (name, i) for name in ("eu", "us") for i in (1, 2, 3)
    ]
    for shard in (eu, us):
        shard.assert_mirrored()

    # A source renames a column, drops one, and widens another; the rest of the table stays.
    summary = eu.night(
        transaction(2, 0x200, update("1", "x", "6"), delete("2", None, None), insert("4", "y", "7")),
        transaction(3, 0x300, table(("id", INT8), ("n", INT8)), insert("3000000000", "9"), update("3", "6")),
    )
    assert [(t.rows, t.inserted, t.updated, t.deleted) for t in summary.tables] == [(4, 2, 2, 1)]
    us.night(transaction(2, 0x200, table(("id", INT4), "v", "renamed"), update("1", "c", "z"), delete("2", None, None)))
    for shard in (eu, us):
        shard.assert_mirrored()
    columns = read_table(spark, eu.whole).dtypes
    assert {
        "shard": "string",
        "id": "bigint",
        "v": "string",
        "n": "bigint",
        "w": "string",
        "renamed": "string",
    }.items() <= {*columns}

    us.night(transaction(3, 0x300, truncate(T), insert("7", "z", "y")))
    for shard in (eu, us):
        shard.assert_mirrored()


@pytest.mark.soak
def test_a_type_that_does_not_fit_holds_only_its_source(spark: SparkSession, tmp_path: Path) -> None:
    eu, us, ap = (Shard(spark, tmp_path, name) for name in ("eu", "us", "ap"))
    first = table(("id", INT4), "v")
    eu.night(transaction(1, 0x100, first, insert("1", "a")))
    us.night(transaction(1, 0x100, first, insert("1", "b")))
    reason = "column 'v' is int, and string in {}/tables/all/orders, which other sources share"
    for shard, number in ((ap, 1), (us, 2)):
        summary = shard.night(transaction(number, 0x100 * number, table(("id", INT4), ("v", INT4)), insert("2", "5")))
        assert summary.exit_code == 3
        assert held(summary)["t"].startswith(reason.format(tmp_path))
    assert [row["v"] for row in us.rows()] == ["b"], "the rows before the change stay"
    assert ap.rows() == []
    eu.night(transaction(2, 0x200, insert("3", "c")))
    eu.assert_mirrored()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("rule", "nights"),
    [
        ("", 2),  # the sources create the table at the same time, then add columns to it
        ("", 3),
        (", cluster_by: [shard, id], cdf: true", 3),
    ],
)
def test_sources_run_at_the_same_time(spark: SparkSession, tmp_path: Path, rule: str, nights: int) -> None:
    shards = [Shard(spark, tmp_path, name, rule) for name in ("eu", "us", "ap")]
    for night in range(1, nights + 1):
        relation = table(("id", INT4), "v", *(f"c{number}" for number in range(2, night + 1)))
        more = [None] * (night - 1)
        for shard in shards:
            changes: list[Change] = [insert(f"{night}{i}", shard.name, *more) for i in range(20)]
            changes += [update(f"{night - 1}{i}", "x", *more) for i in range(5) if night > 1]
            shard.land(transaction(night, 0x100 * night, relation, *changes))
        with ThreadPoolExecutor(3) as pool:
            summaries = list(pool.map(lambda shard: shard.nights.job.run(), shards))
        assert [summary.exit_code for summary in summaries] == [0, 0, 0]
        assert [t.rows for summary in summaries for t in summary.tables] == [20 * night] * 3
        for shard in shards:
            shard.assert_mirrored()
    assert (details(shards[0])["partitionColumns"], details(shards[0])["clusteringColumns"]) == (
        ([], ["shard", "id"]) if rule else (["shard"], [])
    )


@pytest.mark.soak
def test_a_rebuild_leaves_other_rows_alone(spark: SparkSession, tmp_path: Path) -> None:
    eu, us = Shard(spark, tmp_path, "eu"), Shard(spark, tmp_path, "us")
    for shard in (eu, us):
        shard.night(transaction(1, 0x100, table(("id", INT4), "v"), insert("1", shard.name), insert("2", shard.name)))
        shard.night(transaction(2, 0x200, table(("id", INT4), "v", "w"), update("1", "b", "c")))
    before = us.rows()
    spark.sql(f"DELETE FROM delta.`{tmp_path}/tables/all/orders` WHERE shard = 'eu' AND id = 1")
    assert eu.nights.job.backfill(BackfillRequest(tables=("public.t",))).exit_code == 0
    for shard in (eu, us):
        shard.assert_mirrored()
    assert sorted(map(row_text, us.rows())) == sorted(map(row_text, before))


@pytest.mark.parametrize(
    ("mode", "identity"),
    [
        pytest.param("history", ReplicaIdentity.DEFAULT, marks=pytest.mark.soak),
        pytest.param("history", ReplicaIdentity.FULL, marks=pytest.mark.soak),
        pytest.param("soft_delete", ReplicaIdentity.DEFAULT, marks=pytest.mark.soak),
        pytest.param("append", ReplicaIdentity.DEFAULT, marks=pytest.mark.soak),
        pytest.param("append", ReplicaIdentity.FULL, marks=pytest.mark.soak),
    ],
)
def test_other_modes_equal_tables_of_their_own(
    spark: SparkSession, tmp_path: Path, mode: str, identity: ReplicaIdentity
) -> None:
    eu, us = (Shard(spark, tmp_path, name, f", mode: {mode}") for name in ("eu", "us"))
    alone = Nights(
        Job(spark, tmp_path / "alone", tmp_path / "eu" / "landing", [f"tables=[{{match: '*', mode: {mode}}}]"])
    )
    (tmp_path / "alone").mkdir()
    gone = [delete("2", None)] if identity is ReplicaIdentity.DEFAULT else [delete_full("2", "b")]
    us.night(transaction(1, 0x100, table(("id", INT4), "v", "other"), insert("1", "z", "o")))
    others = us.rows()
    for messages in (
        transaction(1, 0x100, table(("id", INT4), "v", identity=identity), insert("1", "a"), insert("2", "b")),
        [
            *transaction(2, 0x200, *gone, insert("3", "c")),
            *transaction(3, 0x300, table(("id", INT4), "v", "w", identity=identity), insert("4", "d", "e")),
        ],
        transaction(4, 0x400, truncate(T), insert("5", "f", "g")),
    ):
        eu.night(messages)
    # In these modes, rows are never removed: a difference after any night would remain.
    alone.job.run()
    want = alone.job.rows("public", "t")
    names = list(want[0])
    assert sorted(map(_plain, eu.rows(*names))) == sorted(map(_plain, want))
    assert us.rows(*others[0]) == others


def _plain(row: Row) -> str:
    return repr(sorted((name, str(value)) for name, value in row.items()))


@pytest.mark.soak
def test_a_table_without_a_key_is_shared(spark: SparkSession, tmp_path: Path) -> None:
    eu, us = Shard(spark, tmp_path, "eu"), Shard(spark, tmp_path, "us")
    relation = table(("id", INT4), "v", identity=ReplicaIdentity.FULL)
    for shard in (eu, us):
        shard.night(transaction(1, 0x100, relation, insert("1", "a"), insert("1", "a"), insert("2", "b")))
    summary = eu.night(transaction(2, 0x200, delete_full("1", "a"), delete_full("9", "z"), insert("3", "c")))
    assert [(t.rows, t.inserted, t.deleted) for t in summary.tables] == [(3, 1, 1)]
    for shard in (eu, us):
        shard.assert_mirrored()


@pytest.mark.soak
def test_rows_move_to_another_tag_and_out_of_the_shared_table(spark: SparkSession, tmp_path: Path) -> None:
    eu, us = Shard(spark, tmp_path, "eu"), Shard(spark, tmp_path, "us")
    for shard in (eu, us):
        shard.night(transaction(1, 0x100, table(("id", INT4), "v"), insert("1", shard.name)))
    tagged = "tables=[{match: public.t, into: all.orders, tag: {shard: europe}}]"
    eu.land(transaction(2, 0x200, insert("2", "x"))).job.run(tagged)
    assert eu.rows() == []
    europe = read_table(spark, Place(str(tmp_path / "tables" / "all" / "orders")).tagged({"shard": "europe"}))
    assert sorted(row["id"] for row in europe.collect()) == [1, 2]
    eu.land(transaction(3, 0x300, insert("3", "y"))).job.run("tables=[]")
    assert sorted(row["id"] for row in spark.read.format("delta").load(f"{tmp_path}/tables/public/t").collect()) == [
        1,
        2,
        3,
    ]
    assert europe.count() == 0
    us.assert_mirrored()


@pytest.mark.soak
def test_schemas_of_one_source_share_a_table(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    rule = "{match: 'tenant_*.t', into: all.orders, tag: {tenant: '{schema}', kind: 'it''s {table}, [1=1]'}}"
    nights = Nights(Job(spark, tmp_path, landing, [f"tables=[{rule}]"]))
    tenants = [replace(table(oid=oid), namespace=f"tenant_{oid}") for oid in (1, 2, 3)]
    summary = nights.night(transaction(1, 0x100, *tenants, *(insert("1", f"v{oid}", oid=oid) for oid in (1, 2, 3))))
    assert summary.exit_code == 0
    nights.night(transaction(2, 0x200, update("1", "x", oid=2), delete("1", None, oid=3)))
    rows = spark.read.format("delta").load(f"{tmp_path}/tables/all/orders").collect()
    assert sorted((row["tenant"], row["kind"], row["id"], row["v"]) for row in rows) == [
        ("tenant_1", "it's t, [1=1]", "1", "v1"),
        ("tenant_2", "it's t, [1=1]", "1", "x"),
    ]


def test_tables_that_can_not_share_are_refused(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    nights = Nights(Job(spark, tmp_path, landing, ["tables=[{match: 'tenant_*.t', into: all.orders, tag: {k: x}}]"]))
    nights.land(
        transaction(
            1,
            0x100,
            *(replace(table(oid=oid), namespace=f"tenant_{oid}") for oid in (1, 2)),
            insert("1", "a", oid=1),
            insert("1", "a", oid=2),
        )
    )
    with pytest.raises(ConfigError, match="would have the same tag"):
        nights.job.run()
    spark.range(1).write.format("delta").save(f"{tmp_path}/tables/all/mine")
    with pytest.raises(RunError, match=r"all/mine is not shared by sources: .* another name for `into`"):
        nights.job.run("tables=[{match: 'tenant_*.t', into: all.mine, tag: {k: '{schema}'}}]")
    eu = Shard(spark, tmp_path / "again", "eu")
    eu.folder.mkdir()
    eu.night(transaction(1, 0x100, table(("id", INT4), "v"), insert("1", "a")))
    with pytest.raises(RunError, match="has rows and is not in the ledger"):
        eu.nights.job.run(f"state.root={tmp_path / 'lost'}")
    us = Shard(spark, eu.folder, "us")
    us.land(transaction(1, 0x100, table(("id", INT4), "v"), insert("1", "b")))
    with pytest.raises(RunError, match="its column shard says whose a row is: give `tag` the same columns"):
        us.nights.job.run("tables=[{match: public.t, into: all.orders, tag: {other: '{source}'}}]")
    for rule in ("rename: all.orders", "into: all.orders, tag: {n: '{source}', shard: '{source}'}"):
        with pytest.raises(RunError, match="its column shard says whose a row is"):
            us.nights.job.run(f"tables=[{{match: public.t, {rule}}}]")
    with patch.object(targets, "marks_commits", lambda _: False), pytest.raises(RunError, match="this cluster refuses"):
        us.nights.job.run()
    assert us.nights.job.run().exit_code == 0, "nothing was written before"
    for shard in (eu, us):
        shard.assert_mirrored()


@pytest.mark.soak
def test_jobs_see_only_the_rows_of_their_source(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintain_run, "LEDGER_TABLES", ("batches", "claims"))  # the other tables take longer
    eu, us = Shard(spark, tmp_path, "eu"), Shard(spark, tmp_path, "us")
    for shard in (eu, us):
        shard.night(transaction(1, 0x100, table(("id", INT4), ("f", FLOAT4), "v"), insert("1", "0.1", shard.name)))
    us.night(transaction(2, 0x200, table(("id", INT4), ("f", FLOAT8), "v", "w"), insert("2", "0.2", "b", "c")))
    us.night(transaction(3, 0x300, insert("3", "0.3", "b", "c")))

    found = maintain(spark, eu.nights.job.loaded(), MaintainRequest(execute=True), lambda _: None)
    assert [t.left for t in found.tables if t.name == "public.t"] == [()]
    assert found.batch, "the newest version is recorded, so that VACUUM keeps it"
    us.night(transaction(4, 0x400, update("3", TOAST, "bb", TOAST)))
    us.assert_mirrored()

    want = tmp_path / "want.csv"
    want.write_text("id,f,v\n1,0.1,eu\n")
    request = VerifyRequest(csv=str(want), tables=("public.t",))
    summary = verify(spark, eu.nights.job.loaded(), request)
    assert summary.exit_code == 0, "another source has widened a column"
    assert not summary.remarks, "another source has written to it since"
    spark.sql(f"UPDATE delta.`{tmp_path}/tables/all/orders` SET v = 'x' WHERE shard = 'eu'")
    summary = verify(spark, eu.nights.job.loaded(), request)
    assert "Other programs have changed it since" in summary.remarks[0]

    found = maintain(spark, us.nights.job.loaded(), MaintainRequest(execute=True), lambda _: None)
    [of_target] = [t for t in found.tables if t.name == "public.t"]
    assert "another program has changed it" in of_target.left[0]

    eu.land(transaction(2, 0x200, table(("id", INT8), ("f", FLOAT4), "v", "x"), insert("2", "1", "b", "c")))
    [planned] = plan(spark, eu.nights.job.loaded()).tables
    assert planned.path == str(eu.place)
    assert planned.layout == ("widens column id to bigint", "adds column x")
    us.land(transaction(5, 0x500, table(("id", INT4), ("f", FLOAT8), "v", ("w", INT4)), insert("5", "1", "b", "5")))
    [planned] = plan(spark, us.nights.job.loaded()).tables
    assert planned.held is not None
    assert planned.held.startswith("column 'w' is int, and string in")


@pytest.mark.soak
@pytest.mark.parametrize("before", ["the end of the batch", "the write"])
def test_a_run_that_died_is_finished_after_other_sources_wrote(
    spark: SparkSession, tmp_path: Path, before: str
) -> None:
    eu, us = Shard(spark, tmp_path, "eu"), Shard(spark, tmp_path, "us")
    for shard in (eu, us):
        shard.night(transaction(1, 0x100, table(("id", INT4), "v"), insert("1", "a"), insert("2", "b")))
    eu.land(transaction(2, 0x200, table(("id", INT4), "v", "w"), update("1", "x", "y"), insert("3", "c", "d")))

    owner, method = (DeltaChanges, "prepared") if before == "the write" else (DeltaLedger, "close")
    with dying(owner, method):
        eu.nights.job.run()
    us.night(transaction(2, 0x200, table(("id", INT4), "v", "w"), delete("2", None, None), insert("4", "c", "d")))
    summary = eu.nights.job.run()
    assert [(t.rows, t.inserted, t.updated) for t in summary.tables] == [(3, 1, 1)]
    for shard in (eu, us):
        shard.assert_mirrored()


@pytest.mark.soak
def test_a_snapshot_replaces_the_rows_of_its_source(spark: SparkSession, tmp_path: Path) -> None:
    eu, us = Shard(spark, tmp_path, "eu"), Shard(spark, tmp_path, "us")
    for shard in (eu, us):
        shard.night(transaction(1, 0x100, table(("id", INT4), "v"), insert("1", "a"), insert("2", "b")))
        shard.night(transaction(2, 0x300, update("2", "c")))
    rows = tmp_path / "rows.csv"
    rows.write_text("id,v\n1,from the server\n2,old\n7,older than the archive\n")
    request = SnapshotRequest(("public.t",), lsn=0x200, files=str(rows))
    summary = snapshot(spark, eu.nights.job.loaded(), request, lambda _: None)
    assert [(t.loaded, t.changes) for t in summary.tables] == [(3, 1)]
    assert sorted((row["id"], row["v"]) for row in eu.rows()) == [
        (1, "from the server"),
        (2, "c"),
        (7, "older than the archive"),
    ]
    us.assert_mirrored()


@pytest.mark.soak
def test_tables_for_all_readers_are_shared(spark: SparkSession, tmp_path: Path) -> None:
    target = f"root: {tmp_path}/tables, readers: all"
    eu, us = (Shard(spark, tmp_path, name, target=target) for name in ("eu", "us"))
    for shard in (eu, us):
        shard.night(
            transaction(1, 0x100, table(("id", INT4), "v", "gone"), insert("1", "a", "b"), insert("2", "b", "c"))
        )
    eu.night(transaction(2, 0x200, table(("id", INT4), "renamed"), update("1", "x"), delete("2", None)))
    us.night(transaction(2, 0x200, delete("1", None, None), insert("3", "y", "z")))
    for shard in (eu, us):
        shard.assert_mirrored()
    summary = eu.night(transaction(3, 0x300, table(("id", INT8), "renamed"), insert("3000000000", "x")))
    assert held(summary)["t"].startswith("column 'id' is bigint, and int in")
    rows = DeltaTable(str(eu.whole)).to_pyarrow_table().to_pylist()
    assert sorted((row["shard"], row["id"]) for row in rows) == [("eu", 1), ("us", 2), ("us", 3)]


@pytest.mark.soak
def test_a_shared_table_gets_features_once_a_source_needs_them(spark: SparkSession, tmp_path: Path) -> None:
    target = f"root: {tmp_path}/tables, readers: auto"
    eu, us = (Shard(spark, tmp_path, name, target=target) for name in ("eu", "us"))
    for shard in (eu, us):
        shard.night(transaction(1, 0x100, table(("id", INT4), "v", "z"), insert("1", "a", "b")))
    summary = eu.night(transaction(2, 0x200, table(("id", INT4), "renamed", "z"), update("1", "x", "b")))
    assert not any(" on: " in note for note in summary.tables[0].notes), "the other source keeps the column"
    assert DeltaTable(str(eu.whole)).to_pyarrow_table().num_rows == 2
    odd = table(("id", INT8), "renamed", "z", "odd name")
    eu.land(transaction(3, 0x300, odd, insert("3000000000", "x", "b", "c")))
    expected = [
        "type widening on: column 'id' is widened",
        "column mapping on: the name of column 'odd name' has a character that only column mapping allows",
    ]
    [planned] = plan(spark, eu.nights.job.loaded()).tables
    [written] = eu.nights.job.run().tables
    assert [[note for note in notes if " on: " in note] for notes in (planned.layout, written.notes)] == [expected] * 2
    for shard in (eu, us):
        shard.assert_mirrored()


@pytest.mark.soak
def test_several_tags_are_left_at_once(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    nights = Nights(Job(spark, tmp_path, landing))
    rule = "tables=[{match: 'tenant_*.t', into: all.orders, tag: {k: '%s{schema}'}}]"
    tenants = [replace(table(oid=oid), namespace=f"tenant_{oid}") for oid in (1, 2, 3)]
    nights.land(transaction(1, 0x100, *tenants, *(insert("1", "a", oid=oid) for oid in (1, 2, 3))))
    nights.job.run(rule % "")
    nights.land(transaction(2, 0x200, insert("2", "b", oid=1)))
    nights.job.run(rule % "x-")
    rows = spark.read.format("delta").load(f"{tmp_path}/tables/all/orders").collect()
    assert sorted((row["k"], row["id"]) for row in rows) == [
        ("x-tenant_1", "1"),
        ("x-tenant_1", "2"),
        ("x-tenant_2", "1"),
        ("x-tenant_3", "1"),
    ]


@pytest.mark.soak
def test_a_source_can_not_take_the_shared_table_for_itself(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With relative paths, too."""
    monkeypatch.chdir(tmp_path)
    landing = tmp_path / "landing"
    landing.mkdir()
    own = "tables=[{match: public.t, into: public.t, tag: {shard: a}}]"
    nights = Nights(Job(spark, tmp_path, landing, ["target.root=tables"]))
    nights.land(transaction(1, 0x100, table(("id", INT4), "v"), insert("1", "a")))
    nights.job.run(own)
    nights.land(transaction(2, 0x200, insert("2", "b")))
    with pytest.raises(RunError, match="its column shard says whose a row is: choose another name with `rename`"):
        nights.job.run("tables=[]")
    assert nights.job.run(own).exit_code == 0


@pytest.mark.soak
def test_a_source_leaves_with_its_own_columns(spark: SparkSession, tmp_path: Path) -> None:
    """To a table of its own, whose types and columns are the source's, and which goes on from there."""
    eu, us = Shard(spark, tmp_path, "eu"), Shard(spark, tmp_path, "us")
    eu.night(transaction(1, 0x100, table(("id", INT4), ("f", FLOAT4)), insert("1", "0.1")))
    us.night(transaction(1, 0x100, table(("id", INT8), ("f", FLOAT8), "w"), insert("3000000000", "0.1", "b")))
    own = "tables=[{match: public.t, rename: all.own}]"
    assert eu.land(transaction(2, 0x200, insert("2", "0.2"))).job.run(own).exit_code == 0
    rows = read_table(spark, Place(f"{tmp_path}/tables/all/own"))
    assert rows.dtypes[:2] == [("id", "int"), ("f", "float")]
    assert {"shard", "w"}.isdisjoint(rows.columns)
    assert eu.rows() == []
    widened = transaction(3, 0x300, table(("id", INT8), ("f", FLOAT4)), insert("3", "0.3"), delete("1", None))
    assert eu.land(widened).job.run(own).exit_code == 0
    assert sorted(row["id"] for row in read_table(spark, Place(f"{tmp_path}/tables/all/own")).collect()) == [2, 3]
    us.assert_mirrored()


@pytest.mark.soak
def test_rows_that_can_not_move_stay_where_they_are(spark: SparkSession, tmp_path: Path) -> None:
    """The batch moves them, then its changes don't fit. A run that dies meanwhile makes no difference."""
    eu, us = Shard(spark, tmp_path, "eu"), Shard(spark, tmp_path, "us")
    for shard, column in ((eu, "v"), (us, ("v", INT4))):
        relation = table(("id", INT4), column) if shard is us else table(("id", INT4))
        shard.night(transaction(1, 0x100, relation, insert("1", *(["5"] if shard is us else []))))
    tagged = "tables=[{match: public.t, into: all.orders, tag: {shard: europe}}]"
    nights = eu.land(transaction(2, 0x200, table(("id", INT4), "v"), insert("2", "x")))
    with dying(DeltaLedger, "close"):
        nights.job.run(tagged)
    europe = eu.whole.tagged({"shard": "europe"})
    for _ in range(2):
        assert held(nights.job.run(tagged))["t"].startswith("column 'v' is string, and int in")
        assert read_table(spark, europe).count() == 0
        assert [row["id"] for row in eu.rows()] == [1]
        nights = eu.land(transaction(3, 0x300, insert("3", "y")))
    alone = "tables=[{match: public.t, rename: all.own}]"
    assert nights.job.backfill(BackfillRequest(tables=("public.t",)), alone).exit_code == 0, "into a table of its own"
    rows = read_table(spark, Place(f"{tmp_path}/tables/all/own")).collect()
    assert sorted((row["id"], row["v"]) for row in rows) == [(1, None), (2, "x"), (3, "y")]
    assert eu.rows() == []
    us.assert_mirrored()


@pytest.mark.soak
def test_a_rebuild_whose_columns_do_not_fit_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    eu, us = Shard(spark, tmp_path, "eu"), Shard(spark, tmp_path, "us")
    eu.night(transaction(1, 0x100, table(("id", INT4), "v"), insert("1", "a")))
    us.night(transaction(1, 0x100, table(("id", INT4)), insert("1")))
    us.night(transaction(2, 0x200, table(("id", INT4), ("v", INT4)), insert("2", "5")))
    [built] = us.nights.job.backfill(BackfillRequest(tables=("public.t",))).tables
    assert built.table.held is not None
    assert built.table.held.startswith("column 'v' is int, and string in")
    assert [row["id"] for row in us.rows()] == [1]
    us.land(transaction(3, 0x300, insert("3", "6")))
    assert us.nights.job.run().exit_code == 3, "it is held, and the source goes on"
    eu.night(transaction(2, 0x200, insert("2", "b")))
    eu.assert_mirrored()


@pytest.mark.soak
def test_a_table_that_another_source_created_again_is_missed(spark: SparkSession, tmp_path: Path) -> None:
    eu, us = Shard(spark, tmp_path, "eu"), Shard(spark, tmp_path, "us")
    relation = table(("id", INT4), "v")
    eu.night(transaction(1, 0x100, relation, insert("1", "a")))
    shutil.rmtree(str(eu.whole))
    for number in range(1, 4):
        us.night(transaction(number, 0x100 * number, relation, insert(str(number), "b")))
    summary = eu.night(transaction(2, 0x200, insert("2", "b")))
    assert held(summary)["t"].startswith("there is no table at ")
    assert eu.rows() == []
    assert eu.nights.job.backfill(BackfillRequest(tables=("public.t",))).exit_code == 0
    for shard in (eu, us):
        shard.assert_mirrored()


@pytest.mark.soak
def test_clustered_tables_count_own_rows_and_rebuild(spark: SparkSession, tmp_path: Path) -> None:
    rule = ", cluster_by: [shard, id]"
    eu, us = Shard(spark, tmp_path, "eu", rule), Shard(spark, tmp_path, "us", rule)
    relation = table(("id", INT4), "v")
    for shard in (eu, us):
        shard.night(transaction(1, 0x100, relation, insert("1", "a"), insert("2", "b")))
    spark.sql(f"OPTIMIZE delta.`{eu.whole}`")
    summary = eu.night(transaction(2, 0x200, truncate(T), insert("3", "c")))
    assert [(t.rows, t.inserted) for t in summary.tables] == [(1, 1)]
    eu.night(transaction(3, 0x300, table(("id", INT4), "v", "w"), insert("4", "d", "e")))
    assert eu.nights.job.backfill(BackfillRequest(tables=("public.t",))).exit_code == 0
    for shard in (eu, us):
        shard.assert_mirrored()
    assert details(eu)["clusteringColumns"] == ["shard", "id"]


@pytest.mark.soak
def test_a_clustered_table_is_created_by_a_move_and_rows_are_displaced(spark: SparkSession, tmp_path: Path) -> None:
    eu = Shard(spark, tmp_path, "eu", ", cluster_by: [shard, id]")
    relation = table(("id", INT4), "v")
    eu.land(transaction(1, 0x100, relation, insert("1", "a"))).job.run("tables=[]")
    summary = eu.night(transaction(2, 0x200, insert("2", "b")))
    assert [len(t.notes) for t in summary.tables] == [1]
    assert summary.tables[0].notes[0].startswith("table moved")
    assert details(eu)["clusteringColumns"] == ["shard", "id"]
    summary = eu.night(transaction(3, 0x300, replace(relation, oid=T + 1), insert("7", "c", oid=T + 1)))
    assert [row["id"] for row in eu.rows()] == [7]
    [displaced] = [t for t in summary.tables if "/displaced/" in t.path]
    assert sorted(row["id"] for row in read_table(spark, Place(displaced.path)).collect()) == [1, 2]
    assert not [note for t in summary.tables for note in t.notes if "partitioned" in note or "clustered" in note]


@pytest.mark.soak
def test_rows_without_a_key_are_found_in_columns_that_others_widened(spark: SparkSession, tmp_path: Path) -> None:
    eu, us = (Shard(spark, tmp_path, name, ", cdf: true") for name in ("eu", "us"))
    for shard, kind in ((eu, FLOAT4), (us, FLOAT8)):
        relation = table(("id", INT4), ("f", kind), identity=ReplicaIdentity.FULL)
        shard.night(transaction(1, 0x100, relation, insert("1", "0.1"), insert("2", "0.2")))
    summary = eu.night(transaction(2, 0x200, delete_full("1", "0.1"), insert("3", "0.3")))
    assert [(t.rows, t.inserted, t.deleted) for t in summary.tables] == [(2, 1, 1)]
    for shard in (eu, us):
        shard.assert_mirrored()


@pytest.mark.soak
def test_a_run_that_died_after_a_move_is_finished(spark: SparkSession, tmp_path: Path) -> None:
    eu, us = Shard(spark, tmp_path, "eu"), Shard(spark, tmp_path, "us")
    for shard in (eu, us):
        shard.night(transaction(1, 0x100, table(("id", INT4), "v"), insert("1", shard.name)))
    other = "tables=[{match: public.t, into: all.others, tag: {shard: '{source}'}}]"

    eu.land(transaction(2, 0x200, insert("2", "x")))
    with dying(DeltaChanges, "prepared"):
        eu.nights.job.run(other)
    assert eu.nights.job.run(other).exit_code == 0
    moved = read_table(spark, Place(f"{tmp_path}/tables/all/others").tagged({"shard": "eu"}))
    assert sorted(row["id"] for row in moved.collect()) == [1, 2]
    assert eu.rows() == []
    us.assert_mirrored()
