"""The package as users install it, with each Spark that it is for: sdist, a wheel made from it, and tests with Spark.

    make matrix                          # all of them, one after the other
    make matrix SPARK=4.1                # one, as a job of its own in continuous integration

Each gets a fresh environment with the pinned versions of all else, and runs there from a copy of this repository that
has no package in it, so that what is tested is what was installed.
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
# What calls Spark and Delta in ways of its own: reading, all modes, changes of columns, all types, every job.
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
_LEFT_OPEN_BY_SPARK = "ignore:unclosed <socket:ResourceWarning"  # before 4.2, by what collects rows as Arrow
_NOT_INHERITED = ("SPARK_", "PYSPARK_", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True)
class Cell:
    spark: str
    found: str
    passed: bool
    said: str
    seconds: float


def copied(source: Path) -> None:
    """What git knows of this repository, in another folder."""
    listing = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)


def built(source: Path, folder: Path) -> tuple[Path, Path]:
    """The sdist, and the wheel that is made from it and from nothing else."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", str(folder), str(source)]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
    [sdist] = folder.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder)]
    subprocess.run([*pip, str(sdist)], check=True)
    [wheel] = folder.glob("*.whl")
    return sdist, wheel


def pins(spark: str, lock: str) -> str:
    """The pinned versions, with the newest release of this Spark in place of its own."""
    changed, count = re.subn(r"^pyspark==\S+", f"pyspark[connect]=={spark}.*", lock, flags=re.MULTILINE)
    if count != 1:
        raise SystemExit("requirements.lock: expected one line for pyspark")
    return changed


def installed(spark: str, wheel: Path) -> Path:
    """A fresh environment's Python."""
    folder = FOLDER / spark
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    python = folder / "bin" / "python"
    chosen = folder / "requirements.txt"
    chosen.write_text(pins(spark, (ROOT / "requirements.lock").read_text(encoding="utf-8")), encoding="utf-8")
    pip = [str(python), "-m", "pip", "install", "-q"]
    subprocess.run([*pip, "-r", str(chosen)], check=True)
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True)
    return python


def tested(spark: str, python: Path, source: Path) -> Cell:
    begun = time.monotonic()
    own = {name: value for name, value in environ.items() if not name.startswith(_NOT_INHERITED)}
    asked = f"import json, delta, pyspark, {PACKAGE}; from importlib.metadata import version; print(json.dumps("
    asked += f"[pyspark.__version__, version('delta-spark'), {PACKAGE}.__file__]))"
    answer = subprocess.run([python, "-c", asked], cwd=source, env=own, check=True, capture_output=True, text=True)
    of_spark, of_delta, place = json.loads(answer.stdout)
    if not (of_spark.startswith(f"{spark}.") and Path(place).is_relative_to(FOLDER / spark)):
        raise SystemExit(f"expected the installed package and Spark {spark}, found {place} and Spark {of_spark}")
    shutil.rmtree(source / "build", ignore_errors=True)
    demo: list[str | Path] = [python.with_name("pgoutput-etl"), "apply", "--config", "conf/demo.yaml", "--quiet"]
    pytest: list[str | Path] = [python, "-m", "pytest", "-q", "-m", "spark and not soak", "-p", "no:cacheprovider"]
    pytest += ["-W", _LEFT_OPEN_BY_SPARK, *TESTS]
    results = [subprocess.run(command, cwd=source, env=own, check=False).returncode for command in (demo, pytest)]
    named = zip(("demo", "tests"), results, strict=True)
    said = ", ".join(f"{name}: {'passed' if code == 0 else f'exit code {code}'}" for name, code in named)
    return Cell(spark, f"{of_spark}, Delta {of_delta}", not any(results), said, time.monotonic() - begun)


def main(sparks: list[str]) -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    source = FOLDER / "source"
    copied(source)
    sdist, wheel = built(source, FOLDER)
    shutil.rmtree(source / PACKAGE)
    cells = [tested(spark, installed(spark, wheel), source) for spark in sparks or SPARKS]
    table = Table("Spark", "found", "", "seconds", title=f"{sdist.name}, {wheel.name}")
    for cell in cells:
        table.add_row(cell.spark, cell.found, cell.said, f"{cell.seconds:,.0f}")
    Console().print(table)
    return 0 if all(cell.passed for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
