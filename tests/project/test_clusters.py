"""What is given to clusters, containers and schedulers: read by their own parsers where these can be had."""

from __future__ import annotations

import configparser
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from importlib.metadata import distribution
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import kubernetes_validate
import pytest
import yaml
from dockerfile_parse import DockerfileParser

from pgoutput_etl.cli import command
from pgoutput_etl.config.settings import load_config
from tools import pack

ROOT = Path(__file__).parents[2]
FILES = ROOT / "conf" / "clusters"
UNITS = sorted((*FILES.glob("*.service"), *FILES.glob("*.timer")))
PLAIN_PYTHON = getattr(sys, "_base_executable", sys.executable)


def ran(
    *command: str | Path, folder: Path = ROOT, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """In an environment with these variables alone, and a PATH."""
    environment = {"PATH": os.environ["PATH"], **(variables or {})}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_what_is_packed_is_what_the_package_needs_without_spark() -> None:
    found = pack.needed()
    of_package = [line for line in distribution("pgoutput_etl").requires or () if ";" not in line]
    direct = {re.split(r"[<>=!\[ ]", line)[0].lower() for line in of_package}
    assert direct - {"pyspark"} <= set(found)
    assert {"numpy", "llvmlite"} <= set(found), "what they need in turn"
    assert not set(found) & {"pyspark", "py4j", "pytest", "grpcio", "opentelemetry-sdk"}
    assert "yaml/__init__.py" in {name for name, _ in pack.files_of(found["pyyaml"])}


def test_a_packed_python_finds_what_is_packed_from_wherever_it_is_started(tmp_path: Path) -> None:
    python = tmp_path / "unpacked" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(pack.LAUNCHER.format(version=pack.python_version()))
    python.chmod(0o755)
    library = python.parents[1] / "lib"
    library.mkdir()
    (library / "packed.py").write_text("FOUND = 'here'")

    ask = "import packed, sys; print(packed.FOUND, sys.path[1].endswith('unpacked/lib'), sys.path[2][-8:])"
    of_machine = {"PGOUTPUT_ETL_PYTHON": PLAIN_PYTHON, "PYTHONPATH": "of/spark"}
    done = ran("./unpacked/bin/python", "-c", ask, folder=tmp_path, variables=of_machine)
    assert (done.stdout, done.stderr) == ("here True of/spark\n", "")

    missing = ran(python, variables={"PGOUTPUT_ETL_PYTHON": "python9.9"})
    assert missing.returncode == 1
    assert "there is no python9.9 on " in missing.stderr
    assert missing.stderr.count("\n") == 1


@pytest.mark.soak
def test_an_archive_is_all_that_a_machine_with_a_python_and_spark_needs(tmp_path: Path) -> None:
    archive = tmp_path / "etl.tar.gz"
    done = ran(sys.executable, ROOT / "tools" / "pack.py", archive)
    assert done.returncode == 0, done.stderr
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "here", filter="data")

    pyspark = importlib.util.find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    of_spark = Path(pyspark.origin).parent / "python" / "lib"
    variables = {
        "PGOUTPUT_ETL_PYTHON": PLAIN_PYTHON,
        "HOME": str(tmp_path),
        "PYTHONPATH": ":".join(map(str, of_spark.glob("*.zip"))),  # as Spark's own scripts set it
    }

    def told(*given: str | Path) -> str:
        ended = ran(tmp_path / "here" / "bin" / "python", *given, folder=tmp_path, variables=variables)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    ask = (
        "import pgoutput_etl.jobs.apply.pipeline as ours, pyspark, sys; "
        "print(ours.__file__, pyspark.__file__, sys.prefix)"
    )
    ours, spark, prefix = told("-c", ask).split()
    assert Path(ours).is_relative_to(tmp_path / "here" / "lib")
    assert Path(spark).is_relative_to(of_spark)
    assert Path(prefix) == Path(sys.base_prefix), "not the environment it was packed from"

    landed = ROOT / "tests" / "data" / "pg16" / "recv.bin.gz"
    job = "import sys; from pgoutput_etl.cli import main; sys.exit(main())"
    found = json.loads(told("-c", job, "inspect", landed, "--json", "--quiet"))
    assert sum(found["messages"].values()) > 0


def dockerfile() -> list[dict[str, Any]]:
    parser = DockerfileParser(fileobj=BytesIO((FILES / "Dockerfile").read_bytes()))
    instructions: list[dict[str, Any]] = [each for each in parser.structure if each["instruction"] != "COMMENT"]
    return instructions


