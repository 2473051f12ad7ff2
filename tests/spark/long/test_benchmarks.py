"""The benchmarks measure a job with correct results, and fail if a table is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from benchmarks import corpora
from benchmarks.checking import WrongResultError, check_tables, expected_fingerprints
from benchmarks.jobs import STAGES, compare
from benchmarks.streamed_corpus import streamed

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
