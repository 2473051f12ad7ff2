"""The files for clusters, containers, and schedulers are valid; their own parsers check them where available."""

from __future__ import annotations

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
from tests.support.servers import landing_machine
from tools import pack

ROOT = Path(__file__).parents[2]
FILES = ROOT / "conf" / "clusters"
UNITS = sorted((*FILES.glob("*.service"), *FILES.glob("*.timer")))
PLAIN_PYTHON = getattr(sys, "_base_executable", sys.executable)


def run(
    *command: str | Path, folder: Path = ROOT, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command with these environment variables and PATH only."""
    environment = {"PATH": os.environ["PATH"], **(variables or {})}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_package_is_packed_with_its_dependencies_except_spark() -> None:
    packages = pack.dependencies()
    required = [line for line in distribution("pgoutput_etl").requires or () if ";" not in line]
    direct = {re.split(r"[<>=!\[ ]", line)[0].lower() for line in required}
    assert direct - {"pyspark", "deltalake"} <= set(packages)
    assert {"numpy", "llvmlite", "psycopg", "psycopg-binary"} <= set(packages), "indirect dependencies, and an extra's"
    assert not set(packages) & {"pyspark", "py4j", "deltalake", "pytest", "grpcio", "opentelemetry-sdk"}
    assert "yaml/__init__.py" in {name for name, _ in pack.package_files(packages["pyyaml"])}


def test_a_packed_python_finds_its_libraries_from_any_folder(tmp_path: Path) -> None:
    python = tmp_path / "unpacked" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(pack.LAUNCHER.format(version=pack.python_version()))
    python.chmod(0o755)
    library = python.parents[1] / "lib"
    library.mkdir()
    (library / "packed.py").write_text("FOUND = 'here'")

    code = "import packed, sys; print(packed.FOUND, sys.path[1].endswith('unpacked/lib'), sys.path[2][-8:])"
    variables = {"PGOUTPUT_ETL_PYTHON": PLAIN_PYTHON, "PYTHONPATH": "of/spark"}
    done = run("./unpacked/bin/python", "-c", code, folder=tmp_path, variables=variables)
    assert (done.stdout, done.stderr) == ("here True of/spark\n", "")

    missing = run(python, variables={"PGOUTPUT_ETL_PYTHON": "python9.9"})
    assert missing.returncode == 1
    assert "python9.9 not found on " in missing.stderr
    assert missing.stderr.count("\n") == 1


@pytest.mark.soak
def test_a_machine_with_python_and_spark_needs_only_the_archive(tmp_path: Path) -> None:
    archive = tmp_path / "etl.tar.gz"
    done = run(sys.executable, ROOT / "tools" / "pack.py", archive)
    assert done.returncode == 0, done.stderr
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "here", filter="data")

    pyspark = importlib.util.find_spec("pyspark")
    assert pyspark is not None
    assert pyspark.origin is not None
    spark_libraries = Path(pyspark.origin).parent / "python" / "lib"
    variables = {
        "PGOUTPUT_ETL_PYTHON": PLAIN_PYTHON,
        "HOME": str(tmp_path),
        "PYTHONPATH": ":".join(map(str, spark_libraries.glob("*.zip"))),  # as Spark's own scripts set it
    }

    def output(*arguments: str | Path) -> str:
        done = run(tmp_path / "here" / "bin" / "python", *arguments, folder=tmp_path, variables=variables)
        assert done.returncode == 0, done.stderr
        return done.stdout

    code = (
        "import pgoutput_etl.work.files.pipeline as ours, pyspark, sys; "
        "print(ours.__file__, pyspark.__file__, sys.prefix)"
    )
    ours, spark, prefix = output("-c", code).split()
    assert Path(ours).is_relative_to(tmp_path / "here" / "lib")
    assert Path(spark).is_relative_to(spark_libraries)
    assert Path(prefix) == Path(sys.base_prefix), "not the environment that packed it"

    landed = ROOT / "tests" / "data" / "pg16" / "recv.bin.gz"
    job = "import sys; from pgoutput_etl.cli import main; sys.exit(main())"
    summary = json.loads(output("-c", job, "inspect", landed, "--json", "--quiet"))
    assert sum(summary["messages"].values()) > 0


def dockerfile() -> list[dict[str, Any]]:
    parser = DockerfileParser(fileobj=BytesIO((FILES / "Dockerfile").read_bytes()))
    instructions: list[dict[str, Any]] = [line for line in parser.structure if line["instruction"] != "COMMENT"]
    return instructions


def test_the_dockerfile_copies_existing_files_and_all_a_job_needs() -> None:
    instructions = dockerfile()
    names = [line["instruction"] for line in instructions]
    assert names.count("FROM") == 2
    assert set(names) == {"ARG", "FROM", "USER", "RUN", "WORKDIR", "COPY", "ENV"}
    copied = [line["value"].split() for line in instructions if line["instruction"] == "COPY"]
    sources = [source for *names, _ in copied for source in names if "--from=build" not in names]
    assert [name for name in sources if not (ROOT / name).exists()] == []
    assert {"pgoutput_etl", "jobs", "spark-submit.sh", "requirements.lock"} <= set(sources)
    assert instructions[-1] == {**instructions[-1], "instruction": "USER", "value": "185"}, (
        "Kubernetes' runAsNonRoot needs a number"
    )

    [install] = [line["value"] for line in instructions if "pip install" in line["value"]]
    with_dependencies, _, without_dependencies = install.partition("--no-deps")
    listed = {*re.findall(r"[\w-]+", with_dependencies.partition("requirements.lock")[2])}
    required = {*pack.requirements(distribution("pgoutput_etl")), *pack.requirements(distribution("delta-spark"))}
    assert {name.replace("_", "-") for name in required} - {"pyspark", "delta-spark"} <= listed
    assert "delta-spark ." in without_dependencies, "they must not install another Spark"


KUBERNETES = [*yaml.safe_load_all((FILES / "kubernetes.yaml").read_text())]


@pytest.mark.parametrize("resource", KUBERNETES, ids=lambda resource: resource["kind"])
@pytest.mark.parametrize("version", ["1.30", "1.34"])
def test_resources_are_valid_by_kubernetes_schemas(resource: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(resource, version, strict=True)


def test_kubernetes_schemas_refuse_a_misspelled_key() -> None:
    cron = json.loads(json.dumps(KUBERNETES[-1]))
    cron["spec"]["concurencyPolicy"] = cron["spec"].pop("concurrencyPolicy")
    with pytest.raises(kubernetes_validate.ValidationError, match="concurencyPolicy"):
        kubernetes_validate.validate(cron, "1.34", strict=True)


def test_the_cron_job_has_valid_arguments_and_a_valid_configuration(tmp_path: Path) -> None:
    by_kind = {resource["kind"]: resource for resource in KUBERNETES}
    job = by_kind["CronJob"]["spec"]["jobTemplate"]["spec"]
    [driver] = job["template"]["spec"]["containers"]
    assert [*map(Path, driver["command"])] == [Path(dockerfile()[-2]["value"]) / "spark-submit.sh"]
    at = next(n for n, argument in enumerate(driver["args"]) if argument.startswith("jobs/"))
    assert (ROOT / driver["args"][at]).is_file()
    source, *_ = command(Path(driver["args"][at]).stem).parser().parse("apply", driver["args"][at + 1 :])

    mounted = {volume["name"]: volume["mountPath"] for volume in driver["volumeMounts"]}
    name = Path(source.config).name
    text = by_kind["ConfigMap"]["data"][name]
    assert source.config == f"{mounted['config']}/{name}"
    (tmp_path / name).write_text(text)
    config = load_config(str(tmp_path / name), source.overrides, {"S3_ACCESS_KEY": "a", "S3_SECRET_KEY": "b"})
    assert config.secrets == {"spark.hadoop.fs.s3a.access.key", "spark.hadoop.fs.s3a.secret.key"}

    variables = {variable["name"] for variable in driver["env"] if "valueFrom" in variable}
    assert set(re.findall(r"\$\((\w+)\)", " ".join(driver["args"]))) == variables
    rules = {rule["action"]: rule["onExitCodes"] for rule in job["podFailurePolicy"]["rules"]}
    assert rules["FailJob"]["values"] == [2, 3], "failures that would recur are not retried"
    assert rules["Ignore"]["values"] == [75], "another run is at work"
    assert {rule["containerName"] for rule in rules.values()} == {driver["name"]}


def test_pods_run_as_an_ordinary_user_and_write_to_temporary_volumes_only() -> None:
    by_kind = {resource["kind"]: resource for resource in KUBERNETES}
    driver = by_kind["CronJob"]["spec"]["jobTemplate"]["spec"]["template"]
    executor = yaml.safe_load(by_kind["ConfigMap"]["data"]["executor.yaml"])
    kubernetes_validate.validate({**executor, "metadata": {"name": "executor"}}, "1.34", strict=True)
    user = int(dockerfile()[-1]["value"])
    for pod in (driver["spec"], executor["spec"]):
        assert pod["securityContext"] == {
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": user,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        [container] = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts["tmp"] == "/tmp"
        assert {"name": "tmp", "emptyDir": {}} in pod["volumes"]
    assert executor["spec"]["automountServiceAccountToken"] is False, "only the driver uses Kubernetes' API"
    [executor_container] = executor["spec"]["containers"]
    assert executor_container["workingDir"] == "/tmp", "executors store files in their working folder"

    [container] = driver["spec"]["containers"]
    given = dict(argument.removeprefix("--conf=").split("=", 1) for argument in container["args"] if "=" in argument)
    template = Path(given["spark.kubernetes.executor.podTemplateFile"])
    config = next(mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "config")
    assert template == Path(config) / "executor.yaml"
    assert given["spark.kubernetes.executor.podTemplateContainerName"] == executor_container["name"]
    assert given["spark.jars.ivy"].startswith("/tmp/")
    [rule] = by_kind["Role"]["rules"]
    assert set(rule["resources"]) == {"pods", "services", "configmaps", "persistentvolumeclaims"}, "and no secrets"


def unit(path: Path) -> dict[str, dict[str, str]]:
    """The settings of each section; the last value of a repeated one."""
    sections: dict[str, dict[str, str]] = {}
    for section, key, value in landing_machine.unit(path):
        sections.setdefault(section, {})[key] = value
    return sections


def test_the_unit_runs_apply_and_does_not_retry_recurring_failures() -> None:
    service = unit(FILES / "pgoutput-etl@.service")
    folder = service["Service"]["WorkingDirectory"]
    script, *arguments = service["Service"]["ExecStart"].split()
    assert script == f"{folder}/spark-submit.sh"
    at = arguments.index("jobs/apply.py")
    source, *_ = command("apply").parser().parse("apply", arguments[at + 1 :])
    assert source.config == "/etc/pgoutput_etl/%i.yaml"
    assert service["Service"]["RestartPreventExitStatus"] == "2 3"
    assert (FILES / service["Unit"]["OnFailure"].replace("@%i", "@")).is_file()
    timer = unit(FILES / "pgoutput-etl@.timer")
    assert timer["Timer"]["Persistent"] == "yes"


def test_the_following_unit_lets_its_driver_finish_a_batch() -> None:
    service = unit(FILES / "pgoutput-etl-follow@.service")["Service"]
    _, *arguments = service["ExecStart"].split()
    at = arguments.index("jobs/apply.py")
    _, request, *_ = command("apply").parser().parse("apply", arguments[at + 1 :])
    assert request.follow.total_seconds() == 60
    assert service["KillMode"] == "mixed", "SIGTERM must not reach the JVM before the batch has ended"
    assert service["SuccessExitStatus"] == "3"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd isn't installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for path in UNITS:
        text = path.read_text()
        # with the paths of this clone, and an existing user
        text = text.replace("/opt/pgoutput_etl", str(ROOT)).replace("User=pgoutput-etl", "User=root")
        (tmp_path / path.name.replace("@", "@shop")).write_text(text)
    names = [path.name.replace("@", "@shop") for path in UNITS]

    def verify() -> subprocess.CompletedProcess[str]:
        return run(
            "systemd-analyze",
            "verify",
            "--man=no",
            *names,
            folder=tmp_path,
            variables={"SYSTEMD_UNIT_PATH": f"{tmp_path}:"},
        )

    done = verify()
    assert (done.returncode, done.stderr) == (0, "")
    service = tmp_path / "pgoutput-etl@shop.service"
    service.write_text(service.read_text().replace("RestartPreventExitStatus", "RestartPreventExitCode"))
    assert "RestartPreventExitCode" in verify().stderr
    calendar = unit(FILES / "pgoutput-etl@.timer")["Timer"]["OnCalendar"]
    assert run("systemd-analyze", "calendar", calendar).returncode == 0


class FailError(Exception):
    """Stands for Airflow's AirflowFailException, which prevents retries."""


class Value:
    """A called task. after: the names of the tasks that it depends on."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], arguments: tuple[Any, ...]) -> None:
        self.function, self.options, self.arguments = function, options, arguments
        self.after: list[str] = [value.function.__name__ for value in arguments if isinstance(value, Value)]

    def __rshift__(self, other: Value) -> Value:
        other.after.append(self.function.__name__)
        return other


Dag = tuple[ModuleType, dict[str, Value], dict[str, Any]]


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Dag:
    """The DAG's file, loaded with stubs of `airflow.sdk` that record the order of tasks. If Airflow is installed,
    `test_airflow_accepts_the_dag` loads the file with it."""
    tasks: dict[str, Value] = {}
    dag_options: dict[str, Any] = {}

    def task(function: Callable[..., Any] | None = None, **options: Any) -> Any:
        def called(function: Callable[..., Any]) -> Callable[..., Value]:
            def call(*arguments: Any) -> Value:
                return tasks.setdefault(function.__name__, Value(function, options, arguments))

            return call

        return called if function is None else called(function)

    def dag(**options: Any) -> Any:
        dag_options.update(options)
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
    return module, tasks, dag_options


def test_the_dag_runs_jobs_in_order_with_valid_arguments(
    airflow: Dag, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module, tasks, dag_options = airflow
    after = {name: task.after for name, task in tasks.items()}
    jobs = {"apply": [], "verify": ["apply"], "maintain": ["apply"]}
    assert after == {**jobs, "quarantine": ["apply"]}
    assert (dag_options["catchup"], dag_options["max_active_runs"]) == (False, 1)

    recorded = tmp_path / "arguments"
    script = tmp_path / "submit"
    script.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >{recorded}\nexit "${{CODE:-0}}"\n')
    script.chmod(0o755)
    monkeypatch.setattr(module, "SUBMIT", [str(script)])
    monkeypatch.setattr(module, "FOLDER", str(ROOT))
    for name in ("apply", "verify", "maintain"):
        tasks[name].function()
        arguments = recorded.read_text().splitlines()
        at = next(n for n, argument in enumerate(arguments) if argument.startswith("jobs/"))
        assert (ROOT / arguments[at]).is_file()
        command(name).parser().parse(name, arguments[at + 1 :])

    monkeypatch.setenv("CODE", "3")
    code = tasks["apply"].function()
    with pytest.raises(FailError, match="data is in quarantine"):
        tasks["quarantine"].function(code)
    with pytest.raises(FailError, match="have different rows"):
        tasks["verify"].function()
    monkeypatch.setenv("CODE", "75")
    assert tasks["apply"].function() == 75
    tasks["quarantine"].function(75)
    tasks["verify"].function()
    monkeypatch.setenv("CODE", "2")
    with pytest.raises(FailError, match="configuration"):
        tasks["apply"].function()
    monkeypatch.setenv("CODE", "1")
    with pytest.raises(RuntimeError, match="exit code 1"):  # which Airflow retries
        tasks["apply"].function()


@pytest.mark.skipif(importlib.util.find_spec("airflow") is None, reason="Airflow isn't installed: it is large")
def test_airflow_accepts_the_dag(tmp_path: Path) -> None:
    code = (
        "import json, sys; from airflow.dag_processing.dagbag import DagBag; bag = DagBag(sys.argv[1]); "
        "print(json.dumps([bag.import_errors, {t.task_id: sorted(t.downstream_task_ids) "
        "for t in bag.dags['pgoutput_etl_shop'].tasks}]))"
    )
    home = {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    done = run(sys.executable, "-c", code, FILES / "airflow_dag.py", variables=home)
    assert done.returncode == 0, done.stderr
    errors, tasks = json.loads(done.stdout.splitlines()[-1])
    assert errors == {}
    assert tasks["apply"] == ["maintain", "quarantine", "verify"]
