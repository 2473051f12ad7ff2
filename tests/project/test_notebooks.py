"""The notebooks run from top to bottom, and their outputs are the committed ones."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

from tools import notebooks
from tools.notebooks import FOLDER, execute, names, normalize, texts

ROOT = Path(__file__).parents[2]
_HEADING = re.compile(r"<h([1-6])\b[^>]*>(.*?)<a class=\"anchor-link\"", re.DOTALL)
_PARAGRAPH = re.compile(r"<(p|li)>(.*?)</\1>", re.DOTALL)
NOTEBOOKS = [
    pytest.param("01_walkthrough", marks=[pytest.mark.spark, pytest.mark.soak]),
    pytest.param("02_what_happened", marks=[pytest.mark.spark, pytest.mark.soak]),
    pytest.param("03_backfill_and_verify", marks=[pytest.mark.spark, pytest.mark.soak]),
    pytest.param("04_undo_a_bad_deploy", marks=[pytest.mark.spark, pytest.mark.soak]),
]


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebooks_outputs_are_the_committed_ones(name: str, tmp_path: Path) -> None:
    assert list(texts(execute(name, tmp_path))) == list(texts(read(name))), "update them: make notebooks"


def test_every_notebook_is_tested() -> None:
    assert names() == [str(param.values[0]) for param in NOTEBOOKS]


@pytest.mark.parametrize("name", names())
def test_committed_notebooks_were_executed_and_normalized(name: str) -> None:
    committed = read(name)
    cells = [cell for cell in committed.cells if cell.cell_type == "code"]
    assert sum(bool(cell.outputs) for cell in cells) >= 5
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    assert normalize(read(name)) == committed


@pytest.mark.parametrize("name", names())
def test_markdown_cells_are_rendered_as_text_and_headings(name: str) -> None:
    page, _ = HTMLExporter().from_notebook_node(read(name))
    headings = [(int(level), unescape(re.sub("<.*?>", "", text))) for level, text in _HEADING.findall(page)]
    assert [level for level, _ in headings] == [1, *[2] * (len(headings) - 1)]
    assert len(headings) > 4
    paragraphs = [unescape(text) for _, text in _PARAGRAPH.findall(page)]
    assert len(paragraphs) > 4
    assert not [text for text in (*paragraphs, *(text for _, text in headings)) if text.lstrip().startswith("#")]


def test_a_failing_cell_fails_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "notebooks"
    folder.mkdir()
    cells = [nbformat.v4.new_code_cell(text) for text in ("1 + 1", "raise ValueError('no')")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "odd.ipynb")
    monkeypatch.setattr(notebooks, "FOLDER", folder)
    with pytest.raises(CellExecutionError, match="no"):
        execute("odd", tmp_path / "copies")


def test_the_notebooks_and_their_archive_stay_small() -> None:
    assert sum(path.stat().st_size for path in (FOLDER / "data").rglob("*") if path.is_file()) < 300_000
    assert all(path.stat().st_size < 500_000 for path in FOLDER.glob("*.ipynb"))
