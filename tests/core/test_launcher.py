"""`python jobs/NAME.py` with a Python that lacks the dependencies, in a clone with and without `.venv`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

from pgoutput_etl.cli import JOBS

ROOT = Path(__file__).parents[2]
RECORD = 'echo "$@" >>"$(dirname "$0")/calls"\n'


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python without any package."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True)
    return folder / "bin" / "python"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone before `make`."""
    folder = tmp_path / "a clone"
    shutil.copytree(ROOT / "jobs", folder / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "pgoutput_etl").symlink_to(ROOT / "pgoutput_etl")
    return folder


def run(
    clone: Path, python: str | Path, *arguments: str | Path, **environment: str
) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return subprocess.run(
        [python, *arguments], cwd=clone, env={**env, **environment}, capture_output=True, text=True, check=False
    )


def own_python(clone: Path, script: str) -> Path:
    """Makes a shell script the clone's own Python; returns the file with its calls."""
    python = clone / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{RECORD}{script}\n")
    python.chmod(0o755)
    return python.with_name("calls")


@pytest.mark.parametrize("job", sorted(JOBS))
def test_a_job_runs_with_the_clones_environment(clone: Path, bare: Path, job: str) -> None:
    (clone / ".venv").symlink_to(sys.prefix)
    done = run(clone, bare, f"jobs/{job}.py", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Usage: jobs/{job}.py")


def test_files_are_inspected_from_any_folder(clone: Path, bare: Path, tmp_path: Path) -> None:
    (clone / ".venv").symlink_to(sys.prefix)
    done = run(tmp_path, bare, clone / "jobs" / "inspect.py", ROOT / "tests/data/pg16/v1")
    assert done.returncode == 0, done.stderr
    assert "Nothing is damaged or missing." in done.stdout


def test_arguments_and_exit_code_pass_through(clone: Path, bare: Path) -> None:
    calls = own_python(clone, "exit 7")
    done = run(clone, bare, "jobs/plan.py", "--set", "a b=c")
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
    assert calls.read_text() == "jobs/plan.py --set a b=c\n"


def test_a_signal_ends_the_job(clone: Path, bare: Path) -> None:
    own_python(clone, "kill -TERM $$")
    assert run(clone, bare, "jobs/plan.py").returncode == -signal.SIGTERM


def test_without_an_environment_one_line_says_how_to_get_one(clone: Path, bare: Path) -> None:
    done = run(clone, bare, "jobs/inspect.py", "landing")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr == (
        f"jobs/inspect.py: {bare} has no module pandas: pip install pgoutput-etl, or make demo in a clone\n"
    )


def test_an_environment_that_lacks_the_dependencies_is_tried_once(clone: Path, bare: Path) -> None:
    calls = own_python(clone, f'exec {bare} "$@"')
    done = run(clone, bare, "jobs/inspect.py", "landing")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert calls.read_text().count("\n") == 1


def test_a_python_with_the_dependencies_is_kept(clone: Path) -> None:
    calls = own_python(clone, "exit 7")
    done = run(clone, sys.executable, "jobs/inspect.py", ROOT / "tests/data/pg16/v1", "--json", "--quiet")
    assert done.returncode == 0, done.stderr
    assert not calls.exists()


def test_spark_submit_chooses_the_python(clone: Path, bare: Path) -> None:
    calls = own_python(clone, "exit 7")
    done = run(clone, bare, "jobs/apply.py", PYSPARK_GATEWAY_PORT="1")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert not calls.exists()


def test_a_missing_spark_is_one_line(clone: Path, bare: Path, tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("jinja2", "pandas", "pyarrow", "rich"):
        (packages / f"{name}.py").touch()
    for name in (
        "click",
        "yaml",
        "pydantic",
        "pydantic_core",
        "annotated_types",
        "typing_inspection",
        "typing_extensions",
    ):
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        origin = Path(spec.origin)
        origin = origin.parent if spec.submodule_search_locations else origin
        (packages / origin.name).symlink_to(origin)

    done = run(clone, bare, "jobs/show.py", "a", PYTHONPATH=str(packages))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"jobs/show.py: {bare} has no module pyspark: pip install" in done.stderr


def test_a_job_is_a_module_too(clone: Path, bare: Path) -> None:
    (clone / ".venv").symlink_to(sys.prefix)
    assert run(clone, bare, "-m", "jobs.inspect", "--help").returncode == 0
