"""The cache of compiled kernels, shared by processes, never stale, and optional; and the kernel that copies bytes."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from pgoutput_etl import jit
from pgoutput_etl.jit import PADDING, copy_bytes

ROOT = Path(__file__).parents[2]
needs_kernels = pytest.mark.skipif(not jit.AVAILABLE, reason="kernels need numba")

MODULE = """
import numpy as np
from factors import TIMES
from pgoutput_etl.jit import compiled, load_word

@compiled
def inner(x):
    return x * TIMES[0]

@compiled
def outer(data):
    return inner(load_word(data, np.uint64(1)) >> np.uint64(56)) + 1
"""
CALL = "import kernels, numpy as np; print(int(kernels.outer(np.arange(9, dtype=np.uint8))))"
# Collects the names of the kernels that were compiled and not found in the cache.
RECORD_COMPILED = (
    "import pgoutput_etl.jit as c; compiled = []; save = c._CodeCache.save_overload\n"
    "c._CodeCache.save_overload = lambda self, *a: (compiled.append(self._name), save(self, *a))\n"
)


def run(code: str, folder: Path, package: Path = ROOT, **environment: str) -> list[str]:
    """The words that the code prints in a new process."""
    search = os.pathsep.join([str(folder), str(package)])
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "PGOUTPUT_"))}
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**variables, "PYTHONPATH": search, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.split()


def write_module(folder: Path, factor: int) -> None:
    (folder / "kernels.py").write_text(MODULE, encoding="utf-8")
    (folder / "factors.py").write_text(f"import numpy as np\nTIMES = np.array([{factor}, 2])\n", encoding="utf-8")


@needs_kernels
def test_compiled_code_is_cached_and_never_stale(tmp_path: Path) -> None:
    """Numba's own cache only checks the outer function's file, and misses changed constants of other modules."""
    cache = tmp_path / "cache"
    code = f"{RECORD_COMPILED}{CALL}\nprint(*compiled)"
    write_module(tmp_path, 10)
    assert run(code, tmp_path, NUMBA_CACHE_DIR=str(cache)) == ["81", "kernels.inner", "kernels.outer"]
    assert run(code, tmp_path, NUMBA_CACHE_DIR=str(cache)) == ["81"]
    for file in cache.rglob("*.nbc"):  # truncated, as by a full disk
        file.write_bytes(file.read_bytes()[:-100])
    assert run(code, tmp_path, NUMBA_CACHE_DIR=str(cache)) == ["81", "kernels.inner", "kernels.outer"]
    write_module(tmp_path, 20)
    assert run(CALL, tmp_path, NUMBA_CACHE_DIR=str(cache)) == ["161"]


@needs_kernels
def test_without_a_writable_cache_each_process_compiles(tmp_path: Path) -> None:
    write_module(tmp_path, 10)
    (tmp_path / "file").write_text("")
    assert run(CALL, tmp_path, NUMBA_CACHE_DIR=str(tmp_path / "file" / "below")) == ["81"]


@needs_kernels
def test_code_from_a_zip_is_cached_in_the_users_cache(tmp_path: Path) -> None:
    """spark-submit --py-files ships the package to executors as a zip."""
    write_module(tmp_path, 10)
    archive = tmp_path / "package.zip"
    with zipfile.ZipFile(archive, "w") as zipped:
        for path in (ROOT / "pgoutput_etl").rglob("*.py"):
            zipped.write(path, path.relative_to(ROOT))
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "LOCALAPPDATA": str(tmp_path / "cache")}
    assert run(CALL, tmp_path, archive, **home) == ["81"]
    assert list((tmp_path / "cache" / "pgoutput_etl").glob("kernels.outer-*.nbc"))


PRINT_AVAILABLE = "from pgoutput_etl import jit; print(jit.AVAILABLE, jit.WHY_NOT)"


def test_the_reason_for_unavailable_kernels_is_reported(tmp_path: Path) -> None:
    assert run(PRINT_AVAILABLE, tmp_path, PGOUTPUT_ETL_PURE="1") == ["False", "PGOUTPUT_ETL_PURE", "is", "set"]
    (tmp_path / "numba.py").write_text("raise SystemError('numba needs another numpy')", encoding="utf-8")
    output = " ".join(run(PRINT_AVAILABLE, tmp_path))
    assert output == "False numba can't be imported (numba needs another numpy)"


def test_importing_kernels_does_not_import_numba(tmp_path: Path) -> None:
    code = "import sys, pgoutput_etl.changes.fast_events; print('numba' in sys.modules)"
    assert run(code, tmp_path) == ["False"]


def test_an_unavailable_kernel_raises_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_numba", lambda: (None, "no reason"))
    with pytest.raises(RuntimeError, match="identity can't be compiled: no reason"):
        jit.compiled(identity)(1)


def identity(number: int) -> int:
    return number


@needs_kernels
@pytest.mark.parametrize("after", [0, 1, 31, 32, 33])
@pytest.mark.parametrize("before", [0, 1, 40])
def test_bytes_of_any_size_are_copied_and_checked_to_the_end(before: int, after: int) -> None:
    for size in range(100):
        data = np.arange(before + size + after, dtype=np.uint8) % 127
        data[:before] = data[before + size :] = 0xFF
        content = data[before : before + size].tobytes()
        out = np.full(3 + size + PADDING + 1, 7, np.uint8)
        assert copy_bytes(data, np.uint64(before), np.uint64(before + size), out, np.uint64(3)) == 0
        assert out[:3].tolist() == [7, 7, 7]
        assert out[3 : 3 + size].tobytes() == content
        assert out[-1] == 7
        for at in {0, size // 2, size - 1} if size else set():
            changed = data.copy()
            changed[before + at] = 0x80
            assert copy_bytes(changed, np.uint64(before), np.uint64(before + size), out, np.uint64(0)) != 0
