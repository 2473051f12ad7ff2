"""The command lines that reports and errors suggest."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

from pgoutput_etl.config.settings import Config

_WITHOUT_CONFIG = ("inspect", "show")


def job_line(config: Config, job: str, *options: str) -> str:
    """A job's command line, quoted for a shell, with this run's configuration if the job takes one. An option that sets
    source.ignore repeats the configured names, because it replaces them."""
    from pgoutput_etl.landing.selection import also_ignoring  # slow to import: not for checks of a command line

    own = () if job in _WITHOUT_CONFIG else config.options
    return shlex.join((*job_words(job), *own, *(also_ignoring(option, config.source.ignore) for option in options)))


def show_line(path: str) -> str:
    """The command line that prints rows of the table at this path."""
    return shlex.join((*job_words("show"), seen_from_here(path)))


def seen_from_here(path: str) -> str:
    """The path, also of a file: URL, relative to the working folder if it is inside."""
    here = f"{Path.cwd()}/"
    local = path.removeprefix("file:")
    return f"./{local.removeprefix(here)}" if local.startswith(here) else path


def job_words(job: str) -> tuple[str, ...]:
    """The words that run a job, as this process was started: with spark-submit.sh in a clone, otherwise as an installed
    command."""
    return ("./spark-submit.sh", f"jobs/{job}.py") if _is_in_clone() else ("pgoutput-etl", job)


def example_line(example: str) -> str:
    """An example for a clone after `make demo`, as this process was started."""
    if _is_in_clone():
        return example
    line = re.sub(r"(?:\./spark-submit\.sh|python) jobs/(\w+)\.py", r"pgoutput-etl \1", example)
    for path, own_path in _OWN_PATHS.items():
        line = line.replace(path, own_path)
    return line


_OWN_PATHS = {
    "conf/demo.yaml": "shop.yaml",
    "conf/local.yaml": "shop.yaml",
    "notebooks/data/shop": "landing/shop",
    "build/demo/tables": "warehouse",
}


def _is_in_clone() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ or Path(sys.argv[0]).parent.name == "jobs"
