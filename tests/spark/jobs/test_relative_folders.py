"""Jobs whose configuration has relative folders, in another working folder than the JVM's."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.answers.moment.read import read_at
from pgoutput_etl.answers.status.request import StatusRequest
from pgoutput_etl.answers.status.run import status
from pgoutput_etl.config import settings
from pgoutput_etl.work.backfill.request import BackfillRequest
from pgoutput_etl.work.erasure.request import ForgetRequest
from pgoutput_etl.work.erasure.run import forget
from pgoutput_etl.work.plan.run import plan
from pgoutput_etl.work.upkeep.request import MaintainRequest
from pgoutput_etl.work.upkeep.run import maintain
from tests.support.jobs import Job, Nights
from tests.support.small_archives import insert, table, transaction, update

pytestmark = pytest.mark.spark

ERASED = "requested_by: dpo\nreference: DSR-1\ntables: [{table: public.t, keys: [{id: 2}]}]\n"


def working_folder(spark: SparkSession) -> Path:
    """Of Spark's JVM, which relative paths begin at."""
    return Path(str(spark._jvm.java.lang.System.getProperty("user.dir")))  # type: ignore[union-attr]


@pytest.mark.soak
def test_every_job_that_writes_runs(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "landing").mkdir()
    rules = "tables=[{match: '*', comment: ours, cluster_by: [id]}]"
    job = Job(spark, tmp_path, tmp_path / "landing", ["target.root=./tables", "source.landing=landing", rules])
    nights = Nights(job)
    nights.night(transaction(1, 0x100, table("id", "v"), insert("1", "a"), insert("2", "b")))
    nights.land(transaction(2, 0x200, table("id", "v", "w"), insert("3", "c", "d"), update("1", "x", "y")))
    config = job.loaded()
    assert plan(spark, config).exit_code == 0
    assert job.run().exit_code == 0
    assert status(config, StatusRequest()).exit_code == 0
    assert read_at(spark, config, lsn=0x100).lsn == 0x100
    assert maintain(spark, config, MaintainRequest(execute=True), lambda _: None).exit_code == 0
    assert job.backfill(BackfillRequest(("*",))).exit_code == 0
    (tmp_path / "erasure.yaml").write_text(ERASED, encoding="utf-8")
    assert forget(spark, config, ForgetRequest("erasure.yaml", execute=True)).exit_code == 0
    assert nights.night(transaction(3, 0x300, insert("4", "e", "f"))).exit_code == 0
    assert nights.values("t") == [("1", "x", "y"), ("3", "c", "d"), ("4", "e", "f")]
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["_pgoutput_etl", "public"]


@pytest.mark.soak
def test_a_ledger_with_relative_paths_is_continued(
    spark: SparkSession, tmp_path: Path, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions recorded the paths as the configuration has them."""
    start = working_folder(spark)
    monkeypatch.chdir(start)
    job = Job(spark, tmp_path, landing, [f"target.root={os.path.relpath(tmp_path, start)}/tables"])
    nights = Nights(job)
    with patch.object(settings, "absolute_place", str):
        nights.night(transaction(1, 0x100, table("id", "v"), insert("1", "a")))
        assert str(job.loaded().target.root).startswith("..")
    summary = nights.night(transaction(2, 0x200, insert("2", "b")))
    assert [t.notes for t in summary.tables] == [()], "no table was moved"
    assert nights.values("t") == [("1", "a"), ("2", "b")]
