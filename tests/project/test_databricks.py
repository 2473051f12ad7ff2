"""The asset bundle: what Databricks' own typed resources take, and what the jobs' own parsers take."""

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
JOBS = {key: (path, job) for path, found in RESOURCES.items() for key, job in found.get("jobs", {}).items()}
TASKS = {f"{key}-{task['task_key']}": (path, job, task) for key, (path, job) in JOBS.items() for task in job["tasks"]}
OF_BUNDLE = {"workspace.file_path": str(ROOT), "bundle.name": "pgoutput_etl", "bundle.target": "dev"}


def typed(job: Mapping[str, Any]) -> Job:
    return Job.from_dict(job)  # type: ignore[arg-type]  # any mapping: this is what is asked


def merged(job: Mapping[str, Any], override: Mapping[str, Any]) -> dict[str, Any]:
    """As a target's part is laid over a resource: mappings key by key."""
    both = {key: value for key, value in override.items() if key in job}
    deep = {key: merged(job[key], value) if isinstance(value, dict) else value for key, value in both.items()}
    return {**job, **override, **deep}


def resolved(text: str, of_run: Mapping[str, str]) -> str:
    """As Databricks puts it together: the bundle's variables when deployed, the rest when run."""

    def variable(found: re.Match[str]) -> str:
        name = found[1]
        return str(MAIN["variables"][name[4:]]["default"]) if name.startswith("var.") else OF_BUNDLE[name]

    text = re.sub(r"\$\{([\w.]+)\}", variable, text)
    return re.sub(r"\{\{([\w.]+)\}\}", lambda found: of_run[found[1]], text)


def of_run(job: Mapping[str, Any], **chosen: str) -> dict[str, str]:
    found = {each["name"]: resolved(each["default"], {}) for each in job["parameters"]}
    assert set(chosen) <= set(found)
    return {f"job.parameters.{name}": value for name, value in (found | chosen).items()}


def parameters(job: Mapping[str, Any], task: Mapping[str, Any], **chosen: str) -> list[str]:
    values = {**of_run(job, **chosen), "tasks.apply.values.exit_code": "0"}
    return [resolved(parameter, values) for parameter in task["spark_python_task"]["parameters"]]


@pytest.fixture
def run_job() -> Iterator[ModuleType]:
    """The task's file, as Databricks loads it, and the environment as it was."""
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


def test_databricks_typed_resources_take_all_of_it() -> None:
    for found in RESOURCES.values():
        assert set(found) <= {"jobs", "schemas", "volumes"}
        for job in found.get("jobs", {}).values():
            assert typed(job).as_dict() == job, "nothing was read as something else"
        for schema in found.get("schemas", {}).values():
            Schema.from_dict(schema)
        for volume in found.get("volumes", {}).values():
            Volume.from_dict(volume)
    for target in MAIN["targets"].values():
        for key, override in target.get("resources", {}).get("jobs", {}).items():
            typed(merged(JOBS[key][1], override))


def test_typed_resources_do_refuse_what_is_misspelt() -> None:
    with pytest.raises(ValueError, match="max_retires"):
        Task.from_dict({"task_key": "apply", "max_retires": 2})  # type: ignore[typeddict-unknown-key]


def test_every_variable_is_declared_and_used() -> None:
    text = "".join(path.read_text() for path in FILES)
    used = set(re.findall(r"\$\{var\.(\w+)\}", text))
    assert used == set(MAIN["variables"])
    for target in MAIN["targets"].values():
        assert set(target.get("variables", {})) <= used


def test_what_is_synchronised_is_there_and_has_all_that_a_task_needs() -> None:
    folders = [(BUNDLE / path).resolve() for path in MAIN["sync"]["paths"]]
    assert all(folder.is_dir() for folder in folders)
    assert BUNDLE in folders
    assert ROOT / "pgoutput_etl" in folders


@pytest.mark.parametrize(("path", "job", "task"), TASKS.values(), ids=TASKS.keys())
def test_every_task_has_its_file_and_parameters_that_its_job_takes(
    path: Path, job: dict[str, Any], task: dict[str, Any], run_job: ModuleType
) -> None:
    assert (path.parent / task["spark_python_task"]["python_file"]).resolve() == BUNDLE / "run_job.py"
    chosen = {"tables": "public.orders"} if task["task_key"] == "backfill" else {}
    arguments = run_job.arguments_parser().parse_args(parameters(job, task, **chosen))

    if task["task_key"] == "quarantine":
        assert arguments.quarantine == "0"
        return
    assert Path(arguments.root, "pgoutput_etl", "__init__.py").is_file()
    name, *given = run_job.given_to_job(arguments.job)
    assert name == task["task_key"]
    of_job = command(name).parser(name).parse_args(given)
    environ = dict(pair.split("=", 1) for pair in arguments.env)
    config = load_config(of_job.config, of_job.set, environ)
    volumes = {
        f"/Volumes/{environ['CATALOG']}/{MAIN['variables']['schema']['default']}/{volume['name']}/"
        for found in RESOURCES.values()
        for volume in found.get("volumes", {}).values()
    }
    for place in (config.source.landing, config.state.root):
        assert any(place.startswith(volume) for volume in volumes), "in a volume that the bundle makes"


