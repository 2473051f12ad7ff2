"""The caller's shell does not change what a target of the Makefile runs, nor how fast."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_target_has_neither_the_callers_spark_nor_a_python_that_compiles_modules_each_time(tmp_path: Path) -> None:
    given = {"PATH": os.environ["PATH"], "SPARK_HOME": "/elsewhere", "PYTHONDONTWRITEBYTECODE": "1", "OTHER": "kept"}
    (tmp_path / "print.mk").write_text("print: ; @env\n")
    command = ["make", "--no-print-directory", "-f", "Makefile", "-f", str(tmp_path / "print.mk"), "print"]
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=True)
    found = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert {name: found.get(name) for name in given if name != "PATH"} == {
        "SPARK_HOME": None,
        "PYTHONDONTWRITEBYTECODE": None,
        "OTHER": "kept",
    }
