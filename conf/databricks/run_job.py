"""A task of a Databricks job: runs one of the package's jobs, and fails if that job fails.

    run_job.py --root FOLDER [--env NAME=VALUE] [--secret NAME=SCOPE/KEY] [--accept CODE] [--tell NAME] JOB ARGUMENT…
    run_job.py --quarantine CODE

A task has no exit code: a job's exit code becomes success or failure, and a task value that later tasks can read.
Options of empty job parameters (`--to-lsn=`) are omitted; `--from-quarantine=true` becomes the flag.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

_MEANINGS = {
    1: "the job failed: see its message above; the next run continues from a consistent state",
    2: "the configuration or the parameters are wrong",
    75: "another run is working on the source, or nothing can be decided yet: run it again later",
    3: "the job completed, but data is in quarantine, or tables are held or differ: see the report above",
}


class JobFailedError(Exception):
    """Fails the task; the run's page shows its message."""


def arguments_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="run_job.py", allow_abbrev=False)
    parser.add_argument("--root", help="the folder with the package pgoutput_etl")
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE, for the configuration's ${NAME}")
    parser.add_argument("--secret", action="append", default=[], help="NAME=SCOPE/KEY, the same with a secret's value")
    parser.add_argument("--accept", action="append", type=int, default=[0], help="an exit code that is not a failure")
    parser.add_argument("--tell", help="the name of the task value to store the exit code in")
    parser.add_argument("--quarantine", help="fail if this exit code, of an earlier task, reports quarantined data")
    parser.add_argument("job", nargs=argparse.REMAINDER)
    return parser


def job_arguments(arguments: Sequence[str]) -> Iterator[str]:
    for argument in arguments:
        option, equals, value = argument.partition("=")
        if not option.startswith("--") or not equals:
            yield argument
        elif value == "true":
            yield option
        elif value not in ("", "false"):
            yield argument


def _dbutils() -> Any:
    from databricks.sdk.runtime import dbutils

    return dbutils


def run(argv: Sequence[str]) -> None:
    """Raises JobFailedError; a task must never end with sys.exit."""
    arguments = arguments_parser().parse_args(argv)
    if arguments.quarantine is not None:
        if arguments.quarantine == "3":
            raise JobFailedError("data is in quarantine, or tables are not consistent: see the task `apply`")
        return
    for pair in arguments.env:
        name, _, value = pair.partition("=")
        os.environ[name] = value
    for pair in arguments.secret:
        name, _, place = pair.partition("=")
        scope, _, key = place.partition("/")
        os.environ[name] = _dbutils().secrets.get(scope, key)
    if arguments.root:
        sys.path.insert(0, arguments.root)
    from pgoutput_etl.cli import main

    code = main([*job_arguments(arguments.job)])
    if arguments.tell:
        _dbutils().jobs.taskValues.set(key=arguments.tell, value=str(code))
    if code not in arguments.accept:
        raise JobFailedError(f"exit code {code}: {_MEANINGS.get(code, 'see above')}")


if __name__ == "__main__":
    run(sys.argv[1:])
