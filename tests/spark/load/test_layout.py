"""The configured layout of tables, and what tables keep of their own: clustering, partitions, properties, comments."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.identifiers import quoted
from pgoutput_etl.protocol.messages import ReplicaIdentity
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.files.report import RunSummary
from pgoutput_etl.work.plan.run import plan
from pgoutput_etl.work.upkeep.report import MaintainedTable
from pgoutput_etl.work.upkeep.request import MaintainRequest
from pgoutput_etl.work.upkeep.run import maintain
from tests.support.jobs import Job, Nights, held
from tests.support.small_archives import T, delete_full, insert, table, transaction, truncate, update

pytestmark = pytest.mark.spark

BAG, PAST, GONE, LOG = 11, 12, 13, 14
INT8 = 20
FULL, DEFAULT = ReplicaIdentity.FULL, ReplicaIdentity.DEFAULT
CLUSTERED = (
    "cluster_by: [v], properties: {delta.logRetentionDuration: interval 40 days, team.owner: it's}, comment: O'K"
)
RULES = (
    "tables=["
    f"{{match: public.past, mode: history, {CLUSTERED}}}, "
    f"{{match: public.gone, mode: soft_delete, {CLUSTERED}}}, "
    f"{{match: public.log, mode: append, {CLUSTERED}}}, "
    f"{{match: '*', {CLUSTERED}}}]"
)


@dataclass(frozen=True)
class Found:
    partition_by: list[str]
    cluster_by: list[str]
    comment: str | None
    properties: dict[str, str]
    comments: dict[str, str]


PROPERTIES = {
    "delta.checkpointInterval": "100",  # of every new table
    "delta.logRetentionDuration": "interval 40 days",
    "team.owner": "it's",
}
CONFIGURED = Found([], ["v"], "O'K", PROPERTIES, {})


def place(job: Job, name: str) -> str:
    catalog = job.loaded().target.catalog
    if catalog is not None:
        return f"spark_catalog.{catalog.partition('.')[2]}_public.{name}"
    return f"delta.{quoted(str(job.path('public', name)))}"


def found(job: Job, name: str) -> Found:
    [detail] = job.spark.sql(f"DESCRIBE DETAIL {place(job, name)}").collect()
    own = {k: v for k, v in detail["properties"].items() if k not in _DEFAULT and "columnMapping" not in k}
    fields = job.spark.table(place(job, name)).schema
    comments = {field.name: field.metadata["comment"] for field in fields if "comment" in field.metadata}
    return Found(detail["partitionColumns"], detail["clusteringColumns"], detail["description"], own, comments)


_DEFAULT = ("delta.enableDeletionVectors",)


def notes(summary: RunSummary, name: str) -> str:
    return "; ".join(note for t in summary.tables if t.table == name for note in t.notes)


def job_with(spark: SparkSession, folder: Path, landing: Path, *overrides: str) -> Nights:
    return Nights(Job(spark, folder, landing, list(overrides)))


def alter(job: Job, name: str, clause: str) -> None:
    job.spark.sql(f"ALTER TABLE {place(job, name)} {clause}")


@pytest.mark.soak
def test_every_mode_creates_its_tables_with_the_layout(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    nights = job_with(spark, tmp_path, landing, RULES)
    others = {BAG: "bag", PAST: "past", GONE: "gone", LOG: "log"}
    tables = [
        table(oid=oid, name=n, identity=FULL if oid == BAG else ReplicaIdentity.DEFAULT) for oid, n in others.items()
    ]
    oids = (T, *others)
    nights.night(transaction(1, 0x100, table(), *tables, *(insert(i, "a", oid=oid) for oid in oids for i in "123")))
    assert {name: found(nights.job, name) for name in ("t", *others.values())} == dict.fromkeys(
        ("t", *others.values()), CONFIGURED
    )

    # A MERGE, a rewritten bag, and an overwrite after a TRUNCATE
    keyed = [update("1", "b", oid=oid) for oid in oids if oid != BAG]
    nights.night(transaction(2, 0x200, *keyed, delete_full("2", "a", oid=BAG)))
    nights.night(transaction(3, 0x300, *(truncate(oid) for oid in oids), *(insert("9", "z", oid=oid) for oid in oids)))
    assert {name: found(nights.job, name) for name in ("t", *others.values())} == dict.fromkeys(
        ("t", *others.values()), CONFIGURED
    )
    assert nights.values("t") == [("9", "z")] == nights.values("bag")


@pytest.mark.soak
@pytest.mark.parametrize("in_catalog", [False, True])
def test_what_users_set_themselves_is_kept(
    spark: SparkSession, tmp_path: Path, landing: Path, in_catalog: bool
) -> None:
    catalog = [f"target={{catalog: spark_catalog.s{uuid4().hex[:8]}}}", f"state.root={tmp_path / 'ledger'}"]
    nights = job_with(spark, tmp_path, landing, *(catalog if in_catalog else ()))
    job = nights.job
    nights.night(transaction(1, 0x100, table(), insert("1", "a"), insert("2", "b")))
    alter(job, "t", "SET TBLPROPERTIES ('delta.checkpointInterval' = '7', 'mine' = 'x', 'comment' = 'ours')")
    alter(job, "t", "ALTER COLUMN v COMMENT 'the value'")
    alter(job, "t", "CLUSTER BY (v)")
    users = Found([], ["v"], "ours", {"delta.checkpointInterval": "7", "mine": "x"}, {"v": "the value"})

    assert found(job, "t") == users
    nights.night(transaction(2, 0x200, update("1", "aa"), insert("3", "c")))
    assert found(job, "t") == users, "a small table is not rewritten if it is clustered"
    nights.night(transaction(3, 0x300, truncate(T), insert("4", "d")))
    assert found(job, "t") == users, "TRUNCATE"
    nights.night(transaction(4, 0x400, table(name="renamed"), insert("5", "e")))
    assert found(job, "renamed") == users, "the rows have moved"
    nights.night(transaction(5, 0x500, table(("id", 25), ("v", 17), name="renamed"), insert("6", "\\x66")))
    assert found(job, "renamed").comments == users.comments, "the columns' values were rewritten"
    assert found(job, "renamed").properties == users.properties
    assert found(job, "renamed").cluster_by == [], "Delta has no statistics for the column's new type"
    rebuilt = job.backfill(BackfillRequest(tables=("public.renamed",)))
    assert [condition.state for condition in rebuilt.conditions] == ["ambiguous"], "is v another column?"
    assert found(job, "renamed").properties == users.properties, "rebuilt"
    assert found(job, "renamed").comment == "ours"


@pytest.mark.soak
@pytest.mark.parametrize("in_catalog", [False, True])
def test_partitions_are_kept(spark: SparkSession, tmp_path: Path, landing: Path, in_catalog: bool) -> None:
    catalog = [f"target={{catalog: spark_catalog.s{uuid4().hex[:8]}}}", f"state.root={tmp_path / 'ledger'}"]
    nights = job_with(spark, tmp_path, landing, *(catalog if in_catalog else ()))
    job, own = nights.job, nights.job.overrides[:]
    job.overrides[:] = [*own, "tables=[{match: '*', partition_by: [v]}]"]
    nights.night(transaction(1, 0x100, table("id", ("v", INT8)), insert("1", "1"), insert("2", "2")))

    job.overrides[:] = own  # nothing is taken away
    nights.night(transaction(2, 0x200, update("1", "3"), insert("3", "2")))
    assert found(job, "t").partition_by == ["v"]
    nights.night(transaction(3, 0x300, truncate(T), insert("4", "4")))
    assert found(job, "t").partition_by == ["v"], "TRUNCATE"
    nights.night(transaction(4, 0x400, table("id", ("v", INT8), name="renamed"), insert("5", "5")))
    assert found(job, "renamed").partition_by == ["v"]
    job.overrides[:] = [*own, "tables=[{match: '*', columns: {w: {renamed_from: v}}}]"]
    nights.night(transaction(5, 0x500, table("id", ("w", INT8), name="renamed"), insert("6", "6")))
    assert found(job, "renamed").partition_by == ["w"], "the column has another name"
    assert sorted(row["w"] for row in spark.table(place(job, "renamed")).collect()) == [4, 5, 6]


@pytest.mark.soak
def test_plan_shows_the_layout_and_maintenance_clusters(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    nights = job_with(spark, tmp_path, landing, "tables=[{match: '*', cluster_by: [v], comment: c}]")
    job = nights.job

    def planned() -> tuple[str, ...]:
        [planned] = plan(spark, job.loaded()).tables
        return planned.layout

    nights.land(transaction(1, 0x100, table(), insert("1", "a"), insert("2", "b")))
    assert planned() == ("comment", "clustered by v")
    job.run()
    nights.land(transaction(2, 0x200, insert("3", "a"), update("2", "c")))
    assert planned() == ()
    job.overrides[:] = ["tables=[{match: '*', cluster_by: [id], partition_by: null}]"]
    assert planned() == ("clustered by id",)
    job.run()

    def maintained(**options: bool) -> MaintainedTable:
        request = MaintainRequest(tables=("public.t",), only=("optimize",), execute=True, **options)
        return maintain(spark, job.loaded(), request, lambda _: None).tables[0]

    assert maintained().steps == ("cluster",)
    assert maintained().steps == (), "nothing has changed since"
    assert maintained(zorder=True).left == ("it is clustered, which orders its rows: --zorder does not apply",)
    [last] = spark.sql(f"DESCRIBE HISTORY {place(job, 't')} LIMIT 1").collect()
    assert (last["operation"], json.loads(last["operationParameters"]["clusterBy"])) == ("OPTIMIZE", ["id"])
    nights.night(transaction(3, 0x300, insert("4", "a")))
    assert maintained().steps == ("cluster",)
    assert nights.values("t") == [("1", "a"), ("2", "c"), ("3", "a"), ("4", "a")]


@pytest.mark.soak
def test_two_tables_that_swap_names(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    nights = job_with(spark, tmp_path, landing)
    job = nights.job
    nights.night(
        transaction(
            1, 0x100, table(), table("id", "w", oid=GONE, name="u"), insert("1", "a"), insert("2", "b", oid=GONE)
        )
    )
    alter(job, "t", "CLUSTER BY (v)")
    alter(job, "t", "SET TBLPROPERTIES ('comment' = 'of t')")
    away, other, back = table(name="x"), table("id", "w", oid=GONE, name="t"), table(name="u")
    nights.night(transaction(2, 0x200, away, other, insert("3", "c", oid=GONE), back, insert("4", "d")))
    assert (nights.values("t"), nights.values("u")) == ([("2", "b"), ("3", "c")], [("1", "a"), ("4", "d")])
    # The second one to move finds the first one's rows in its old place, and takes no layout from there.
    assert (found(job, "t").cluster_by, found(job, "u").cluster_by) == ([], [])


@pytest.mark.soak
def test_existing_tables_get_a_changed_layout(spark: SparkSession, tmp_path: Path, landing: Path) -> None:
    nights = job_with(spark, tmp_path, landing)
    job = nights.job
    nights.night(transaction(1, 0x100, table("id", "v", ("n", INT8)), insert("1", "a", "7"), insert("2", "b", "8")))
    job.overrides[:] = [RULES]
    summary = nights.night(transaction(2, 0x200, update("1", "aa", "7")))
    assert found(job, "t") == CONFIGURED
    assert "clustered by v" in notes(summary, "t")
    assert "property delta.logRetentionDuration; property team.owner; comment" in notes(summary, "t")
    assert notes(nights.night(transaction(3, 0x300, update("1", "bb", "7"))), "t") == "", "only once"

    job.overrides[:] = ["tables=[{match: '*', partition_by: [n]}]"]
    summary = nights.night(transaction(4, 0x400, update("2", "cc", "8")))
    assert "partitioned by nothing until it is rebuilt from the archive" in notes(summary, "t")
    assert found(job, "t") == CONFIGURED, "nothing is taken away"
    job.backfill(BackfillRequest(tables=("public.t",)))
    assert found(job, "t").partition_by == ["n"]
    assert found(job, "t").comment == "O'K"
    summary = nights.night(transaction(5, 0x500, update("2", "dd", "9"), insert("3", "e", None)))
    assert (notes(summary, "t"), found(job, "t").partition_by) == ("", ["n"])
    assert nights.values("t") == [("1", "bb", 7), ("2", "dd", 9), ("3", "e", None)]

    job.overrides[:] = ["tables=[{match: '*', cluster_by: [v]}]"]
    summary = nights.night(transaction(6, 0x600, update("2", "ee", "9")))
    assert "partitioned by n, not clustered, until it is rebuilt" in notes(summary, "t")
    nights.night(transaction(7, 0x700, truncate(T), insert("7", "f", "1")))
    assert (found(job, "t").partition_by, found(job, "t").cluster_by) == ([], ["v"])


def test_a_layout_that_does_not_fit_is_noted_and_holds_nothing(
    spark: SparkSession, tmp_path: Path, landing: Path
) -> None:
    rules = "tables=[{match: public.t, cluster_by: [tenant]}, {match: public.u, partition_by: [b]}, "
    rules += "{match: public.w, partition_by: [v]}]"
    nights = job_with(spark, tmp_path, landing, rules)
    other = table("id", ("b", 17), oid=BAG, name="u")
    text = table(oid=GONE, name="w")
    rows = [insert("1", "a"), insert("1", "\\x00", oid=BAG), insert("1", "", oid=GONE)]
    summary = nights.night(transaction(1, 0x100, table(), other, text, *rows))
    assert held(summary) == {}
    assert "not clustered: it has no column 'tenant'" in notes(summary, "t")
    assert "not partitioned: column 'b' has a type that Delta can't partition by" in notes(summary, "u")

    assert "not partitioned: column 'v' may have an empty text, which Delta stores as NULL" in notes(summary, "w")
    assert nights.values("w") == [("1", "")]

    wider = table("id", "v", "tenant")
    summary = nights.night(transaction(2, 0x200, wider, insert("2", "b", "eu")))
    assert "clustered by tenant" in notes(summary, "t")
    assert found(nights.job, "t").cluster_by == ["tenant"]

    emptied = table("id", "v", "more", oid=BAG, name="u")
    job = nights.job
    job.overrides[:] = ["tables=[{match: '*', cluster_by: [more]}]"]
    nights.night(transaction(3, 0x300, emptied, truncate(BAG), insert("2", "x", "y", oid=BAG)))
    assert found(job, "u").cluster_by == ["more"], "the column is new with an overwrite"


@pytest.mark.soak
@pytest.mark.parametrize("exists", [False, True])
def test_a_property_that_delta_refuses_holds_its_table(
    spark: SparkSession, tmp_path: Path, landing: Path, exists: bool
) -> None:
    nights = job_with(spark, tmp_path, landing)
    if exists:
        nights.night(transaction(1, 0x100, table(), insert("0", "a")))
    nights.land(transaction(2, 0x200, table(), table(oid=BAG, name="u"), insert("1", "b"), insert("1", "b", oid=BAG)))
    summary = nights.job.run("tables=[{match: public.t, properties: {delta.nonsense: 1}}]")
    assert re.match(r"Delta refuses the layout of .*DELTA_UNKNOWN_CONFIGURATION", held(summary)["t"])
    assert (summary.exit_code, nights.values("u")) == (3, [("1", "b")])
    assert nights.job.backfill(BackfillRequest(None), "tables=[{match: '*', comment: better}]").exit_code == 0
    assert ("1", "b") in nights.values("t")
    assert found(nights.job, "t").comment == "better"
