"""`pgoutput-etl JOB …`: each of the jobs, wherever the package is installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import version

from pgoutput_etl.console import EXIT_DONE, EXIT_USAGE
from pgoutput_etl.jobs.command import Command

# What a job needs is imported for that job alone: Spark takes a second, and looking into files needs none.
JOBS = {
    "apply": "bring every Delta table to the last commit in the archive",
    "plan": "say what apply would do, and write nothing",
    "inspect": "say what is in landed files",
    "backfill": "do tables again from the archive",
    "snapshot": "load rows from before the slot",
    "verify": "compare tables with PostgreSQL",
    "maintain": "keep tables and ledger fast and small",
    "show": "show some rows of a Delta table",
}


def command(job: str) -> Command:
    found = import_module(f"pgoutput_etl.jobs.{job}.command").COMMAND
    assert isinstance(found, Command)
    return found


def usage() -> str:
    width = max(map(len, JOBS))
    lines = (f"  {job:{width}}  {what}" for job, what in JOBS.items())
    return "\n".join(
        ("usage: pgoutput-etl JOB …", "", *lines, "", "pgoutput-etl JOB --help tells what each takes.", "")
    )


def main(given: Sequence[str] | None = None) -> int:
    job, *arguments = [*(sys.argv[1:] if given is None else given), ""]
    if job in ("", "-h", "--help"):
        (sys.stdout if job else sys.stderr).write(usage())
        return EXIT_DONE if job else EXIT_USAGE
    if job == "--version":
        print(version("pgoutput_etl"))
        return EXIT_DONE
    if job not in JOBS:
        sys.stderr.write(f"pgoutput-etl: there is no job {job!r}\n{usage()}")
        return EXIT_USAGE
    return command(job).main(f"pgoutput-etl {job}", arguments[:-1])
