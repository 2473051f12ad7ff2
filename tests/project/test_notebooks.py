"""The notebooks run from top to bottom, and put out what is committed with them."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from tools import notebooks
from tools.notebooks import FOLDER, executed, names, normalised, texts

ROOT = Path(__file__).parents[2]
NOTEBOOKS = [
    pytest.param("01_walkthrough", marks=[pytest.mark.spark, pytest.mark.soak]),
    pytest.param("02_what_happened"),
    pytest.param("03_backfill_and_verify", marks=[pytest.mark.spark, pytest.mark.soak]),
]


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_puts_out_what_is_committed(name: str, tmp_path: Path) -> None:
    assert list(texts(executed(name, tmp_path))) == list(texts(read(name))), "make it anew: make notebooks"


def test_every_notebook_is_one_of_these() -> None:
    assert names() == [str(param.values[0]) for param in NOTEBOOKS]


@pytest.mark.parametrize("name", names())
def test_what_is_committed_was_executed_and_has_nothing_of_one_run(name: str) -> None:
    committed = read(name)
    cells = [cell for cell in committed.cells if cell.cell_type == "code"]
    assert sum(bool(cell.outputs) for cell in cells) >= 5
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    assert normalised(read(name)) == committed


def test_a_cell_that_fails_fails_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "notebooks"
    folder.mkdir()
    cells = [nbformat.v4.new_code_cell(text) for text in ("1 + 1", "raise ValueError('no')")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), folder / "odd.ipynb")
    monkeypatch.setattr(notebooks, "FOLDER", folder)
    with pytest.raises(CellExecutionError, match="no"):
        executed("odd", tmp_path / "copies")


def test_the_archive_of_the_notebooks_stays_small() -> None:
    assert sum(path.stat().st_size for path in (FOLDER / "data").rglob("*") if path.is_file()) < 300_000
    assert all(path.stat().st_size < 500_000 for path in FOLDER.glob("*.ipynb"))
