"""Executes the notebooks and stores their outputs without the parts that vary between runs.

python -m tools.notebooks                     # all of them
python -m tools.notebooks 02_what_happened
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
CELL_SECONDS = 600
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
# pandas' table styles, objects' memory addresses, terminal colors
_VARYING = (
    re.compile(r"<style scoped>.*?</style>\s*", re.DOTALL),
    re.compile(r" at 0x[0-9a-f]+"),
    re.compile("\x1b\\[[0-9;]*m"),
)


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def execute(name: str, parent: Path) -> nbformat.NotebookNode:
    """Executes a notebook from top to bottom in a copy of the folder below `parent`, and normalizes it.

    Raises CellExecutionError.
    """
    folder = parent / name
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("build", ".ipynb_checkpoints"))
    notebook = nbformat.read(folder / f"{name}.ipynb", as_version=4)
    env = {"IPYTHONDIR": str(folder / ".ipython"), "JUPYTER_PLATFORM_DIRS": "1", "MPLBACKEND": ""}
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        record_timing=False,
    )
    with patch.dict(os.environ, env):
        del os.environ["MPLBACKEND"]  # the kernel chooses its own
        client.execute()
    return normalize(notebook)


def normalize(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """In place: a fixed kernel name, cells numbered from 1, no standard error, and no text that varies between runs."""
    notebook.metadata = nbformat.from_dict(_METADATA)
    number = 0
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type != "code":
            continue
        number += 1
        cell.execution_count = number
        cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        for output in cell.outputs:
            _normalize(output, number)
    return notebook


def _normalize(output: Any, number: int) -> None:
    if "execution_count" in output:
        output.execution_count = number
    if "metadata" in output:
        output.metadata = nbformat.from_dict({})
    if "text" in output:
        output.text = _strip_varying(output.text)
    for kind, content in output.get("data", {}).items():
        if kind.startswith("text/"):
            output.data[kind] = _strip_varying(content)


def _strip_varying(text: str) -> str:
    for pattern in _VARYING:
        text = pattern.sub("", text)
    return text


def texts(notebook: nbformat.NotebookNode) -> Iterator[tuple[int, str, str]]:
    """Each output's cell number, kind, and text; the text of a picture is empty."""
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                yield cell.execution_count, output.name, output.text
            for kind, content in sorted(output.get("data", {}).items()):
                yield cell.execution_count, kind, content if kind.startswith("text/") else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a notebook without .ipynb (default: all)")
    for name in parser.parse_args().names or names():
        with TemporaryDirectory() as folder:
            nbformat.write(execute(name, Path(folder)), FOLDER / f"{name}.ipynb")


if __name__ == "__main__":
    main()
