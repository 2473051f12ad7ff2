"""Builds the sdist and its wheel, installs the wheel with each supported Spark, and runs tests against it.

    make matrix                          # all versions, one after the other
    make matrix SPARK=4.1                # one version, such as a job in continuous integration

Each Spark gets a fresh environment with pinned versions of everything else. The tests run in a copy of this repository
without the package, so that they test the installed one.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from os import environ
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "matrix"
PACKAGE = "pgoutput_etl"
SPARKS = ("4.0", "4.1", "4.2")
# These cover the ways in which Spark and Delta are called: reading, all modes, schema changes, all types, every job.
TESTS = (
    "tests/spark/load/test_archives.py",
    "tests/spark/load/test_schema_changes.py",
    "tests/spark/load/test_modes.py",
    "tests/spark/ingest/test_quarantine.py",
    "tests/spark/jobs/test_maintain.py",
    "tests/spark/jobs/test_verify.py",
    "tests/spark/explore/test_exploring.py",
    "tests/spark/load/test_type_matrix.py",
)
_LEFT_OPEN_BY_SPARK = "ignore:unclosed <socket:ResourceWarning"  # before 4.2, when rows are collected as Arrow
_NOT_INHERITED = ("SPARK_", "PYSPARK_", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True)
class Cell:
    spark: str
    versions: str
    passed: bool
    results: str
    seconds: float


def copy_repository(source: Path) -> None:
    """Copies the files that git tracks or would add to another folder."""
    listing = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)


def build(source: Path, folder: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is built from it alone."""
    command = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", str(folder), str(source)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    [sdist] = folder.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*pip, str(sdist)], check=True)
    [wheel] = folder.glob("*.whl")
    return sdist, wheel


def pins(spark: str, lock: str) -> str:
    """The pinned versions, but with the newest release of this Spark."""
    changed, count = re.subn(r"^pyspark==\S+", f"pyspark[connect]=={spark}.*", lock, flags=re.MULTILINE)
    if count != 1:
        raise SystemExit("requirements.lock: expected one line for pyspark")
    return changed


def install(spark: str, wheel: Path) -> Path:
    """The Python of a fresh environment with this Spark and the wheel."""
    return environment(FOLDER / spark, pins(spark, (ROOT / "requirements.lock").read_text(encoding="utf-8")), wheel)


def environment(folder: Path, requirements: str, package: Path) -> Path:
    """The Python of a fresh environment in this folder. requirements: in pip's format. package: a wheel or an sdist."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    python, file = folder / "bin" / "python", folder / "requirements.txt"
    file.write_text(requirements, encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", "-q"]
    subprocess.run([*pip, "-r", str(file)], check=True)
    subprocess.run([*pip, "--no-deps", str(package)], check=True)
    return python


def own_environ() -> dict[str, str]:
    """This process's variables, without those of its Spark and its Python."""
    return {name: value for name, value in environ.items() if not name.startswith(_NOT_INHERITED)}


def run_tests(spark: str, python: Path, source: Path) -> Cell:
    started = time.monotonic()
    env = own_environ()
    code = f"import json, delta, pyspark, {PACKAGE}; from importlib.metadata import version; print(json.dumps("
    code += f"[pyspark.__version__, version('delta-spark'), {PACKAGE}.__file__]))"
    output = subprocess.run([python, "-c", code], cwd=source, env=env, check=True, capture_output=True, text=True)
    spark_version, delta_version, path = json.loads(output.stdout)
    if not (spark_version.startswith(f"{spark}.") and Path(path).is_relative_to(FOLDER / spark)):
        raise SystemExit(f"expected the installed package and Spark {spark}, found {path} and Spark {spark_version}")
    shutil.rmtree(source / "build", ignore_errors=True)
    demo: list[str | Path] = [python.with_name("pgoutput-etl"), "apply", "--config", "conf/demo.yaml", "--quiet"]
    pytest: list[str | Path] = [python, "-m", "pytest", "-q", "-m", "spark and not soak", "-p", "no:cacheprovider"]
    pytest += ["-W", _LEFT_OPEN_BY_SPARK, *TESTS]
    codes = [subprocess.run(command, cwd=source, env=env, check=False).returncode for command in (demo, pytest)]
    named = zip(("demo", "tests"), codes, strict=True)
    results = ", ".join(f"{name}: {'passed' if code == 0 else f'exit code {code}'}" for name, code in named)
    versions = f"{spark_version}, Delta {delta_version}"
    return Cell(spark, versions, not any(codes), results, time.monotonic() - started)


def main(sparks: list[str]) -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    source = FOLDER / "source"
    copy_repository(source)
    sdist, wheel = build(source, FOLDER)
    shutil.rmtree(source / PACKAGE)
    cells = [run_tests(spark, install(spark, wheel), source) for spark in sparks or SPARKS]
    table = Table("Spark", "installed", "", "seconds", title=f"{sdist.name}, {wheel.name}")
    for cell in cells:
        table.add_row(cell.spark, cell.versions, cell.results, f"{cell.seconds:,.0f}")
    Console().print(table)
    return 0 if all(cell.passed for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
