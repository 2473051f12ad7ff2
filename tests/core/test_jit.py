"""Kernels: compiled once for all processes where that can be, never stale, and done without where they can't be had."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pgoutput_etl import jit

ROOT = Path(__file__).parents[2]
needs_kernels = pytest.mark.skipif(not jit.AVAILABLE, reason="kernels need numba")

MODULE = """
import numpy as np
from pgoutput_etl.jit import compiled, load_word

TIMES = np.array([{factor}, 2])

@compiled
def inner(x):
    return x * TIMES[0]

@compiled
def outer(data):
    return inner(load_word(data, np.uint64(1)) >> np.uint64(56)) + 1
"""
CALL = "import kernels, numpy as np; print(int(kernels.outer(np.arange(9, dtype=np.uint8))))"
# Says so for each piece of machine code that was made and not found.
COUNTED = (
    "import pgoutput_etl.jit as c; made = []; save = c._KeptCode.save_overload\n"
    "c._KeptCode.save_overload = lambda self, *a: (made.append(self._name), save(self, *a))\n"
)


def run(code: str, folder: Path, package: Path = ROOT, **environment: str) -> list[str]:
    """What a new process prints."""
    search = os.pathsep.join([str(folder), str(package)])
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "PGOUTPUT_"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**variables, "PYTHONPATH": search, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def written(folder: Path, factor: int) -> None:
    (folder / "kernels.py").write_text(MODULE.format(factor=factor), encoding="utf-8")


@needs_kernels
def test_what_is_compiled_is_kept_and_never_stale(tmp_path: Path) -> None:
    """Numba itself would look at the outer function's file alone, and not at a constant of another module."""
    kept = tmp_path / "kept"
    counted = f"{COUNTED}{CALL}\nprint(*made)"
    written(tmp_path, 10)
    assert run(counted, tmp_path, NUMBA_CACHE_DIR=str(kept)) == ["81", "kernels.inner", "kernels.outer"]
    assert run(counted, tmp_path, NUMBA_CACHE_DIR=str(kept)) == ["81"]
    for file in kept.rglob("*.nbc"):  # as a full disk leaves them
        file.write_bytes(file.read_bytes()[:-100])
    assert run(counted, tmp_path, NUMBA_CACHE_DIR=str(kept)) == ["81", "kernels.inner", "kernels.outer"]
    written(tmp_path, 20)
    assert run(CALL, tmp_path, NUMBA_CACHE_DIR=str(kept)) == ["161"]


@needs_kernels
def test_where_nothing_can_be_kept_each_process_compiles_for_itself(tmp_path: Path) -> None:
    written(tmp_path, 10)
    (tmp_path / "file").write_text("")
    assert run(CALL, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "file" / "below")) == ["81"]


@needs_kernels
def test_from_a_zip_it_is_kept_in_the_users_cache(tmp_path: Path) -> None:
    """As spark-submit --py-files brings the package to executors."""
    written(tmp_path, 10)
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        for path in (ROOT / "pgoutput_etl").rglob("*.py"):
            zipped.write(path, path.relative_to(ROOT))
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "LOCALAPPDATA": str(tmp_path / "cache")}
    assert run(CALL, tmp_path, archive, **home) == ["81"]
    assert list((tmp_path / "cache" / "pgoutput_etl").glob("kernels.outer-*.nbc"))


SAYS = "from pgoutput_etl import jit; print(jit.AVAILABLE, jit.WHY_NOT)"


def test_it_says_why_there_are_no_kernels(tmp_path: Path) -> None:
    assert run(SAYS, tmp_path, PGOUTPUT_ETL_PURE="1") == ["False", "PGOUTPUT_ETL_PURE", "is", "set"]
    (tmp_path / "numba.py").write_text("raise SystemError('numba needs another numpy')", encoding="utf-8")
    why = " ".join(run(SAYS, tmp_path))
    assert why == "False numba can't be imported (numba needs another numpy)"


def test_modules_of_kernels_cost_nothing_to_import(tmp_path: Path) -> None:
    asked = "import sys, pgoutput_etl.changes.fast_events; print('numba' in sys.modules)"
    assert run(asked, tmp_path) == ["False"]


def test_a_kernel_that_can_not_be_compiled_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_loaded", [(None, "it rains")])
    with pytest.raises(RuntimeError, match="of can't be compiled: it rains"):
        jit.compiled(_of)(1)


def _of(number: int) -> int:
    return number
