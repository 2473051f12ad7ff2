"""spark-submit.sh: what a job gets, and what of it comes out again."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "spark-submit.sh"

JOB = """
import sys
from inspect import signature  # beside this job there is an inspect.py, as in jobs/

from pgoutput_etl.spark.session import start_session

def import_in_worker(batches):
    import pgoutput_etl
    yield from batches

spark = start_session("a job", {"spark.databricks.delta.snapshotPartitions": "4"})
spark.range(3).mapInArrow(import_in_worker, "id long").write.format("delta").save(sys.argv[1])
conf = spark.sparkContext.getConf()
print("working", file=sys.stderr)
print(*(spark.conf.get(f"spark.{name}") for name in ("sql.shuffle.partitions", "databricks.delta.snapshotPartitions")))
print(sys.argv[2:], conf.get("spark.master"), conf.get("spark.before"), conf.get("spark.after"))
sys.exit(3)
"""


def spark_submit(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    pyspark = find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    ours = {"SPARK_HOME": str(Path(pyspark.origin).parent), "PYSPARK_PYTHON": sys.executable}
    return subprocess.run(
        [SCRIPT, *arguments], env={**os.environ, **ours, **environment}, capture_output=True, text=True, check=False
    )


@pytest.mark.spark
def test_a_job_gets_delta_our_code_and_its_arguments_and_its_output_and_exit_code_come_back(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB)
    (tmp_path / "inspect.py").write_text("raise ImportError('not the standard library')")

    done = spark_submit(
        *("--conf", "spark.before=1", "--master=local[1]"),
        *("--conf", "spark.sql.shuffle.partitions=3", "--conf", "spark.databricks.delta.snapshotPartitions=5"),
        *(job, tmp_path / "table", "--config", "a.yaml", "--conf", "spark.after=2", "--json"),
        *("--", "--master", "kept"),
    )

    assert done.returncode == 3, done.stderr
    chosen = "3 4\n"  # of settings that have a default, what spark-submit was given, and before that ours
    assert done.stdout == chosen + "['--config', 'a.yaml', '--json', '--master', 'kept'] local[1] 1 2\n"
    assert done.stderr.splitlines()[-1] == "working"
    assert "resolving dependencies" not in done.stderr
    assert (tmp_path / "table" / "_delta_log").is_dir()


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        ([], {}, "which job?"),
        (["jobs/nothing.py"], {}, "there is no job jobs/nothing.py"),
        (["--master"], {}, "--master needs a value"),
        ([SCRIPT], {"SPARK_HOME": "/nowhere"}, "there is no Spark in /nowhere"),
    ],
)
def test_what_cannot_be_run_is_refused_in_a_line(arguments: list[str], environment: dict[str, str], said: str) -> None:
    done = spark_submit(*arguments, **environment)

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_missing_java_is_said_in_a_line() -> None:
    done = spark_submit(SCRIPT, JAVA_HOME="/nowhere")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Java 17 or newer is needed")
    assert done.stderr.count("\n") == 1
