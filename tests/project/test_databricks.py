"""The asset bundle is valid for Databricks' typed resources, and its parameters for the jobs' parsers."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from databricks.bundles.jobs import Job, Task
from databricks.bundles.schemas import Schema
from databricks.bundles.volumes import Volume

from pgoutput_etl.cli import command
from pgoutput_etl.config.settings import load_config

ROOT = Path(__file__).parents[2]
BUNDLE = ROOT / "conf" / "databricks"
MAIN = yaml.safe_load((BUNDLE / "databricks.yml").read_text())
FILES = sorted(path for pattern in MAIN["include"] for path in BUNDLE.glob(pattern))
RESOURCES = {path: yaml.safe_load(path.read_text())["resources"] for path in FILES}
JOBS = {key: (path, job) for path, group in RESOURCES.items() for key, job in group.get("jobs", {}).items()}
TASKS = {f"{key}-{task['task_key']}": (path, job, task) for key, (path, job) in JOBS.items() for task in job["tasks"]}
BUNDLE_VARIABLES = {"workspace.file_path": str(ROOT), "bundle.name": "pgoutput_etl", "bundle.target": "dev"}


def typed(job: Mapping[str, Any]) -> Job:
    return Job.from_dict(job)  # type: ignore[arg-type]  # from_dict checks it


def merged(job: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """A target's overrides applied to a resource, mappings key by key."""
    both = {key: value for key, value in override.items() if key in job}
    deep = {key: merged(job[key], value) if isinstance(value, dict) else value for key, value in both.items()}
    return {**job, **override, **deep}


def resolved(text: str, run_values: Mapping[str, str]) -> str:
    """Substitutes variables as Databricks does: the bundle's when it is deployed, the others when a job runs."""

    def variable(match: re.Match[str]) -> str:
        name = match[1]
        return str(MAIN["variables"][name[4:]]["default"]) if name.startswith("var.") else BUNDLE_VARIABLES[name]

    text = re.sub(r"\$\{([\w.]+)\}", variable, text)
    return re.sub(r"\{\{([\w.]+)\}\}", lambda match: run_values[match[1]], text)


def job_parameters(job: Mapping[str, Any], **chosen: str) -> dict[str, str]:
    defaults = {parameter["name"]: resolved(parameter["default"], {}) for parameter in job["parameters"]}
    assert set(chosen) <= set(defaults)
    return {f"job.parameters.{name}": value for name, value in (defaults | chosen).items()}


def parameters(job: Mapping[str, Any], task: Mapping[str, Any], **chosen: str) -> list[str]:
    values = {**job_parameters(job, **chosen), "tasks.apply.values.exit_code": "0"}
    return [resolved(parameter, values) for parameter in task["spark_python_task"]["parameters"]]


