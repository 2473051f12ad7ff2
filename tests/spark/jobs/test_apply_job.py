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


def run(*command: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    pyspark = find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    variables = {"SPARK_HOME": str(Path(pyspark.origin).parent), "PYSPARK_PYTHON": sys.executable}
    environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT), **more}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


# As `pgoutput-etl apply`, in the JVM of a session whose properties are on standard error.
IN_A_JVM = """
import sys
from pgoutput_etl.cli import main
from pgoutput_etl.spark.session import end_session, start_session

spark = start_session("a job", {"spark.ui.enabled": "false"}, is_light=True)
java = spark._jvm.java
options = java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
print(
    java.time.format.DecimalStyle.ofDefaultLocale(),
    java.lang.System.getProperty("sun.jnu.encoding"),
    [option for option in options if option.startswith("-XX:ReservedCodeCacheSize")],
    file=sys.stderr,
)
end_session(spark)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.spark
@pytest.mark.soak
def test_a_run_in_a_foreign_locale(tmp_path: Path, landing: Path) -> None:
    """Standard output has only the summary as JSON, and Java has ASCII digits, UTF-8 names, and room for compiled
    code."""
    first = transaction(1, 0x100, table(), insert("1", "a"), insert("2", "b"))
    second = transaction(2, 0x200, update("1", "aa"), delete("2", None), insert("3", "c"), insert("4", "d"))
    (landing / "0.bin").write_bytes(copydata([*first, *second]))
    config = tmp_path / "job.yaml"
    lines, prometheus = tmp_path / "runs.jsonl", tmp_path / "shop.prom"
    config.write_text(
        f"source: {{name: shop, landing: '{landing}', snapshot: accept}}\ntarget: {{root: '{tmp_path / 'out'}'}}\n"
        f"metrics: {{json: '{lines}', prometheus: '{prometheus}'}}\n"
        "spark: {spark.master: 'local[1]', spark.sql.shuffle.partitions: 1, spark.sql.adaptive.enabled: false}\n"
    )

    foreign = {"JDK_JAVA_OPTIONS": "-Xshare:auto -Duser.language=ar -Duser.country=EG", "LC_ALL": "C"}
    done = run(sys.executable, "-c", IN_A_JVM, "apply", "--config", config, "--json", **foreign)

    assert done.returncode == 0, done.stderr
    assert "DecimalStyle[0+-.] UTF-8 ['-XX:ReservedCodeCacheSize=240m']\n" in done.stderr
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
    assert done.stderr.startswith("PGO-1100: ConfigError: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