@pytest.mark.parametrize("variant", ["nightly", "nightly_serverless"])
def test_a_night_is_plan_apply_verify_maintain_and_what_is_in_quarantine_tells(variant: str) -> None:
    _, job = JOBS[variant]
    after = {task["task_key"]: [each["task_key"] for each in task.get("depends_on", [])] for task in job["tasks"]}
    assert after == {
        "plan": [],
        "apply": ["plan"],
        "quarantine": ["apply"],
        "verify": ["apply"],
        "maintain": ["verify"],
    }
    of = {task["task_key"]: task for task in job["tasks"]}
    assert all("run_if" not in task for task in job["tasks"]), "each only if those before it succeeded"
    accepted = {key: "--accept" in task["spark_python_task"]["parameters"] for key, task in of.items()}
    assert accepted == {"plan": True, "apply": True, "quarantine": False, "verify": False, "maintain": False}
    assert of["apply"]["max_retries"] > 0
    assert of["quarantine"]["max_retries"] == of["verify"]["max_retries"] == 0, "the answer would be the same"
    assert job["email_notifications"]["on_failure"]


def test_the_variants_differ_in_where_they_run_alone() -> None:
    of_compute = {
        "environment_key", "job_cluster_key", "libraries", "environments", "job_clusters", "disable_auto_optimization"
    }  # fmt: skip

    def rest(job: Mapping[str, Any]) -> dict[str, Any]:
        tasks = [{key: value for key, value in task.items() if key not in of_compute} for task in job["tasks"]]
        return {key: value for key, value in job.items() if key not in of_compute | {"name"}} | {"tasks": tasks}

    def libraries(key: str) -> set[str]:
        _, job = JOBS[key]
        if key.endswith("serverless"):
            return {line for each in job["environments"] for line in each["spec"]["dependencies"]}
        return {library["pypi"]["package"] for task in job["tasks"] for library in task["libraries"]}

    for key in ("nightly", "backfill"):
        assert rest(JOBS[key][1]) == rest(JOBS[f"{key}_serverless"][1])
        assert libraries(key) == libraries(f"{key}_serverless")
        for task in JOBS[f"{key}_serverless"][1]["tasks"]:
            assert task["environment_key"] == "default"
        for task in JOBS[key][1]["tasks"]:
            assert task["job_cluster_key"] == "main"
    declared = (ROOT / "pyproject.toml").read_text()
    for library in libraries("nightly"):
        assert f'"{library}"' in declared, "the package's own"


class Databricks:
    """`dbutils`, as far as a task asks for it: Databricks alone has the real one."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.jobs = SimpleNamespace(taskValues=SimpleNamespace(set=self._tell))
        self.secrets = SimpleNamespace(get=lambda scope, key: f"{key} of {scope}")

    def _tell(self, key: str, value: str) -> None:
        self.told[key] = value


@pytest.fixture
def databricks(monkeypatch: pytest.MonkeyPatch) -> Databricks:
    found = Databricks()
    runtime = ModuleType("databricks.sdk.runtime")
    runtime.dbutils = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "databricks.sdk", ModuleType("databricks.sdk"))
    monkeypatch.setitem(sys.modules, "databricks.sdk.runtime", runtime)
    return found


def test_a_job_that_fails_fails_its_task_and_says_what_its_code_means(
    run_job: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(run_job.JobFailedError, match="exit code 2: the configuration"):
        run_job.run(["--root", str(ROOT), "plan", "--config", str(tmp_path / "none.yaml")])
    with pytest.raises(run_job.JobFailedError, match="exit code 2: "):
        run_job.run(["--root", str(ROOT), "plan", "--no-such-option"])
    monkeypatch.setattr("pgoutput_etl.cli.main", lambda _given: 1)
    with pytest.raises(run_job.JobFailedError, match="exit code 1: the job failed"):
        run_job.run(["--accept", "3", "apply"])


def test_what_is_in_quarantine_is_told_by_the_task_for_it(
    run_job: ModuleType, databricks: Databricks, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = iter((3, 0))
    monkeypatch.setattr("pgoutput_etl.cli.main", lambda _given: next(codes))

    run_job.run(["--secret", "PGPASSWORD=shop/pg", "--accept", "3", "--tell", "exit_code", "apply", "--config", "x"])
    assert databricks.told == {"exit_code": "3"}
    assert os.environ["PGPASSWORD"] == "pg of shop"
    with pytest.raises(run_job.JobFailedError, match="something is in quarantine"):
        run_job.run(["--quarantine", databricks.told["exit_code"]])

    run_job.run(["--accept", "3", "--tell", "exit_code", "apply", "--config", "x"])
    run_job.run(["--quarantine", databricks.told["exit_code"]])


def test_parameters_that_are_empty_are_not_given(run_job: ModuleType) -> None:
    given = ["backfill", "--config", "a", "--tables=", "--from-quarantine=true", "--to-lsn=0/10", "--json=false"]
    assert [*run_job.given_to_job(given)] == ["backfill", "--config", "a", "--from-quarantine", "--to-lsn=0/10"]