def test_the_dockerfile_copies_what_is_there_and_all_that_a_job_takes() -> None:
    found = dockerfile()
    names = [each["instruction"] for each in found]
    assert names.count("FROM") == 2
    assert set(names) == {"ARG", "FROM", "USER", "RUN", "WORKDIR", "COPY", "ENV"}
    copied = [each["value"].split() for each in found if each["instruction"] == "COPY"]
    of_context = [source for *sources, _ in copied for source in sources if "--from=build" not in sources]
    assert [name for name in of_context if not (ROOT / name).exists()] == []
    assert {"pgoutput_etl", "jobs", "spark-submit.sh", "tools/require.sh", "requirements.lock"} <= set(of_context)
    assert found[-1] == {**found[-1], "instruction": "USER", "value": "spark"}, "not as root"

    [install] = [each["value"] for each in found if "pip install" in each["value"]]
    with_theirs, _, alone = install.partition("--no-deps")
    listed = {*re.findall(r"[\w-]+", with_theirs.partition("requirements.lock")[2])}
    asked_for = {*pack.requirements(distribution("pgoutput_etl")), *pack.requirements(distribution("delta-spark"))}
    assert {name.replace("_", "-") for name in asked_for} - {"pyspark", "delta-spark"} <= listed
    assert "delta-spark ." in alone, "without a Spark of their own"


KUBERNETES = [*yaml.safe_load_all((FILES / "kubernetes.yaml").read_text())]


