"""Rules that import contracts can't check: the core runs without Spark, no file has a path of one machine."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import pytest
from importlinter.api import read_configuration

from tools.measures import INTERFACE_ASSERTED, PLACE_TAKEN_APART

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "pgoutput_etl"

ENGINES = ("pyspark", "delta")


def core_modules() -> Iterator[str]:
    """Every module of the core, as the import contract in pyproject.toml defines it."""
    [core] = (c for c in read_configuration()["contracts_options"] if c["name"].startswith("The core does not depend"))
    for name in core["source_modules"]:
        yield name
        paths = import_module(name).__dict__.get("__path__", ())
        yield from (module.name for module in walk_packages(paths, f"{name}."))


def test_the_core_imports_without_spark() -> None:
    """Import contracts are static; this import is not."""
    modules = sorted(core_modules())
    assert len(modules) > 100
    blocked = "".join(f"sys.modules[{engine!r}] = None\n" for engine in ENGINES)
    imports = "".join(f"import {module}\n" for module in modules)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{blocked}{imports}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_class_name_has_one_meaning() -> None:
    named: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert {name: paths for name, paths in named.items() if len(paths) > 1} == {}


def test_a_mode_is_named_where_its_name_its_rows_and_its_writer_are() -> None:
    """A new mode changes these modules, and adds one."""
    naming = (path for path in PACKAGE.rglob("*.py") if re.search(r"\bMode\.[A-Z]", path.read_text(encoding="utf-8")))
    named = {path.relative_to(PACKAGE).as_posix() for path in naming}
    assert named == {"config/rules.py", "targets/modes.py", "load/log_modes.py"}


def test_a_place_is_taken_apart_in_one_module() -> None:
    """A new kind of place changes this module, and its writer."""
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert [name for name, text in sorted(texts.items()) if PLACE_TAKEN_APART.search(text)] == ["places.py"]
    assert [name for name, text in sorted(texts.items()) if re.search(r"\.pairs\b", text)] == ["places.py"]


def test_no_module_asserts_what_an_interface_is() -> None:
    """A type is known by construction."""
    assert [path for path in PACKAGE.rglob("*.py") if INTERFACE_ASSERTED.search(path.read_text(encoding="utf-8"))] == []


def test_a_commits_identity_is_read_back_only_where_it_is_given() -> None:
    """It is a parameter: a setting of the session would be one that no signature shows."""
    reading = re.compile(r"from pgoutput_etl\.spark\.platform import [^\n]*\bvalue_of\b")
    readers = [path.name for path in (PACKAGE / "load").rglob("*.py") if reading.search(path.read_text("utf-8"))]
    assert readers == ["table_writer.py"]


def repository_files() -> list[Path]:
    """Files that are committed, or would be."""
    listing = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if (ROOT / name).is_file()]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a clone")
def test_no_file_has_a_path_of_one_machine() -> None:
    path_of_machine = re.compile(rb"(?<![\w.}])/(?:home|root|work|tmp/env)/")
    files = repository_files()
    assert Path(__file__) in files
    assert [str(path.relative_to(ROOT)) for path in files if path_of_machine.search(path.read_bytes())] == []


def test_one_module_converts_arrow_types_to_sparks() -> None:
    """Spark's own functions for it differ from release to release."""
    users = [path for path in PACKAGE.rglob("*.py") if "pyspark.sql.pandas" in path.read_text(encoding="utf-8")]
    assert users == [PACKAGE / "spark" / "arrow_types.py"]


def test_contributing_says_where_things_are() -> None:
    """Each file is there, and defines the name behind it."""
    rows = re.findall(r"^\| .* \| (.*`.*`.*) \|$", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"`([\w/]+\.py)(?::(\w+))?`", "\n".join(rows))
    assert len(named) > 20
    for file, name in named:
        source = (PACKAGE / file).read_text(encoding="utf-8")
        assert not name or re.search(rf"^ *(?:def |class )?{name}\b", source, re.MULTILINE), f"{file}:{name}"
