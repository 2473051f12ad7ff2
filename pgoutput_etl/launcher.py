"""Runs a job from a clone: `python jobs/NAME.py`, with the Python that `make` installed if this one lacks a dependency.

Python puts a script's folder first in its path, where jobs/inspect.py would shadow the standard library's inspect.
Until `_prepare` has corrected that, nothing may import inspect, which dataclasses would do.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from pgoutput_etl.extras import missing_module

if TYPE_CHECKING:
    from pgoutput_etl.jobs.command import Command

# Dependencies that every job needs. Without numba, jobs are slow.
_REQUIRED = ("pandas", "pyarrow", "pydantic", "rich", "yaml", "jinja2", "click")

_SPARK = ("pyspark", "delta")

_RESTARTED = "PGOUTPUT_ETL_RESTARTED"

_EXIT_USAGE = 2  # as in exit_codes.py, which can't be imported by a Python older than 3.10


def command(job: str) -> Command:
    """The job's command, once the rest of the package can be imported."""
    _prepare()
    from pgoutput_etl import cli

    return cli.command(job)


def _prepare() -> None:
    """Makes the rest of the package and its dependencies importable, or ends the process with the reason.

    With spark-submit, which chooses the Python, a missing dependency is only reported.
    """
    folder = Path(sys.argv[0]).resolve().parent
    if (folder / "inspect.py").exists():
        sys.path[:] = [path for path in sys.path if Path(path).resolve() != folder]
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    missing = [name for name in _REQUIRED if find_spec(name) is None]
    without_spark = [] if is_submitted else [name for name in _SPARK if find_spec(name) is None]
    if (missing or without_spark) and not is_submitted:
        _restart(str(folder.parent / ".venv" / "bin" / "python"))
    if missing:
        sys.stderr.write(f"{missing_module(sys.argv[0], missing[0])}\n")
        sys.exit(_EXIT_USAGE)


def _restart(python: str) -> None:
    """Replaces this process with one that runs another Python, if that exists and has not been tried."""
    if os.environ.pop(_RESTARTED, None) is None and os.access(python, os.X_OK):
        os.execve(python, [python, *sys.argv], {**os.environ, _RESTARTED: "1"})
