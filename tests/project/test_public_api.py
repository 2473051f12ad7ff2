"""The public API is lazy, documented, and the only API that notebooks and docs import."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pgoutput_etl as pg

ROOT = Path(__file__).parents[2]
SOURCE = (ROOT / "pgoutput_etl" / "__init__.py").read_text()
NAMES = sorted(pg._MODULES)


def declared() -> set[tuple[str, str]]:
    """Module and name of each import that type checkers see."""
    imports = (node for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, ast.ImportFrom))
    return {(node.module or "", name.name) for node in imports for name in node.names}


def snippets() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        yield path.name, "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for code in re.findall(r"^```python\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL):
            yield path.name, code


def test_importing_the_package_loads_no_libraries() -> None:
    heavy = "('pyspark', 'delta', 'pyarrow', 'numpy', 'numba', 'yaml', 'rich')"
    code = f"import sys, pgoutput_etl; sys.exit(' '.join(name for name in {heavy} if name in sys.modules) or 0)"
    assert subprocess.run([sys.executable, "-c", code], check=False, stderr=subprocess.PIPE).stderr == b""


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_the_one_that_type_checkers_see(name: str) -> None:
    value = getattr(pg, name)
    modules = {module for module, imported in declared() if imported == name}
    assert [getattr(sys.modules[module], name) is value for module in modules] == [True]
    assert inspect.getdoc(value), "no docstring, so nothing on its page"


def test_type_checkers_see_no_other_name() -> None:
    assert {name for module, name in declared() if module.startswith("pgoutput_etl")} == set(NAMES)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'replay_archive'"):
        _ = pg.replay_archive  # type: ignore[attr-defined]


def test_the_page_documents_every_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    assert sorted(re.findall(r"^::: pgoutput_etl\.(\w+)$", page, re.MULTILINE)) == NAMES


def test_notebooks_and_docs_import_only_from_the_package() -> None:
    imports = [(name, line) for name, code in snippets() for line in code.splitlines() if "pgoutput_etl" in line]
    assert imports, "no snippet found"
    private = [(name, line) for name, line in imports if re.search(r"(from|import) pgoutput_etl\.", line)]
    assert private == []
