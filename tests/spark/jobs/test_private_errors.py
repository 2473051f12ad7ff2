"""No output of a job has a row's value, whatever fails: Delta, Spark, a Python worker, or the JVM.

Other people add constraints to the tables, whose violation quotes the row. All cases run in one JVM, as a script of
spark-submit.sh: each is a job's command line.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pgoutput_etl.config.settings import load_config
from pgoutput_etl.spark.jvm_output import WITHHELD
from pgoutput_etl.work.files.pipeline import apply
from tests.support.small_archives import copydata, insert, table, transaction, update

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[3]
CANARY = "s3cr3t-canary-41"
END_OF_CASE = "end of case"
ENDED = re.compile(rf"{END_OF_CASE} (\S+) (\d+)\n")

CONFIG = """
source: {{name: {name}, landing: '{folder}/landing-{name}', snapshot: accept}}
target: {{root: '{folder}/{name}'}}
merge: {{parallel_tables: 4}}
metrics: {{json: '{folder}/metrics.jsonl', prometheus: '{folder}/metrics.prom'}}
spark: {{spark.sql.shuffle.partitions: 1, spark.ui.enabled: false, spark.master: 'local[2]'}}
tables:
  - {{match: public.merged, cluster_by: [id]}}
  - {{match: public.historic, mode: history}}
  - {{match: public.appended, mode: append}}
"""

# Cases besides `apply`: what Spark, Delta, and Python workers do with a value.
SCRIPT = f"""
import os, signal, sys
from pgoutput_etl.cli import main
from pgoutput_etl.jobs.command import Command
from pgoutput_etl.spark.session import end_session, start_session

