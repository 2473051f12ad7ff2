"""The shape of the code that import contracts do not hold: the core without Spark, no path of one machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest
from importlinter.api import read_configuration

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pgoutput_etl"

ENGINES = ("pyspark", "delta")


def modules_of_the_core() -> Iterator[str]:
    """Every module that the import contract in pyproject.toml calls the core."""
    [core] = (c for c in read_configuration()["contracts_options"] if c["name"] == "The core knows no engine")
    for name in core["source_modules"]:
        yield name
        yield from (found.name for found in walk_packages(import_module(name).__dict__.get("__path__", ()), f"{name}."))


def test_the_core_can_be_used_where_spark_is_not_installed() -> None:
    """Import contracts are static; this import is not."""
    modules = sorted(modules_of_the_core())
    assert len(modules) > 100
    blocked = "".join(f"sys.modules[{engine!r}] = None\n" for engine in ENGINES)
    imports = "".join(f"import {module}\n" for module in modules)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{blocked}{imports}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def files_of_the_repository() -> list[Path]:
    """What is or would be committed."""
    listing = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if (ROOT / name).is_file()]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_no_file_names_a_place_on_one_machine() -> None:
    places = [f"/{folder}/".encode() for folder in ("home", "root", "work", "tmp/env")]
    files = files_of_the_repository()
    assert Path(__file__) in files
    found = [f"{path.relative_to(ROOT)}: {place!r}" for path in files for place in places if place in path.read_bytes()]
    assert not found


def test_sparks_types_of_arrows_are_asked_for_in_one_place() -> None:
    """Spark's own functions for it differ from release to release."""
    asking = [path for path in PACKAGE.rglob("*.py") if "pyspark.sql.pandas" in path.read_text(encoding="utf-8")]
    assert asking == [PACKAGE / "spark" / "arrow_types.py"]
