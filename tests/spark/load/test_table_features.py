"""Tables of `readers: auto` get Delta's features once they need them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import polars
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pgoutput_etl.ledger.ledger import DeltaLedger
from pgoutput_etl.load import evolve, table_features
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.plan.run import plan
from tests.spark.load.test_readers import READERS, features, in_duckdb, who_opens
from tests.support.jobs import Job, Nights, dying, held
from tests.support.small_archives import T, insert, table, transaction, truncate, update

pytestmark = pytest.mark.spark

BIG, KEPT, ODD, OLD, PERCENT, UNMARKED = range(T + 1, T + 7)  # T's table is written first
INT4, INT8 = 23, 20
RULES = (
    "tables=[{match: 'public.[tb]*', cdf: true}, {match: public.kept, on_schema_change: {rename: hold, drop: hold}}, "
    "{match: public.unmarked, properties: {delta.enableDeletionVectors: 'false'}}]"
)
AUTO = ["target.readers=auto", "merge.parallel_tables=1", RULES]
LATE = {"columnMapping", "deletionVectors", "typeWidening"}
SWITCH = {"commitInfo", "metaData", "protocol"}  # and no transaction
MAPPED = "column mapping on: column 'v' is renamed"
WIDENED = "type widening on: column 'id' is widened"
MARKED = "deletion vectors on: a MERGE into 20 rows of 3 columns"
NAMED = "column mapping on: the name of column 'a b' has a character that only column mapping allows"


def said(notes: Iterable[tuple[str, Iterable[str]]]) -> dict[str, list[str]]:
    """The features that a report has, by table."""
    found = {name: sorted(note for note in of_table if " on: " in note) for name, of_table in notes}
    return {name: of_table for name, of_table in found.items() if of_table}


def said_by_run(job: Job) -> dict[str, list[str]]:
    return said((t.table, t.notes) for t in job.run().tables)


def said_by_plan(job: Job) -> dict[str, list[str]]:
    return said((t.table, t.layout) for t in plan(job.spark, job.loaded()).tables)


def switches(job: Job, name: str) -> list[set[str]]:
    """The kinds of actions of each commit that turned a feature on."""
    logs = sorted((job.path("public", name) / "_delta_log").glob("*.json"))
    commits = [log.read_text(encoding="utf-8") for log in logs]
    return [{kind for line in log.splitlines() for kind in json.loads(line)} for log in commits if "enabled: " in log]


def streamed(job: Job, name: str, copy: str, **options: str) -> list[tuple[Any, ...]]:
    """The rows of a stream that goes on where it stopped."""
    copied, source = str(job.folder / copy), str(job.path("public", name))
    rows = job.spark.readStream.format("delta").options(**options).load(source).select("id")
    writer = rows.writeStream.format("delta").option("checkpointLocation", f"{copied}_checkpoint")
    writer.trigger(availableNow=True).start(copied).awaitTermination()
    return sorted(map(tuple, job.spark.read.format("delta").load(copied).collect()))


def test_a_renamed_column_turns_on_column_mapping_once(nights: Nights) -> None:
    job = nights.job
    job.overrides.append("target.readers=auto")
    nights.night(transaction(1, 0x100, table("id", "v", "z"), insert("1", "a", "z")))
    assert DeltaTable(str(job.path("public", "t"))).to_pyarrow_table().num_rows == 1
    nights.land(transaction(2, 0x200, table("id", "w", "z"), insert("2", "b", "z")))
    assert said_by_plan(job) == {"t": [MAPPED]}
    assert switches(job, "t") == []
    assert said_by_run(job) == {"t": [MAPPED]}
    assert (switches(job, "t"), LATE & features(job, "t")) == ([SWITCH], {"columnMapping"})
    assert nights.values("t") == [("1", "a", "z"), ("2", "b", "z")]


@pytest.mark.soak
def test_a_table_gets_features_once_it_needs_them(
    spark: SparkSession, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_features, "LARGE_VALUES", 60)
    nights = Nights(Job(spark, tmp_path, landing, AUTO))
    job, named = nights.job, {T: "t", BIG: "big", KEPT: "kept", UNMARKED: "unmarked"}
    tables = [table(("id", INT4), "v", "z", oid=oid, name=name) for oid, name in named.items()]
    rows = [insert(str(i), "a", None, oid=oid) for oid in named for i in range(20 if oid in (BIG, UNMARKED) else 3)]
    odd = table("id", "a b", oid=ODD, name="odd"), insert("1", "x", oid=ODD)
    nights.land(transaction(1, 0x100, *tables, *odd, *rows))
    assert said_by_plan(job) == said_by_run(job) == {"odd": [NAMED]}
    assert LATE & features(job, "odd") == {"columnMapping"}
    for name in named.values():
        assert who_opens(job, name) == set(READERS), name
    appends, feed = {"skipChangeCommits": "true"}, {"readChangeFeed": "true"}
    assert len(streamed(job, "t", "rows", **appends)) == len(streamed(job, "t", "changes", **feed)) == 3
    assert len(streamed(job, "big", "big_changes", **feed)) == 20

    renamed = [table(("id", INT4), "w", "z", oid=oid, name=named[oid]) for oid in (T, KEPT)]
    wide = table(("id", INT8), "v", "z", oid=BIG, name="big")
    nights.land(transaction(2, 0x200, *renamed, wide, *(update("1", "b", None, oid=oid) for oid in named)))
    assert said_by_plan(job) == {"t": [MAPPED], "big": [MARKED, WIDENED]}
    with dying(table_features, "alter"):
        job.run()
    assert switches(job, "t") == []
    with dying(evolve, "_alter"):
        job.run()
    assert switches(job, "t") == [SWITCH]
    assert job.columns("public", "t") == ["id", "v", "z"]
    assert len(streamed(job, "t", "rows", **appends)) == len(streamed(job, "t", "changes", **feed)) == 3
    with dying(DeltaLedger, "close"):
        job.run()
    summary = job.run()
    assert said((t.table, t.notes) for t in summary.tables) == {"t": [MAPPED], "big": [MARKED, WIDENED]}
    assert (switches(job, "t"), switches(job, "big")) == ([SWITCH], [SWITCH, SWITCH])
    assert nights.values("t") == [(0, "a", None), (1, "b", None), (2, "a", None)]
    assert nights.values("big") == [(i, "b" if i == 1 else "a", None) for i in range(20)]
    assert [LATE & features(job, name) for name in ("t", "big")] == [
        {"columnMapping"},
        {"deletionVectors", "typeWidening"},
    ]
    assert held(summary).keys() == {"kept"}
    for name in ("kept", "unmarked"):
        assert who_opens(job, name) == set(READERS), name

    assert len(streamed(job, "big", "big_changes", **feed)) == 22, "a stream reads over both switches"
    for copy, options in (("rows", appends), ("changes", feed)):
        with pytest.raises(StreamingQueryException, match="INCOMPATIBLE_SCHEMA_CHANGE"):  # as after any rename
            streamed(job, "t", copy, **options)
        assert len(streamed(job, "t", f"{copy}_anew", **options)) == 3

    nights.land(transaction(3, 0x300, *(update("2", "c", None, oid=oid) for oid in (T, BIG))))
    assert said_by_plan(job) == said_by_run(job) == {}
    # The rebuilt table gets no feature: nothing was renamed in it.
    assert job.backfill(BackfillRequest(tables=("public.kept",))).exit_code == 0
    assert nights.values("kept") == [(0, "a", None), (1, "b", None), (2, "a", None)]
    assert who_opens(job, "kept") == set(READERS)


@pytest.mark.soak
def test_tables_keep_their_features_and_find_readers_by_their_paths(
    spark: SparkSession, tmp_path: Path, landing: Path
) -> None:
    """The same features after a new name and a backfill, and none that nobody needs."""
    nights = Nights(Job(spark, tmp_path, landing, AUTO[:2]))
    job = nights.job
    nights.land(transaction(1, 0x100, table("id", "v", "z", oid=OLD, name="old"), insert("1", "a", None, oid=OLD)))
    job.run("target.readers=spark")
    stored = features(job, "old")
    assert {"columnMapping", "deletionVectors"} <= stored
    renamed = table("id", "v", "z", oid=OLD, name="older"), update("1", "b", None, oid=OLD)
    percent = table("id", "v", "z", oid=PERCENT, name="naïve"), insert("1", "a", None, oid=PERCENT)
    kept = table("id", "v", oid=KEPT, name="kept"), insert("1", "a", oid=KEPT)
    nights.night(transaction(2, 0x200, *renamed, *percent, *kept, table("id", "v", "z"), insert("1", "a", None)))
    assert features(job, "older") == stored
    older = table("id", "w", "z", oid=OLD, name="older"), update("1", "c", None, oid=OLD)
    nights.night(transaction(3, 0x300, *older, table("id", "w", "z", name="u"), insert("2", "c", None)))
    assert LATE & features(job, "u") == {"columnMapping"}
    assert job.backfill(BackfillRequest(tables=("public.older", "public.u"))).exit_code == 0
    assert (features(job, "older") & LATE, LATE & features(job, "u")) == (stored & LATE, {"columnMapping"})
    assert (nights.values("older"), nights.values("u")) == ([("1", "c", None)], [("1", "a", None), ("2", "c", None)])

    nights.land(
        transaction(4, 0x400, truncate(KEPT), table("id", "a b", oid=KEPT, name="kept"), insert("9", "z", oid=KEPT))
    )
    assert said_by_plan(job) == said_by_run(job) == {"kept": [NAMED]}
    assert [row[:2] for row in nights.values("kept")] == [("9", "z")]
    folder = job.path("public", "naïve")
    assert folder.name == "na%C3%AFve"
    with pytest.raises(DeltaError, match="na"):
        DeltaTable(folder.as_uri()).to_pyarrow_table()
    (folder.parent / "naïve").symlink_to(folder.name)
    path = str(folder.parent / "naïve")
    assert DeltaTable(path).to_pyarrow_table().num_rows == in_duckdb(Path(path)).num_rows == 1
    assert polars.scan_delta(path, use_pyarrow=True).collect().height == 1
    nights.land(transaction(5, 0x500, update("1", "d", None, oid=PERCENT)))
    job.run("tables=[{match: public.naïve, rename: public.naive}]")
    assert nights.values("naive") == [("1", "d", None)]
    assert who_opens(job, "naive") == set(READERS)