def die(batches):
    for batch in batches:
        print("{CANARY} on standard error", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        yield batch

def fail(batches):
    for batch in batches:
        int("{CANARY}")
        yield batch

def refuse(batches):
    from pgoutput_etl.errors import ArchiveError
    for batch in batches:
        try:
            int("{CANARY}")
        except ValueError as error:
            raise ArchiveError("file 7, offset 12: expected a number") from error
        yield batch

def in_worker(function):
    return lambda spark: spark.range(2).mapInArrow(function, "id long").collect()

def null(spark):
    table = f"delta.`{{os.path.dirname(sys.argv[0])}}/null`"
    spark.sql(f"CREATE TABLE {{table}} (id int NOT NULL, v string) USING delta")
    spark.sql(f"INSERT INTO {{table}} SELECT nullif(length(v), 16), v FROM VALUES ('{CANARY}') AS t(v)").collect()

def exhaust(spark):
    from functools import partial
    from pgoutput_etl.load.holding import spark_fault
    from pgoutput_etl.spark.session import is_running
    rows = spark.range(2).selectExpr("repeat('{CANARY}', cast(100000000 + id as int)) v")
    try:
        rows.selectExpr("sum(hash(v || v))").collect()
    except Exception as error:
        if spark_fault(error, partial(is_running, spark)) is None:
            raise
        raise ValueError("a table would be held")

CASES = dict(die=in_worker(die), fail=in_worker(fail), refuse=in_worker(refuse), null=null, exhaust=exhaust)

def run(case):
    def run_case():
        spark = start_session("a job", {{"spark.ui.enabled": "false", "spark.master": "local[2]"}})
        try:
            CASES[case](spark)
        except Exception as error:
            end_session(spark, error)
            raise
        end_session(spark)
        return 0
    return Command(case, "a job", "", (), run_case).main(case, [])

for case in sys.argv[1].split(","):
    code = run(case) if case in CASES else main(["apply", "--json", "--config", case, *sys.argv[2:]])
    for stream in (sys.stdout, sys.stderr):
        print(f"{END_OF_CASE} {{case}} {{code}}", file=stream, flush=True)
"""

# By source: the tables of its archive, and what somebody else does to them.
SOURCES = {
    "checks": (("rewritten", "merged", "historic", "appended"), f"ADD CONSTRAINT known CHECK (w <> '{CANARY}')"),
    "casts": (("cast",), "ADD CONSTRAINT numbers CHECK (cast(w AS int) > 0)"),
}


@dataclass(frozen=True, slots=True)
class Sources:
    """Archives whose first rows are applied, and whose next rows the tables refuse."""

    spark: SparkSession
    folder: Path

    def prepare(self) -> None:
        for name, (tables, alteration) in SOURCES.items():
            landing = self.folder / f"landing-{name}"
            landing.mkdir()
            self.config(name).write_text(CONFIG.format(folder=self.folder, name=name))
            relations = [table("id", "v", "w", name=t, oid=oid) for oid, t in enumerate(tables, 1)]
            rows = [insert("1", "1", "2", oid=relation.oid) for relation in relations]
            updates = [update("1", "1", CANARY, oid=relation.oid) for relation in relations]
            (landing / "0.copydata").write_bytes(copydata(transaction(1, 0x100, *relations, *rows), 0x1000000))
            apply(self.spark, load_config(str(self.config(name))), lambda _: None)
            (landing / "1.copydata").write_bytes(copydata(transaction(2, 0x200, *updates), 0x2000000))
            for t in tables:
                self.spark.sql(f"ALTER TABLE delta.`{self.folder}/{name}/public/{t}` {alteration}")

    def config(self, name: str) -> Path:
        return self.folder / f"{name}.yaml"

    def run(self, launcher: list[str], cases: Iterable[str], *options: str) -> dict[str, Case]:
        """The cases' outputs. launcher: of the script, which stops at the first case that ends its JVM."""
        script = self.folder / "cases.py"
        script.write_text(SCRIPT)
        named = ",".join(str(self.config(case)) if case in SOURCES else case for case in cases)
        done = subprocess.run(
            [*launcher, str(script), named, *options],
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            check=False,
        )
        found: dict[str, Case] = {}
        out, err = ENDED.split(done.stdout), ENDED.split(done.stderr)
        assert len(out) == len(err) == 3 * len(named.split(",")) + 1, done.stderr[-5000:]
        for i in range(0, len(out) - 1, 3):
            found[Path(out[i + 1]).stem] = Case(out[i], err[i], int(out[i + 2]))
        return found

    def left(self) -> dict[str, str]:
        """Texts that the runs leave outside the tables."""
        ledgers = [path for name in SOURCES for path in (self.folder / name / "_pgoutput_etl").rglob("*.parquet")]
        rows = {str(path): repr(pq.ParquetFile(path).read().to_pylist()) for path in ledgers}
        return {**rows, **{str(path): path.read_text() for path in self.folder.glob("metrics.*")}}


@dataclass(frozen=True, slots=True)
class Case:
    out: str
    err: str
    code: int


@pytest.fixture(scope="module")
def sources(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Sources:
    made = Sources(spark, tmp_path_factory.mktemp("sources"))
    made.prepare()
    return made


@pytest.fixture(scope="module")
def cases(sources: Sources) -> dict[str, Case]:
    """With as much of the log as there is without --debug."""
    names = [*SOURCES, "fail", "refuse", "null", "die", "exhaust"]
    return sources.run([str(ROOT / "spark-submit.sh")], names, "--log-level", "debug")


def test_no_output_has_a_value(sources: Sources, cases: dict[str, Case]) -> None:
    assert {name for name, case in cases.items() if CANARY in case.out + case.err} == set()
    assert {name for name, text in sources.left().items() if CANARY in text} == set()
    assert {(case.out, case.code) for name, case in cases.items() if name not in SOURCES} == {("", 1)}
    assert {case.code for name, case in cases.items() if name in SOURCES} == {3}
    assert {name for name, case in cases.items() if "Traceback" in case.err or "\tat " in case.err} == set()


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("checks", r"WARNING .*: writing public\.merged failed \(.*\(DELTA_VIOLATE_CONSTRAINT_WITH_VALUES, .*"),
        ("casts", r"WARNING .*: writing public\.cast failed \(.*\(CAST_INVALID_INPUT, SQLSTATE 22018\).*"),
        ("null", r"PGO-9000: null failed: .*\(DELTA_NOT_NULL_CONSTRAINT_VIOLATED, SQLSTATE 23502\)"),
        ("fail", r"PGO-9000: fail failed: PythonException \(PYTHON_EXCEPTION.*\), by ValueError in a Python worker"),
        ("refuse", r"PGO-2000: ArchiveError: file 7, offset 12: expected a number"),
        ("die", r"  a Python worker has ended: .*"),
        # Java ends by itself; its answer arrives before that, while it ends, or not at all.
        ("exhaust", r"  (Java is out of memory: .*|Spark's Java process has ended: it ran out of memory .*)"),
    ],
)
def test_the_error_names_the_table_and_its_kind(cases: dict[str, Case], name: str, error: str) -> None:
    assert re.search(f"^{error}$", cases[name].err, re.MULTILINE), cases[name].err


def test_the_log_has_the_task_and_the_class(cases: dict[str, Case]) -> None:
    log = cases["checks"].err
    assert re.search(r"INFO DAGScheduler:$", log, re.MULTILINE), log
    assert re.search(r"WARN TaskSetManager: Lost task [\d.]+ in stage [\d.]+$", log, re.MULTILINE), log
    assert "ERROR Utils: Aborting task (org.apache.spark.sql.delta.schema.DeltaInvariantViolationException)" in log
    assert WITHHELD.decode() in cases["die"].err


@pytest.mark.soak
def test_debug_shows_everything(sources: Sources) -> None:
    (case,) = sources.run([sys.executable], ["casts"], "--debug").values()
    assert case.code == 3
    assert f"'{CANARY}'" in case.err.partition("writing public.cast failed")[2]
    assert re.search(rf"ERROR Utils: Aborting task\n[^\n]*'{CANARY}'", case.err), case.err
