"""jobs/apply.py as a command: its output and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.small_archives import copydata, delete, insert, table, transaction, update

ROOT = Path(__file__).parents[3]


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    pyspark = find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    variables = {"SPARK_HOME": str(Path(pyspark.origin).parent), "PYSPARK_PYTHON": sys.executable}
    environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.spark
def test_standard_output_has_only_the_json_summary(tmp_path: Path, landing: Path) -> None:
    first = transaction(1, 0x100, table(), insert("1", "a"), insert("2", "b"))
    second = transaction(2, 0x200, update("1", "aa"), delete("2", None), insert("3", "c"), insert("4", "d"))
    (landing / "0.bin").write_bytes(copydata([*first, *second]))
    config = tmp_path / "job.yaml"
    lines, prometheus = tmp_path / "runs.jsonl", tmp_path / "shop.prom"
    config.write_text(
        f"source: {{name: shop, landing: '{landing}', snapshot: accept}}\ntarget: {{root: '{tmp_path / 'out'}'}}\n"
        f"metrics: {{json: '{lines}', prometheus: '{prometheus}'}}\n"
        "spark: {spark.sql.shuffle.partitions: 1, spark.sql.adaptive.enabled: false}\n"
    )

    done = run(ROOT / "spark-submit.sh", "--master=local[1]", ROOT / "jobs/apply.py", "--config", config, "--json")

    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["lsn"], summary["exit_code"], summary["files"]) == ("0/200", 0, 1)
    [written] = summary["tables"]
    assert (written["schema"], written["table"], written["rows"], written["inserted"]) == ("public", "t", 3, 3)
    assert "writing public.t" in done.stderr
    [metrics] = map(json.loads, lines.read_text().splitlines())
    assert (metrics["exit_code"], metrics["batches"], metrics["rows"]["inserted"]) == (0, 1, 3)
    assert list(metrics["stages"]) == ["look", "read", "prepare", "write", "ledger"]
    assert 0 < sum(metrics["stages"].values()) < metrics["seconds"]
    assert 'pgoutput_etl_table_rows{source="shop",schema="public",table="t"} 3.0\n' in prometheus.read_text()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("source: {name: a, landing: b}\ntarget: {rot: c}\n", "target.rot: unknown key 'rot'; did you mean 'root'?"),
        ("source: {name: a, landing: b}\ntarget: {catalog: c}\n", "state.root"),
    ],
)
def test_a_wrong_configuration_is_refused_before_spark_starts(tmp_path: Path, config: str, message: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(config)

    done = run(sys.executable, ROOT / "jobs/apply.py", "--config", path)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ConfigError: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