@pytest.fixture
def run_job() -> Iterator[ModuleType]:
    """The task's file, loaded as Databricks does. Restores the environment afterwards."""
    spec = importlib.util.spec_from_file_location("run_job", BUNDLE / "run_job.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    environment, path = dict(os.environ), [*sys.path]
    spec.loader.exec_module(module)
    yield module
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path


def test_every_resource_is_valid_by_databricks_types() -> None:
    for group in RESOURCES.values():
        assert set(group) <= {"jobs", "schemas", "volumes"}
        for job in group.get("jobs", {}).values():
            assert typed(job).as_dict() == job, "no value changes its meaning"
        for schema in group.get("schemas", {}).values():
            Schema.from_dict(schema)
        for volume in group.get("volumes", {}).values():
            Volume.from_dict(volume)
    for target in MAIN["targets"].values():
        for key, override in target.get("resources", {}).get("jobs", {}).items():
            typed(merged(JOBS[key][1], override))


def test_typed_resources_refuse_a_misspelled_key() -> None:
    with pytest.raises(ValueError, match="max_retires"):
        Task.from_dict({"task_key": "apply", "max_retires": 2})  # type: ignore[typeddict-unknown-key]


def test_every_variable_is_declared_and_used() -> None:
    text = "".join(path.read_text() for path in FILES)
    used = set(re.findall(r"\$\{var\.(\w+)\}", text))
    assert used == set(MAIN["variables"])
    for target in MAIN["targets"].values():
        assert set(target.get("variables", {})) <= used


def test_synchronized_folders_exist_and_contain_the_package() -> None:
    folders = [(BUNDLE / path).resolve() for path in MAIN["sync"]["paths"]]
    assert all(folder.is_dir() for folder in folders)
    assert BUNDLE in folders
    assert ROOT / "pgoutput_etl" in folders


@pytest.mark.parametrize(("path", "job", "task"), TASKS.values(), ids=TASKS.keys())
def test_every_task_has_its_file_and_valid_parameters(
    path: Path, job: dict[str, Any], task: dict[str, Any], run_job: ModuleType
) -> None:
    assert (path.parent / task["spark_python_task"]["python_file"]).resolve() == BUNDLE / "run_job.py"
    chosen = {"tables": "public.orders"} if task["task_key"] == "backfill" else {}
    arguments = run_job.arguments_parser().parse_args(parameters(job, task, **chosen))

    if task["task_key"] == "quarantine":
        assert arguments.quarantine == "0"
        return
    assert Path(arguments.root, "pgoutput_etl", "__init__.py").is_file()
    name, *job_arguments = run_job.job_arguments(arguments.job)
    assert name == task["task_key"]
    source, *_ = command(name).parser().parse(name, job_arguments)
    environ = dict(pair.split("=", 1) for pair in arguments.env)
    config = load_config(source.config, source.overrides, environ)
    volumes = {
        f"/Volumes/{environ['CATALOG']}/{MAIN['variables']['schema']['default']}/{volume['name']}/"
        for group in RESOURCES.values()
        for volume in group.get("volumes", {}).values()
    }
    for folder in (config.source.landing, config.state.root):
        assert any(folder.startswith(volume) for volume in volumes), "in a volume of the bundle"


def test_the_continuous_workflow_follows_in_one_task() -> None:
    _, job = JOBS["continuous"]
    assert job["continuous"]["pause_status"] == "PAUSED"
    [task] = job["tasks"]
    assert parameters(job, task, interval="5m")[-2:] == ["--follow", "5m"]
    assert not {"max_retries", "depends_on"} & task.keys(), "a continuous job refuses both"
    assert job["job_clusters"] == JOBS["nightly"][1]["job_clusters"]
    apply = next(task for task in JOBS["nightly"][1]["tasks"] if task["task_key"] == "apply")
    assert task["libraries"] == apply["libraries"]


@pytest.mark.parametrize("variant", ["nightly", "nightly_serverless"])
def test_a_night_applies_verifies_maintains_and_checks_quarantine(variant: str, run_job: ModuleType) -> None:
    _, job = JOBS[variant]
    after = {task["task_key"]: [other["task_key"] for other in task.get("depends_on", [])] for task in job["tasks"]}
    assert after == {
        "apply": [],
        "quarantine": ["apply"],
        "verify": ["apply"],
        "maintain": ["apply"],
    }
    tasks, parser = {task["task_key"]: task for task in job["tasks"]}, run_job.arguments_parser()
    assert all("run_if" not in task for task in job["tasks"]), "a task runs only if the tasks before it succeeded"
    accepted = {key: parser.parse_args(parameters(job, task)).accept for key, task in tasks.items()}
    assert accepted == {"apply": [0, 3, 75], "quarantine": [0], "verify": [0, 75], "maintain": [0]}
    assert tasks["apply"]["max_retries"] > 0
    assert tasks["quarantine"]["max_retries"] == tasks["verify"]["max_retries"] == 0, "the result would be the same"
    assert job["email_notifications"]["on_failure"]


def test_the_variants_differ_only_in_their_compute() -> None:
    compute_keys = {
        "environment_key", "job_cluster_key", "libraries", "environments", "job_clusters", "disable_auto_optimization"
    }  # fmt: skip

    def rest(job: Mapping[str, Any]) -> dict[str, Any]:
        tasks = [{key: value for key, value in task.items() if key not in compute_keys} for task in job["tasks"]]
        return {key: value for key, value in job.items() if key not in compute_keys | {"name"}} | {"tasks": tasks}

    def libraries(key: str) -> set[str]:
        _, job = JOBS[key]
        if key.endswith("serverless"):
            return {line for environment in job["environments"] for line in environment["spec"]["dependencies"]}
        return {library["pypi"]["package"] for task in job["tasks"] for library in task["libraries"]}

    for key in ("nightly", "backfill", "first_load"):
        assert rest(JOBS[key][1]) == rest(JOBS[f"{key}_serverless"][1])
        assert libraries(key) == libraries(f"{key}_serverless")
        for task in JOBS[f"{key}_serverless"][1]["tasks"]:
            assert task["environment_key"] == "default"
        for task in JOBS[key][1]["tasks"]:
            assert task["job_cluster_key"] == "main"
    declared = (ROOT / "pyproject.toml").read_text()
    for library in libraries("nightly"):
        assert f'"{library}"' in declared, "a dependency of the package"


class Databricks:
    """The parts of `dbutils` that a task uses. The real one exists only on Databricks."""

    def __init__(self) -> None:
        self.task_values: dict[str, str] = {}
        self.jobs = SimpleNamespace(taskValues=SimpleNamespace(set=self._set_task_value))
        self.secrets = SimpleNamespace(get=lambda scope, key: f"{key} of {scope}")

    def _set_task_value(self, key: str, value: str) -> None:
        self.task_values[key] = value


@pytest.fixture
def databricks(monkeypatch: pytest.MonkeyPatch) -> Databricks:
    dbutils = Databricks()
    runtime = ModuleType("databricks.sdk.runtime")
    runtime.dbutils = dbutils  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "databricks.sdk", ModuleType("databricks.sdk"))
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", runtime)
    return dbutils


