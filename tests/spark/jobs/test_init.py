"""A configuration that `init` writes applies a real archive: every table then equals the server's, the next run writes
nothing, and deltalake reads the tables as docs/getting-started.md says."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import load_config
from pgoutput_etl.jobs.init import COMMAND
from pgoutput_etl.work.files.pipeline import apply
from tests.support.captures import DATA, truth_tables
from tests.support.jobs import Job

pytestmark = pytest.mark.spark


def test_apply_works_with_the_configuration(spark: SparkSession, tmp_path: Path) -> None:
    out, landing, job = tmp_path / "init.yaml", DATA / "random16" / "v4b", Job(spark, tmp_path, tmp_path)
    assert COMMAND.main("init", [str(landing), "--out", str(out), "--quiet"]) == 0
    config = load_config(str(out), [f"target.root={tmp_path / 'tables'}"])

    [summary] = apply(spark, config, lambda _: None)

    assert [table.table for table in summary.tables if table.held] == []
    job.assert_equals(truth_tables(DATA / "random16" / "truth"), "random16")
    versions = job.versions()
    apply(spark, config, lambda _: None)
    assert job.versions() == versions

    rows = {table.table: table.rows for table in summary.tables}
    assert rows == {"acct": 89, "blob_": 2185, "ev": 84, "line": 38, "uniq": 4}
    written = DeltaTable(tmp_path / "tables" / "public" / "acct")
    assert set(written.protocol().reader_features or ()) == {"timestampNtz"}
    assert written.to_pyarrow_table().num_rows == rows["acct"]