@pytest.mark.parametrize("resource", KUBERNETES, ids=lambda resource: resource["kind"])
@pytest.mark.parametrize("version", ["1.30", "1.34"])
def test_kubernetes_own_schemas_take_its_resources(resource: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(resource, version, strict=True)


def test_kubernetes_schemas_do_refuse_what_is_misspelt() -> None:
    cron = json.loads(json.dumps(KUBERNETES[-1]))
    cron["spec"]["concurencyPolicy"] = cron["spec"].pop("concurrencyPolicy")
    with pytest.raises(kubernetes_validate.ValidationError, match="concurencyPolicy"):
        kubernetes_validate.validate(cron, "1.34", strict=True)


def test_the_cron_job_runs_a_job_with_arguments_and_a_configuration_that_it_takes(tmp_path: Path) -> None:
    by_kind = {each["kind"]: each for each in KUBERNETES}
    of_job = by_kind["CronJob"]["spec"]["jobTemplate"]["spec"]
    [driver] = of_job["template"]["spec"]["containers"]
    assert [*map(Path, driver["command"])] == [Path(dockerfile()[-2]["value"]) / "spark-submit.sh"]
    at = next(n for n, argument in enumerate(driver["args"]) if argument.startswith("jobs/"))
    assert (ROOT / driver["args"][at]).is_file()
    given = command(Path(driver["args"][at]).stem).parser("apply").parse_args(driver["args"][at + 1 :])

    mounted = {each["name"]: each["mountPath"] for each in driver["volumeMounts"]}
    [(name, text)] = by_kind["ConfigMap"]["data"].items()
    assert given.config == f"{mounted['config']}/{name}"
    (tmp_path / name).write_text(text)
    config = load_config(str(tmp_path / name), given.set, {"S3_ACCESS_KEY": "a", "S3_SECRET_KEY": "b"})
    assert config.secrets == {"spark.hadoop.fs.s3a.access.key", "spark.hadoop.fs.s3a.secret.key"}

    said = {each["name"] for each in driver["env"]}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(driver["args"]))) == said
    [rule] = of_job["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["values"] == [2, 3], "what would come again isn't tried again"
    assert rule["onExitCodes"]["containerName"] == driver["name"]


def unit(path: Path) -> dict[str, dict[str, str]]:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # names of units' settings have capitals
    parser.read(path)
    return {section: dict(parser[section]) for section in parser.sections()}


def test_the_unit_runs_the_nightly_job_and_no_second_try_where_it_would_end_the_same() -> None:
    service = unit(FILES / "pgoutput-etl@.service")
    folder = service["Service"]["WorkingDirectory"]
    script, *arguments = service["Service"]["ExecStart"].split()
    assert script == f"{folder}/spark-submit.sh"
    at = arguments.index("jobs/apply.py")
    assert command("apply").parser("apply").parse_args(arguments[at + 1 :]).config == "/etc/pgoutput_etl/%i.yaml"
    assert service["Service"]["RestartPreventExitStatus"] == "2 3"
    assert (FILES / service["Unit"]["OnFailure"].replace("@%i", "@")).is_file()
    timer = unit(FILES / "pgoutput-etl@.timer")
    assert timer["Timer"]["Persistent"] == "yes"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd isn't installed")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    for path in UNITS:
        text = path.read_text()
        # where they stand in this clone, and for the user that there is
        text = text.replace("/opt/pgoutput_etl", str(ROOT)).replace("User=pgoutput-etl", "User=root")
        (tmp_path / path.name.replace("@", "@shop")).write_text(text)
    names = [path.name.replace("@", "@shop") for path in UNITS]

    def verify() -> subprocess.CompletedProcess[str]:
        given = ("systemd-analyze", "verify", "--man=no", *names)
        return ran(*given, folder=tmp_path, variables={"SYSTEMD_UNIT_PATH": f"{tmp_path}:"})

    done = verify()
    assert (done.returncode, done.stderr) == (0, "")
    service = tmp_path / "pgoutput-etl@shop.service"
    service.write_text(service.read_text().replace("RestartPreventExitStatus", "RestartPreventExitCode"))
    assert "RestartPreventExitCode" in verify().stderr
    calendar = unit(FILES / "pgoutput-etl@.timer")["Timer"]["OnCalendar"]
    assert ran("systemd-analyze", "calendar", calendar).returncode == 0


class FailError(Exception):
    """Airflow's AirflowFailException: no further try."""


class Value:
    """A task that was called: what comes after it, and what it was given."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], given: tuple[Any, ...]) -> None:
        self.function, self.options, self.given = function, options, given
        self.after: list[str] = [each.function.__name__ for each in given if isinstance(each, Value)]

    def __rshift__(self, other: Value) -> Value:
        other.after.append(self.function.__name__)
        return other


Dag = tuple[ModuleType, dict[str, Value], dict[str, Any]]


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Dag:
    """The DAG's file, loaded beside what it uses of `airflow.sdk`, played: what is shown is its order and its own
    functions. That Airflow itself takes the file is the next test's, where Airflow is installed."""
    tasks: dict[str, Value] = {}
    of_dag: dict[str, Any] = {}

    def task(function: Callable[..., Any] | None = None, **options: Any) -> Any:
        def called(function: Callable[..., Any]) -> Callable[..., Value]:
            def call(*given: Any) -> Value:
                return tasks.setdefault(function.__name__, Value(function, options, given))

            return call

        return called if function is None else called(function)

    def dag(**options: Any) -> Any:
        of_dag.update(options)
        return lambda function: function

    sdk, exceptions = ModuleType("airflow.sdk"), ModuleType("airflow.sdk.exceptions")
    sdk.dag, sdk.task = dag, task  # type: ignore[attr-defined]
    exceptions.AirflowFailException = FailError  # type: ignore[attr-defined]
    for module in (ModuleType("airflow"), sdk, exceptions):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.spec_from_file_location("airflow_dag", FILES / "airflow_dag.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, tasks, of_dag


def test_the_dag_runs_jobs_in_order_with_arguments_that_they_take(
    airflow: Dag, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, tasks, of_dag = airflow
    after = {name: task.after for name, task in tasks.items()}
    on_its_way = {"plan": [], "apply": ["plan"], "verify": ["apply"], "maintain": ["verify"]}
    assert after == {**on_its_way, "quarantine": ["apply"]}
    assert (of_dag["catchup"], of_dag["max_active_runs"]) == (False, 1)

    told = tmp_path / "told"
    script = tmp_path / "submit"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{told}\nexit "${{CODE:-0}}"\n')
    script.chmod(0o755)
    monkeypatch.setattr(module, "SUBMIT", [str(script)])
    monkeypatch.setattr(module, "FOLDER", str(ROOT))
    for name in ("plan", "apply", "verify", "maintain"):
        tasks[name].function()
        given = told.read_text().splitlines()
        at = next(n for n, argument in enumerate(given) if argument.startswith("jobs/"))
        assert (ROOT / given[at]).is_file()
        command(name).parser(name).parse_args(given[at + 1 :])

    monkeypatch.setenv("CODE", "3")
    code = tasks["apply"].function()
    with pytest.raises(FailError, match="something is in quarantine"):
        tasks["quarantine"].function(code)
    with pytest.raises(FailError, match="don't hold the same rows"):
        tasks["verify"].function()
    monkeypatch.setenv("CODE", "2")
    with pytest.raises(FailError, match="configuration"):
        tasks["apply"].function()
    monkeypatch.setenv("CODE", "1")
    with pytest.raises(RuntimeError, match="exit code 1"):  # which Airflow tries again
        tasks["apply"].function()


@pytest.mark.skipif(importlib.util.find_spec("airflow") is None, reason="Airflow isn't installed: it is large")
def test_airflow_takes_the_dag(tmp_path: Path) -> None:
    ask = (
        "import json, sys; from airflow.dag_processing.dagbag import DagBag; bag = DagBag(sys.argv[1]); "
        "print(json.dumps([bag.import_errors, {t.task_id: sorted(t.downstream_task_ids) "
        "for t in bag.dags['pgoutput_etl_shop'].tasks}]))"
    )
    home = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    done = ran(sys.executable, "-c", ask, FILES / "airflow_dag.py", variables=home)
    assert done.returncode == 0, done.stderr
    errors, tasks = json.loads(done.stdout.splitlines()[-1])
    assert errors == {}
    assert tasks["apply"] == ["quarantine", "verify"]
