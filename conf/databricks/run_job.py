"""A task of a Databricks job: runs one of the package's jobs, and fails where that does.

    run_job.py --root FOLDER [--env NAME=VALUE] [--secret NAME=SCOPE/KEY] [--accept CODE] [--tell NAME] JOB ARGUMENT…
    run_job.py --quarantine CODE

A task has no exit code, so that a job's is told as a failure or none, and as a task value that later tasks may ask for.
What a job's parameter left empty (`--to-lsn=`) is left out; `--from-quarantine=true` is the flag.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

_MEANINGS = {
    1: "the job failed; its message, above, says where, and nothing is half-done",
    2: "the configuration or the parameters are wrong",
    3: "done, but something is in quarantine, or tables are not the same: the report above names each",
}


class JobFailedError(Exception):
    """What the run's page shows of a task."""


def arguments_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="run_job.py", allow_abbrev=False)
    parser.add_argument("--root", help="the folder with the package pgoutput_etl")
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE, for the configuration's ${NAME}")
    parser.add_argument("--secret", action="append", default=[], help="NAME=SCOPE/KEY, the same of a secret")
    parser.add_argument("--accept", action="append", type=int, default=[0], help="an exit code that is no failure")
    parser.add_argument("--tell", help="the task value that the exit code becomes")
    parser.add_argument("--quarantine", help="fail if this is the exit code for something in quarantine")
    parser.add_argument("job", nargs=argparse.REMAINDER)
    return parser


def given_to_job(arguments: Sequence[str]) -> Iterator[str]:
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


def run(given: Sequence[str]) -> None:
    """Raises JobFailedError; a task must not end by sys.exit, whatever the code."""
    arguments = arguments_parser().parse_args(given)
    if arguments.quarantine is not None:
        if arguments.quarantine == "3":
            raise JobFailedError("something is in quarantine: the report of the task `apply` names each, and says why")
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

    try:
        code = main([*given_to_job(arguments.job)])
    except SystemExit as ended:  # argparse
        code = ended.code if isinstance(ended.code, int) else 2
    if arguments.tell:
        _dbutils().jobs.taskValues.set(key=arguments.tell, value=str(code))
    if code not in arguments.accept:
        raise JobFailedError(f"exit code {code}: {_MEANINGS.get(code, 'see above')}")


if __name__ == "__main__":
    run(sys.argv[1:])
