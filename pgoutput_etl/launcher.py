"""Runs a job from a clone: `python jobs/NAME.py`, with the Python that `make` installed if this one lacks a dependency.

Python puts a script's folder first in its path, where jobs/inspect.py would shadow the standard library's inspect.
Until `run_job` has corrected that, nothing may import inspect, as dataclasses does.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from pgoutput_etl.extras import EXTRA_OF, installing

# Dependencies that every job needs. Without numba, jobs are slow.
_REQUIRED = ("pandas", "pyarrow", "pydantic", "rich", "yaml", "jinja2", "click")

_SPARK = ("pyspark", "delta")

_RESTARTED = "PGOUTPUT_ETL_RESTARTED"

_EXIT_USAGE = 2  # as in exit_codes.py, which can't be imported by a Python older than 3.10


def run_job(job: str) -> int:
    """Runs the job with the command line's arguments, and returns its exit code.

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
        return _refuse(missing[0])
    from pgoutput_etl.cli import command

    try:
        return command(job).main()
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in EXTRA_OF:
            return _refuse(module)
        raise


def _restart(python: str) -> None:
    """Replaces this process with one that runs another Python, if that exists and has not been tried."""
    if os.environ.pop(_RESTARTED, None) is None and os.access(python, os.X_OK):
        os.execve(python, [python, *sys.argv], {**os.environ, _RESTARTED: "1"})


def _refuse(module: str) -> int:
    sys.stderr.write(
        f"{sys.argv[0]}: {sys.executable} has no module {module}: run make demo once, or "
        f"{installing(EXTRA_OF.get(module, 'spark'))}\n"
    )
    return _EXIT_USAGE
