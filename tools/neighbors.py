"""Tests what other tools do with this project's outputs and examples, with those tools themselves.

    make neighbors                       # all tools
    make neighbors TOOLS="dbt dagster"   # some of them

Each tool has its own environment under build/neighbors, because the tools' dependencies conflict with each other, and
take longer to install than all other dependencies. The tests read the demo's summary, tables, and ledger, which a run
on Spark writes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from os import environ
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "neighbors"
SUMMARY = FOLDER / "summary.json"
PYTEST = "pytest==9.*"
# The demo's configuration, for an archive whose tables have more types
CONFIGURATION = (
    *("--config", "conf/demo.yaml", "--set", f"target.root={FOLDER / 'demo'}"),
    *("--set", "source.landing=./tests/data/random16/v2"),
)


@dataclass(frozen=True, slots=True)
class Neighbor:
    """requirements: of its environment. is_own: its tests run in it; otherwise, they run here and call the tool."""

    name: str
    requirements: tuple[str, ...]
    is_own: bool = True

    @property
    def python(self) -> Path:
        return FOLDER / self.name / "bin" / "python"

    def install(self) -> None:
        """Does nothing if the environment has these requirements."""
        stamp, wanted = FOLDER / self.name / "installed.txt", "\n".join(self.requirements)
        if stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
            return
        print(f"Installing {self.name} into {self.python.parents[1].relative_to(ROOT)}.", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(FOLDER / self.name)], check=True)
        subprocess.run([self.python, "-m", "pip", "install", "-q", *self.requirements], check=True)
        stamp.write_text(wanted, encoding="utf-8")

    def test(self) -> bool:
        """True if the tests pass. In the tool's own environment, they run without this project's pytest settings, which
        need this project's packages."""
        pytest = ["-m", "pytest", "-q", f"tests/neighbors/test_{self.name}.py", "-p", "no:cacheprovider"]
        if not self.is_own:
            return subprocess.run([sys.executable, *pytest], cwd=ROOT, env=_environment(), check=False).returncode == 0
        own = ["-c", "/dev/null", "--rootdir=tests/neighbors", "--confcutdir=tests/neighbors"]
        return subprocess.run([self.python, *pytest, *own], cwd=ROOT, env=_environment(), check=False).returncode == 0


NEIGHBORS = (
    # dbt-core 1.12 builds one of its packages from a download outside of PyPI.
    Neighbor(
        "dbt",
        (
            "dbt-core==1.11.*",
            "dbt-duckdb==1.11.*",
            "dbt-spark==1.11.*",
            "duckdb==1.5.5",
            "duckdb-extension-delta==1.5.5",
        ),
        is_own=False,
    ),
    Neighbor("dagster", ("dagster==1.13.*", PYTEST)),
    Neighbor("airflow", ("apache-airflow==3.3.*", PYTEST)),
)


def _environment() -> dict[str, str]:
    return {**{name: value for name, value in environ.items() if name != "PYTHONPATH"}, "NEIGHBORS": str(FOLDER)}


def apply_demo() -> None:
    """Writes the demo's tables, and the summary of the run."""
    shutil.rmtree(FOLDER / "demo", ignore_errors=True)
    command = [str(ROOT / "spark-submit.sh"), "jobs/apply.py", *CONFIGURATION, "--json"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    SUMMARY.write_bytes(done.stdout)


def main(names: list[str]) -> int:
    neighbors = [neighbor for neighbor in NEIGHBORS if not names or neighbor.name in names]
    FOLDER.mkdir(parents=True, exist_ok=True)
    for neighbor in neighbors:
        neighbor.install()
    apply_demo()
    passed = {neighbor.name: neighbor.test() for neighbor in neighbors}
    for name, has_passed in passed.items():
        print(f"{name}: {'passed' if has_passed else 'failed'}")
    return 0 if passed and all(passed.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