def test_a_failed_job_fails_its_task_and_explains_the_exit_code(
    run_job: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(run_job.JobFailedError, match="exit code 2: the configuration"):
        run_job.run(["--root", str(ROOT), "plan", "--config", str(tmp_path / "none.yaml")])
    with pytest.raises(run_job.JobFailedError, match="exit code 2: "):
        run_job.run(["--root", str(ROOT), "plan", "--no-such-option"])
    monkeypatch.setattr("pgoutput_etl.cli.main", lambda _arguments: 1)
    with pytest.raises(run_job.JobFailedError, match="exit code 1: the job failed"):
        run_job.run(["--accept", "3", "apply"])


def test_the_quarantine_task_fails_if_apply_quarantined_data(
    run_job: ModuleType, databricks: Databricks, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = iter((3, 0))
    monkeypatch.setattr("pgoutput_etl.cli.main", lambda _arguments: next(codes))

    run_job.run(["--secret", "PGPASSWORD=shop/pg", "--accept", "3", "--tell", "exit_code", "apply", "--config", "x"])
    assert databricks.task_values == {"exit_code": "3"}
    assert os.environ["PGPASSWORD"] == "pg of shop"
    with pytest.raises(run_job.JobFailedError, match="data is in quarantine"):
        run_job.run(["--quarantine", databricks.task_values["exit_code"]])

    run_job.run(["--accept", "3", "--tell", "exit_code", "apply", "--config", "x"])
    run_job.run(["--quarantine", databricks.task_values["exit_code"]])


def test_empty_parameters_are_omitted(run_job: ModuleType) -> None:
    arguments = ["backfill", "--config", "a", "--tables=", "--from-quarantine=true", "--to-lsn=0/10", "--json=false"]
    assert [*run_job.job_arguments(arguments)] == ["backfill", "--config", "a", "--from-quarantine", "--to-lsn=0/10"]
