"""The installed command: `pgoutput-etl JOB …`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from pgoutput_etl.exit_codes import EXIT_DONE, EXIT_USAGE
from pgoutput_etl.extras import EXTRA_OF, installing
from pgoutput_etl.jobs.command import Command

# A job's module is imported only when the job runs: importing Spark takes a second, and inspect doesn't need it.
JOBS = {
    "init": "write a configuration for a landing folder",
    "apply": "bring every Delta table to the last commit in the archive",
    "plan": "report what apply would do; write nothing",
    "inspect": "report what landed files contain",
    "status": "report the last batch, its age, waiting files and held tables, within seconds",
    "backfill": "rebuild tables from the archive",
    "snapshot": "load rows from before the slot",
    "verify": "compare tables with PostgreSQL",
    "maintain": "keep tables and ledger fast and small",
    "show": "print rows of a table, as of any commit",
    "export": "write tables as of any commit for PostgreSQL to load",
    "undo": "write SQL that undoes transactions on the server",
    "forget": "erase rows from landed files, tables, and the ledger",
}


def command(job: str) -> Command:
    job_command = import_module(f"pgoutput_etl.jobs.{job}").COMMAND
    assert isinstance(job_command, Command)
    return job_command


def usage() -> str:
    width = max(map(len, JOBS))
    lines = (f"  {job:{width}}  {description}" for job, description in JOBS.items())
    return "\n".join(("usage: pgoutput-etl JOB …", "", *lines, "", "pgoutput-etl JOB --help lists its arguments.", ""))


def main(arguments: Sequence[str] | None = None) -> int:
    job, *job_arguments = [*(sys.argv[1:] if arguments is None else arguments), ""]
    if job in ("", "-h", "--help"):
        (sys.stdout if job else sys.stderr).write(usage())
        return EXIT_DONE if job else EXIT_USAGE
    if job == "--version":
        from importlib.metadata import version

        print(version("pgoutput_etl"))
        return EXIT_DONE
    if job not in JOBS:
        sys.stderr.write(f"pgoutput-etl: unknown job {job!r}\n{usage()}")
        return EXIT_USAGE
    try:
        return command(job).main(f"pgoutput-etl {job}", job_arguments[:-1])
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module not in EXTRA_OF:
            raise
        sys.stderr.write(f"pgoutput-etl {job} has no module {module}: {installing(EXTRA_OF[module])}\n")
        return EXIT_USAGE
