"""The benchmarks measure a job with correct results, and fail if a table is wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import corpora
from benchmarks.checking import WrongResultError, check_tables, expected_fingerprints
from benchmarks.jobs import STAGES, compare
from benchmarks.larger import LargerMachine, UnsuitableMachineError, described, measure_scenario
from benchmarks.streamed_corpus import streamed
from pgoutput_etl.console import no_progress
from tests.support.s3_lake import BUCKET, KEY, SECRET, lake, packages
from tests.support.spark_servers import SMALL_APPLICATION, conf_options, standalone_cluster

pytestmark = [pytest.mark.spark, pytest.mark.soak]


def test_the_job_against_the_floor(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "BUILD", tmp_path)
    corpus = streamed(12_000, 2)
    comparison = compare(spark, corpus, tmp_path / "work", 1, lambda _: None)
    assert (comparison.messages, comparison.files) == (corpus.landed.messages, 2)
    assert (comparison.tables, comparison.runs) == (1, 1)
    assert comparison.ratio == pytest.approx(comparison.job / comparison.floor)
    assert set(comparison.stages) == set(STAGES.values())
    assert sum(comparison.stages.values()) == pytest.approx(comparison.job, rel=0.01)
    table = tmp_path / "work/tables/public/ledger"
    spark.read.format("delta").load(str(table)).limit(1).write.format("delta").mode("append").save(str(table))
    with pytest.raises(WrongResultError, match=r"public\.ledger .*: expected rows"):
        check_tables(spark, tmp_path / "work/tables", corpus.tables, expected_fingerprints(spark, corpus.tables))


def test_a_scenario_on_object_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    included, excluded = packages()
    with lake(tmp_path) as s3:
        settings = {"endpoint": s3.url, "path.style.access": "true", "endpoint.region": "us-east-1"}
        options = conf_options({f"spark.hadoop.fs.s3a.{name}": value for name, value in settings.items()})
        options += ["--packages", included, "--exclude-packages", excluded]
        machine = LargerMachine(2, "2g", f"s3a://{BUCKET}/bench", tuple(options))

        found = described(machine)
        assert (found["cores"], found["memory"], found["master"], found["storage"]) == (2, "2g", "local", "s3a")
        assert not any(name in json.dumps(found) for name in (BUCKET, KEY, SECRET, s3.url, str(tmp_path)))

        run = measure_scenario("tables", machine, 0.01, 1, no_progress)
        assert (run.failed, run.tables, run.files, run.messages) == (None, 2, 4, 202)
        assert set(run.stages) == set(STAGES.values())
        assert run.seconds == pytest.approx(sum(run.stages.values()), rel=0.01)
        put = [path for kind, path in s3.served().requests if kind == "PUT" and path.startswith(f"/{BUCKET}/bench/")]
        assert any("/landing/second-" in path for path in put)
        assert any("/tables/public/table_001/_delta_log/" in path for path in put)
        assert not any("/benchmarks-" in key for key in s3.objects("bench")), "the folder is deleted"

        with pytest.raises(
            UnsuitableMachineError, match=r"s3a://nowhere/bench can't be written and read: org\.apache\..*nowhere"
        ):
            described(replace(machine, storage="s3a://nowhere/bench"))
        with pytest.raises(UnsuitableMachineError, match="expected 4096 cores, found "):
            described(replace(machine, cores=4096))


def test_the_cores_of_a_cluster_are_those_of_its_executors(tmp_path: Path) -> None:
    options = conf_options({name: value for name, value in SMALL_APPLICATION.items() if "driver" not in name})
    with standalone_cluster(tmp_path, 2) as cluster:
        machine = LargerMachine(2, "1g", str(tmp_path), ("--master", cluster.url, *options))
        found = described(machine)
    assert (found["cores"], found["master"], found["storage"]) == (2, "spark", "file")
