"""spark-submit.sh: the driver's Python, Spark's options, and what a cluster gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from pgoutput_etl.spark.packages import DELTA_VERSION

SCRIPT = Path(__file__).parents[2] / "spark-submit.sh"

JOB = """
import sys
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
java = spark._jvm.java
print(java.time.format.DecimalStyle.ofDefaultLocale(), java.lang.System.getProperty("sun.jnu.encoding"))
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
def test_a_job_gets_delta_code_and_arguments_and_returns_its_output(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB)

    done = spark_submit(
        *("--conf", "spark.before=1", "--master=local[1]"),
        *("--conf", "spark.sql.shuffle.partitions=3", "--conf", "spark.databricks.delta.snapshotPartitions=5"),
        *(job, tmp_path / "table", "--config", "a.yaml", "--conf", "spark.after=2", "--json"),
        *("--", "--master", "kept"),
        JDK_JAVA_OPTIONS=f"{os.environ['JDK_JAVA_OPTIONS']} -Duser.language=ar -Duser.country=EG",
        LC_ALL="C",
    )

    assert done.returncode == 3, done.stderr
    settings = "3 4\n"  # spark-submit's setting, and the job's own
    arguments = "['--config', 'a.yaml', '--json', '--', '--master', 'kept'] local[1] 1 2\n"
    assert done.stdout == settings + arguments + "DecimalStyle[0+-.] UTF-8\n"
    assert done.stderr.splitlines()[-1] == "working"
    assert "resolving dependencies" not in done.stderr
    assert (tmp_path / "table" / "_delta_log").is_dir()


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ([], {}, "expected a job; usage: ./spark-submit.sh [Spark's options] JOB"),
        (["jobs/nothing.py"], {}, "no such job: jobs/nothing.py"),
        (["--master"], {}, "--master needs a value"),
        (["--deploy-mode=cluster", SCRIPT], {"SPARK_HOME": "/nowhere"}, "no Spark in /nowhere"),
        ([SCRIPT], {"PYSPARK_PYTHON": "/nowhere/python"}, "/nowhere/python: No such file or directory"),
    ],
)
def test_a_refusal_is_one_line(arguments: list[str], environment: dict[str, str], message: str) -> None:
    done = spark_submit(*arguments, **environment)

    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_empty_spark_home_is_none(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("import os; print(os.environ.get('SPARK_HOME'))")
    assert spark_submit(job, SPARK_HOME="").stdout == "None\n"


RECORDS = '#!/bin/sh\necho "$(basename "$0")" >>"$CALLS"\n'
SPARK_SUBMIT = f"""{RECORDS}echo "address=$SPARK_LOCAL_IP" >>"$CALLS"
for word; do echo "word=$word" >>"$CALLS"; done
exit 5
"""
JAVA = f"{RECORDS}echo 'openjdk version \"17.0.1\"' >&2\n"


@dataclass(frozen=True, slots=True)
class NoSpark:
    """A Java and a spark-submit that record their calls. spark-submit ends with 5: a JVM that does not start."""

    folder: Path

    def __post_init__(self) -> None:
        for name, script in (("java", JAVA), ("spark-submit", SPARK_SUBMIT)):
            program = self.folder / "bin" / name
            program.parent.mkdir(exist_ok=True)
            program.write_text(script)
            program.chmod(0o755)
        jars = self.folder / "jars"
        jars.mkdir()
        for jar in ("spark-core_2.13-4.2.0.jar", "delta-spark.jar"):
            (jars / jar).touch()

    @property
    def environment(self) -> dict[str, str]:
        return {"SPARK_HOME": str(self.folder), "JAVA_HOME": str(self.folder), "CALLS": str(self.folder / "calls")}

    def submit(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return spark_submit(*arguments, **{**self.environment, **environment})

    @property
    def calls(self) -> list[str]:
        return [call for call in self._recorded if "=" not in call]

    @property
    def address(self) -> str:
        """Of the driver, if spark-submit.sh has set it."""
        [address] = self._values("address")
        return address

    @property
    def words(self) -> list[str]:
        """That spark-submit was called with."""
        return self._values("word")

    def _values(self, name: str) -> list[str]:
        return [
            value for key, equals, value in (call.partition("=") for call in self._recorded) if equals and key == name
        ]

    @property
    def _recorded(self) -> list[str]:
        calls = self.folder / "calls"
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def no_spark(tmp_path: Path) -> NoSpark:
    folder = tmp_path / "spark"
    folder.mkdir()
    return NoSpark(folder)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "job.yaml"
    file.write_text("source: {name: a, landing: b}\ntarget: {root: c}\n")
    return file


def job(name: str) -> Path:
    return SCRIPT.with_name("jobs") / f"{name}.py"


@pytest.mark.parametrize(
    ("name", "options", "code", "message"),
    [
        ("apply", ["--set", "source.nam=b"], 2, "source.nam: unknown key 'nam'; did you mean 'name'?"),
        ("apply", ["--set", "types.a=b"], 2, "types.a: expected"),
        ("apply", ["--set", "metrics.json=/nowhere/a"], 2, "metrics.json: expected a file in an existing folder"),
        ("plan", ["--conf"], 2, "spark-submit.sh: --conf needs a value"),
        ("plan", ["--no"], 2, "No such option '--no'"),
        ("backfill", ["--tables", "a", "--out", "b", "--from-lsn", "0/1"], 2, "--out: builds tables from their"),
        ("maintain", ["--keep-days", "1"], 2, "--keep-days: expected 7 or more"),
        ("snapshot", ["--tables", "a", "--jdbc", "a"], 2, "expected postgresql://"),
        ("verify", ["--csv", "b"], 2, "expected --tables schema.table"),
        ("apply", ["--help"], 0, ""),
        ("show", ["--help"], 0, ""),
        ("snapshot", ["--catalog-query"], 0, ""),
        ("inspect", ["landing", "--values"], 2, "--values needs --messages"),
    ],
)
def test_a_mistake_or_a_question_starts_no_jvm(
    no_spark: NoSpark, config: Path, name: str, options: list[str], code: int, message: str
) -> None:
    with_config: list[str | Path] = [] if name in ("show", "inspect") else ["--config", config]
    done = no_spark.submit(job(name), *with_config, *options)
    assert (done.returncode, no_spark.calls) == (code, []), done.stderr
    assert message in done.stderr
    assert bool(done.stdout) == (code == 0)


def test_a_mistake_is_reported_as_without_spark_submit(no_spark: NoSpark, tmp_path: Path) -> None:
    options: list[str | Path] = ["--config", tmp_path / "none.yaml"]
    done = no_spark.submit(job("apply"), *options)
    env = {**os.environ, "PYTHONPATH": str(SCRIPT.parent)}
    command: list[str | Path] = [sys.executable, job("apply"), *options]
    direct = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (direct.returncode, direct.stdout, direct.stderr)
    assert done.returncode == 2


def test_spark_starts_once_the_configuration_is_checked(no_spark: NoSpark, config: Path) -> None:
    """Also with the job's options before the job."""
    done = no_spark.submit("--config", config, "--log-level=error", job("apply"))
    assert (done.returncode, no_spark.calls) == (1, ["java", "spark-submit"]), done.stderr
    assert done.stderr.startswith("PGO-4100: RunError: Spark did not start (JAVA_GATEWAY_EXITED)")
    # In JSON, also what the JVM prints
    (no_spark.folder / "bin" / "spark-submit").write_text("#!/bin/sh\necho '12:00:00 WARN Disk: full'\nexit 5\n")
    lines = no_spark.submit("--config", config, "--log-format", "json", job("apply")).stderr.splitlines()
    disk, error = map(json.loads, lines)
    assert (disk["level"], disk["logger"], disk["message"]) == ("WARNING", "spark.Disk", "full")
    assert (error["level"], error["error"], error["exit_code"]) == ("ERROR", "RunError", 1)


OPTIONS = ["--driver-memory", "3g", "--conf=spark.a=b c", "--packages", "org.example:driver:1"]


@pytest.mark.parametrize("is_script", [True, False])
def test_sparks_options_reach_the_jvm_beside_deltas_package(
    no_spark: NoSpark, config: Path, tmp_path: Path, is_script: bool
) -> None:
    (no_spark.folder / "jars" / "delta-spark.jar").unlink()
    defaults = tmp_path / "defaults"
    defaults.mkdir()
    text = "# a comment\nspark.jars.packages org.example:other:2\nspark.driver.memory=1g\n  spark.z:  y\n"
    (defaults / "spark-defaults.conf").write_text(text)
    environment = {**no_spark.environment, "SPARK_CONF_DIR": str(defaults)}
    if is_script:
        done = no_spark.submit(job("apply"), "--config", config, *OPTIONS, **environment)
    else:
        command: list[str | Path] = [Path(sys.executable).with_name("pgoutput-etl"), "apply", "--config", config]
        environment = {**os.environ, **environment}
        done = subprocess.run([*command, *OPTIONS], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, no_spark.calls) == (1, ["java", "spark-submit"]), done.stderr
    settings = dict(word.split("=", 1) for word in no_spark.words if "=" in word)
    assert (settings["spark.driver.memory"], settings["spark.a"]) == ("3g", "b c")
    assert "spark.z" not in settings, "Spark reads its own file, and a command line has no secrets"
    delta = f"io.delta:delta-spark_4.2_2.13:{DELTA_VERSION}"
    assert settings["spark.jars.packages"] == f"org.example:driver:1,{delta}"
    assert "org.slf4j:*" in settings["spark.jars.excludes"].split(",")
    assert no_spark.words[-1] == "pyspark-shell"


@pytest.mark.parametrize(
    ("redirection", "code"), [("<&- >&- 2>&-", 0), (">/dev/full", 1), ("| true", 1), ("2>/dev/full", 0)]
)
def test_standard_output_may_be_closed_full_or_not_read(no_spark: NoSpark, redirection: str, code: int) -> None:
    shell = ["bash", "-c", f'"$@" {redirection}; exit "${{PIPESTATUS[0]}}"', "bash"]
    command: list[str | Path] = [*shell, SCRIPT, job("inspect"), SCRIPT.parent / "tests/data/pg16/v1"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **no_spark.environment}
    done = subprocess.run(command, env=environment, timeout=120, check=False)
    assert (done.returncode, no_spark.calls) == (code, [])


@pytest.mark.parametrize("cluster", [["--deploy-mode", "cluster"], ["--properties-file", "FILE"]])
def test_a_configuration_on_a_cluster_is_not_checked_here(
    no_spark: NoSpark, tmp_path: Path, cluster: list[str]
) -> None:
    file = tmp_path / "spark.conf"
    file.write_text("spark.submit.deployMode cluster\n")
    options = [option.replace("FILE", str(file)) for option in cluster]
    done = no_spark.submit(*options, job("apply"), "--config", "elsewhere.yaml")
    assert (done.returncode, no_spark.calls) == (5, ["spark-submit"]), done.stderr
    assert no_spark.words[: len(options)] == options
    assert no_spark.words[-3:] == [str(job("apply")), "--config", "elsewhere.yaml"]
    assert "spark.driver.defaultJavaOptions=-Duser.language=en -Duser.country=US" in no_spark.words
    modules = no_spark.words[no_spark.words.index("--py-files") + 1]
    assert modules.endswith("/pgoutput_etl.zip")
    assert not Path(modules).exists(), "of the time in which spark-submit sends it"


def test_a_cluster_downloads_delta(no_spark: NoSpark) -> None:
    (no_spark.folder / "jars" / "delta-spark.jar").unlink()
    options = ["--deploy-mode", "cluster", "--packages", "a:b:1", "--py-files", "c.zip"]
    assert no_spark.submit(*options, "local:///jobs/apply.py").returncode == 5
    after = dict(zip(no_spark.words, no_spark.words[1:], strict=False))  # the last of each option's values
    assert after["--packages"] == f"a:b:1,io.delta:delta-spark_4.2_2.13:{DELTA_VERSION}"
    assert after["--py-files"].endswith("/pgoutput_etl.zip,c.zip")
    (no_spark.folder / "jars" / "spark-core_2.13-4.2.0.jar").rename(no_spark.folder / "jars/spark-core_2.12-3.5.1.jar")
    done = no_spark.submit(*options, "local:///jobs/apply.py")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"Spark 3.5 in {no_spark.folder}: expected 4.0, 4.1, 4.2" in done.stderr


def test_a_job_that_needs_no_spark_starts_none(no_spark: NoSpark) -> None:
    archive = SCRIPT.parent / "tests/data/pg16/v1"
    done = no_spark.submit("--master", "yarn", job("inspect"), archive, "--json", "--quiet")
    assert (done.returncode, no_spark.calls) == (0, []), done.stderr
    assert json.loads(done.stdout)["transactions"]
    assert no_spark.submit(job("inspect"), "s3a://lake/landing").returncode == 1
    assert no_spark.calls == ["java", "spark-submit"]


def test_a_symbolic_link_to_the_script_is_followed(no_spark: NoSpark, config: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(SCRIPT)
    (tmp_path / "submit").symlink_to("linked")
    done = subprocess.run(
        [tmp_path / "submit", job("apply"), "--config", config],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, **no_spark.environment},
        check=False,
    )
    assert (done.returncode, no_spark.calls) == (1, ["java", "spark-submit"])


def test_a_missing_temporary_folder_is_no_problem_where_another_is_there(no_spark: NoSpark, config: Path) -> None:
    done = no_spark.submit(job("apply"), "--config", config, TMPDIR="/nowhere")
    assert (done.returncode, no_spark.calls) == (1, ["java", "spark-submit"])


STUB = "The operation couldn\u2019t be completed. Unable to locate a Java Runtime."


@pytest.mark.parametrize("says", ['openjdk version "11.0.2"', 'java version "1.8.0_1"', "", STUB])
def test_a_java_that_is_too_old_or_none_is_one_line(no_spark: NoSpark, config: Path, says: str) -> None:
    java = no_spark.folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{says}' >&2\nexit {int(says == STUB)}\n")
    done = no_spark.submit(job("apply"), "--config", config)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert done.stderr.startswith("PGO-4100: RunError: Java 17 or newer is required, and ")
    assert no_spark.calls == []


def test_a_java_that_is_not_there_is_one_line(no_spark: NoSpark, config: Path) -> None:
    done = no_spark.submit(job("apply"), "--config", config, JAVA_HOME="/nowhere")
    assert (done.returncode, done.stderr.count("\n"), no_spark.calls) == (1, 1, [])
    assert done.stderr.startswith(
        "PGO-4100: RunError: Java 17 or newer is required, and none was found (JAVA_HOME is /nowhere)"
    )


def test_a_java_without_addresses_is_not_called_missing(no_spark: NoSpark, config: Path) -> None:
    java = no_spark.folder / "bin" / "java"
    java.write_text("#!/bin/sh\nprintf 'Error occurred during initialization of VM\\nCould not reserve' >&2\nexit 1\n")
    done = no_spark.submit(job("apply"), "--config", config)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(
        "PGO-4100: RunError: Java does not start: Error occurred during initialization of VM Could not"
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("-Dp=secret -XX:Nonsense=secret", "Unrecognized VM option 'Nonsense=…' Error: Could not create the Java"),
        ("-XX:Nonsense='a secret'", "Unrecognized VM option 'Nonsense=…' Error: Could not create the Java"),
        ("-Dp=secret -jar x", "Error: Option -jar is not allowed in environment variable JDK_JAVA_OPTIONS (check"),
    ],
)
def test_a_wrong_option_for_java_is_named_without_its_value(config: Path, options: str, says: str) -> None:
    done = spark_submit(job("apply"), "--config", config, JDK_JAVA_OPTIONS=options)
    assert (done.returncode, done.stderr.count("\n"), "secret" in done.stderr) == (1, 1, False)
    assert done.stderr.startswith(f"PGO-4100: RunError: Java does not start: {says}")


@pytest.mark.parametrize("name", ["a:b", 'a"b'])
def test_a_clone_whose_path_python_or_java_can_not_read_is_refused(tmp_path: Path, name: str) -> None:
    clone = tmp_path / name
    clone.mkdir()
    script = clone / SCRIPT.name
    script.write_bytes(SCRIPT.read_bytes())
    script.chmod(0o755)
    (clone / "pgoutput_etl").symlink_to(SCRIPT.parent / "pgoutput_etl")
    done = subprocess.run([script, "jobs/apply.py"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"move the folder {clone}" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a process another host name")
def test_a_host_name_without_an_address(no_spark: NoSpark, config: Path) -> None:
    named = ["unshare", "--uts", "sh", "-c", 'hostname no-such.invalid || exit 9; exec "$@"', "sh"]
    command = [*named, str(SCRIPT), str(job("apply")), "--config", str(config)]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, **no_spark.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode in (1, 9):
        pytest.skip(done.stderr)
    assert (done.returncode, no_spark.address) == (1, "127.0.0.1")
